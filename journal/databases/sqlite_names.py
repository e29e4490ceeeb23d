"""Names in SQL that is made here."""

from __future__ import annotations


def quoted(name: str) -> str:
    """A name as SQLite reads it in any place for one; columns need their table before them, or may become strings."""
    return '"' + name.replace('"', '""') + '"'
