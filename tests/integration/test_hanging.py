"""A test that hangs fails, and says where it hung."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

HANGS = """
import asyncio

async def wait_for_godot():
    await asyncio.Event().wait()

async def test_that_hangs():
    await wait_for_godot()

async def test_behind_it():
    pass
"""


def test_a_test_that_hangs_fails_and_shows_where_and_the_next_one_runs(tmp_path: Path) -> None:
    (tmp_path / "test_hangs.py").write_text(HANGS, "utf-8")
    options = ("-p", "tests.hanging", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), "--timeout", "1")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env={
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        },  # of the run around it
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "1 failed, 1 passed" in run.stdout, run.stdout + run.stderr
    assert "await wait_for_godot()" in run.stdout.partition(" Tasks ")[2], run.stdout + run.stderr
