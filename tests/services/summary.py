"""Says at the end of a run which services its tests ran against, in whichever process they did."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.fixtures import used


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if used:
        terminalreporter.write_line(f"services: {', '.join(sorted(set(used.values())))}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)  # of a process of pytest-xdist
    if output is not None:
        output["services"] = dict(used)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    used.update(getattr(node, "workeroutput", {}).get("services", {}))
