"""Fixtures of the acceptance tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.commands import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """The command in an empty folder."""
    return Journal(tmp_path)
