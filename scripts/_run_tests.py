"""Runs pytest and says in one line what was skipped because torch is not installed."""

from __future__ import annotations

import sys

import pytest


class TorchSkips:
    """A pytest plugin that counts what asked for torch in vain."""

    def __init__(self) -> None:
        self.count = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Look at one test."""
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Look at one module, which may skip as a whole."""
        self._look_at(report)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Say the line, above pytest's own closing one."""
        if self.count:
            terminalreporter.write_line(
                f"{self.count} tests or test modules were skipped because torch is not "
                "installed: `scripts/test --with-torch` runs them"
            )

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self.count += report.skipped and "torch" in str(report.longrepr)


def main(arguments: list[str]) -> int:
    """Run pytest; with --require-torch, skips for want of torch are failures."""
    required = arguments[:1] == ["--require-torch"]
    skips = TorchSkips()
    status = pytest.main(arguments[required:], plugins=[skips])
    if status == pytest.ExitCode.OK and required and skips.count:
        print("failed: torch was required, yet tests that need it were skipped")
        return 1
    return int(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
