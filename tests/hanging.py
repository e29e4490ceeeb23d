"""A test that runs into its time limit shows where every task of its event loop stands, beside the stacks of threads."""

from __future__ import annotations

import asyncio
import gc
import io
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and "Timeout (>" in str(call.excinfo.value):
        report.sections.append(("Tasks", _unfinished_tasks()))
    return report


def _unfinished_tasks() -> str:
    shown = io.StringIO()
    for task in gc.get_objects():
        if isinstance(task, asyncio.Task) and not task.done():
            task.print_stack(file=shown)
    return shown.getvalue()
