"""Run pytest; run failed tests of real processes again, alone. `make test` and `make test-slow` do.

    .venv/bin/python -m tests.second_runs -q -n 3 -m 'not slow'

1. Only tests marked `cluster` or `spark` run again: they depend on how busy the machine is. All others are
   deterministic, so a second run would hide a fault.
2. They run one after the other, with nothing beside them, and each must pass twice. Then the run is green, and its last
   lines list these tests as unsteady, with what each said when it failed. An unsteady test is a defect: mend it.
3. More than `MOST` failed tests are no accident, and stay red.
4. Red at once: a result that is wrong (`WrongResult`), an error in a collection or in pytest, a test process that
   crashed, and a run without tests.
5. If the variable `UNSTEADY` names a file, the list is appended to it, so that the last of several runs can show all.

The first run and each further one write their failed tests to a file of their own: this module is also a plugin of
pytest. Its `--last-failed` does not fit, because it runs everything if none of its IDs is found.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.results import WrongResult

MARKS = ("cluster", "spark")
MOST = 3
PASSES = 2
LINES = 12  # of a failure's text


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed test, or another failure of a run of pytest."""

    case: str  # node ID, or the name of what failed
    text: str
    red: str  # why it does not run again; "" if it does


class FailedTests:
    """The plugin: collects the failures of a run, and writes them to a file at its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures: list[Failure] = []

    def add(self, case: str, text: str, red: str) -> None:
        self.failures.append(Failure(case, text, red))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report: Any = yield  # also what pytest-xdist sends from a test process to the first
        report.case = without_group(item)
        if call.excinfo is not None and any(isinstance(each, WrongResult) for each in causes(call.excinfo.value)):
            report.red = "a wrong result"
        else:
            report.red = "" if any(map(item.get_closest_marker, MARKS)) else "no test of real processes"
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            red = getattr(report, "red", "a test process crashed")
            self.add(getattr(report, "case", report.nodeid), last_lines(report), red)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.add(report.nodeid, last_lines(report), "an error of the collection")

    def pytest_internalerror(self, excrepr: object) -> None:
        self.add("pytest", str(excrepr), "an error of pytest")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            self.add(f"test process {node.gateway.id}", str(error), "a test process crashed")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):  # the first process has the failures of all
            self.path.write_text(json.dumps([asdict(failure) for failure in self.failures]), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", type=Path, help="write the failed tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("failures"):
        config.pluginmanager.register(FailedTests(path))


def without_group(item: pytest.Item) -> str:
    """Return a test's node ID. pytest-xdist may have appended the test's group to it."""
    mark = item.get_closest_marker("xdist_group")
    return item.nodeid.rpartition("@")[0] or item.nodeid if mark else item.nodeid


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception, those it arose from, and the members of groups."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from causes(member)
        error = error.__cause__ or error.__context__


def last_lines(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return "\n".join(str(crash.message if crash else report.longrepr).splitlines()[:LINES])


def run(*words: str) -> tuple[int, list[Failure]]:
    """Run pytest; return its exit code and what failed. Its output goes where this program's does."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "failures.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.second_runs", "--failures", str(path), *words]
        with subprocess.Popen(command) as process:
            try:
                code = process.wait()
            except KeyboardInterrupt:  # pytest gets it also, and prints what has failed so far
                code = process.wait()
        failures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return code, [Failure(**failure) for failure in failures]


def judged(code: int, failures: Sequence[Failure]) -> tuple[list[str], str]:
    """Return the tests that run again, given the outcome of the first run, or why none does.

    >>> judged(1, [Failure("test_a", "it never came", ""), Failure("test_a", "it does not end", "")])
    (['test_a'], '')
    >>> judged(1, [Failure("test_a", "it never came", ""), Failure("test_b", "assert 1 == 2", "a wrong result")])
    ([], 'test_b: a wrong result')
    """
    cases = list(dict.fromkeys(failure.case for failure in failures))
    if code != pytest.ExitCode.TESTS_FAILED or not failures:
        return [], f"pytest ended with {code}"
    if reds := [f"{failure.case}: {failure.red}" for failure in failures if failure.red]:
        return [], "; ".join(reds[:MOST])
    if len(cases) > MOST:
        return [], f"{len(cases)} tests failed, more than {MOST}"
    return cases, ""


def main(words: Sequence[str]) -> int:
    code, failures = run(*words)
    if code == pytest.ExitCode.OK:
        return 0
    cases, red = judged(code, failures)
    if red:
        print(f"\nNo test runs again: {red}", flush=True)
        return code
    for case in cases:
        for turn in range(PASSES):
            print(f"\nAgain, alone ({turn + 1} of {PASSES}): {case}", flush=True)
            again, _ = run("-q", "-n", "0", case)
            if again != pytest.ExitCode.OK:
                return pytest.ExitCode.TESTS_FAILED
    unsteady = "".join(
        f"UNSTEADY: {failure.case} failed, then passed {PASSES} times alone; it had said:\n"
        + "".join(f"    {line}\n" for line in failure.text.splitlines())
        for failure in failures
    )
    print(f"\n{unsteady}", end="", flush=True)
    if path := os.environ.get("UNSTEADY"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(unsteady)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
