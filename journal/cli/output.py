"""What the command prints: JSON for programs, tables for people, plain aligned columns when nobody looks.

rich is imported for a terminal alone: it takes its time, and a pipe wants neither colours nor frames. Texts that come
from a log are somebody else's: what is not printable is escaped, so that no event can drive a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

NONE: Final = "-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def printable(text: str) -> str:
    """`text` with everything that is not printable escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )


def instant(micros: int | None) -> str | None:
    """Microseconds since 1970 UTC as ISO 8601; None for what no calendar has (a writer may claim any time)."""
    if micros is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return None


def duration(seconds: float) -> str:
    """A duration for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def write_json(document: Any) -> None:
    """One JSON document on one line: identities as hex, words by their value."""
    sys.stdout.write(json.dumps(document, default=_json_value) + "\n")


def _json_value(value: Any) -> Any:
    match value:
        case bytes():
            return value.hex()
        case Enum():
            return value.value
        case _:
            return str(value)


def is_terminal() -> bool:
    """Whether people look at stdout."""
    return sys.stdout.isatty()


@cache
def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415

    return Console(highlight=False)


def write_line(line: str = "", *, style: str | None = None) -> None:
    """One line; `style` is used on a terminal alone."""
    if style is not None and is_terminal():
        from rich.text import Text  # noqa: PLC0415

        _console().print(Text(line, style), soft_wrap=True)
    else:
        sys.stdout.write(line + "\n")


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """A table of all rows. Numbers are aligned right, None is a dash."""
    rows = [[cell if isinstance(cell, int) else _cell(cell) for cell in row] for row in rows]
    if is_terminal():
        _write_rich(columns, rows, title)
        return
    if title is not None:
        sys.stdout.write(f"{title}\n")
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    right = [bool(rows) and all(isinstance(row[index], int) for row in rows) for index in range(len(columns))]
    for row in [list(columns), *texts]:
        sys.stdout.write(align(row, widths, right) + "\n")


def align(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    """One plain line of columns."""
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    return NONE if value is None else printable(str(value))


def _write_rich(columns: Sequence[str], rows: Sequence[Sequence[object]], title: str | None) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, title_style="bold")
    for index, column in enumerate(columns):
        numbers = bool(rows) and all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    _console().print(table)
