"""Run pytest; run failed tests of real processes again, alone. `make test` and `make test-slow` do.

    .venv/bin/python -m tests.second_runs -q -n 3 -m 'not slow'

1. Only tests marked `cluster` or `spark` run again: they depend on how busy the machine is. All others are
   deterministic, so a second run would hide a fault.
2. They run one after the other, with nothing beside them, and each must pass twice. A skipped test has not passed. Then
   the run is green, and its last lines list these tests as unsteady, with what each said when it failed. An unsteady
   test is a defect: mend it.
3. More than `MOST` failed tests are no accident, and stay red.
4. Red at once: a result that is wrong (`WrongResult`), an error in a collection or in pytest, a test process that
   crashed, a run that ended early, and a run without tests.
5. An exit code of 0 proves nothing: a program that the tests use may set it, and pytest-xdist forgets some errors. So a
   run is green only if it also wrote its list of failed tests to the end, and the list is empty.
6. A test runs again with the words of the first run, without those that select tests or write files.
7. If the variable `UNSTEADY` names a file, the list is appended to it, so that the last of several runs can show all.

The first run and each further one write their account to a file of their own: this module is also a plugin of pytest.
Its `--last-failed` does not fit, because it runs everything if none of its IDs is found.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.results import WrongResult

MARKS = ("cluster", "spark")
MOST = 3
PASSES = 2
LINES = 12  # of a failure's text
LEFT_OUT = {"--part": True, "--rotation": True, "--measure": False, "--junitxml": True, "--junit-xml": True}
"""Options that a second run does not get, and whether each has a value."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed test, or another failure of a run of pytest."""

    case: str  # node ID, or the name of what failed
    text: str
    red: str  # why it does not run again; "" if it does


@dataclass(slots=True)
class Account:
    """What a run of pytest writes at its end."""

    failures: list[Failure] = field(default_factory=list)
    passed: int = 0  # tests
    skipped: int = 0  # tests, also those that fail as expected
    paths: list[str] = field(default_factory=list)  # among the words of the run
    is_whole: bool = False  # whether pytest came to its end


class FailedTests:
    """The plugin: collects the failures of a run, and writes its account at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.account = Account()

    def add(self, case: str, text: str, red: str) -> None:
        self.account.failures.append(Failure(case, text, red))

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
        self.account.passed += report.passed and report.when == "call"
        self.account.skipped += report.skipped

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.add(report.nodeid, last_lines(report), "an error of the collection")

    def pytest_internalerror(self, excrepr: object) -> None:
        self.add("pytest", str(excrepr), "an error of pytest")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        if error:
            self.add(f"test process {node.gateway.id}", str(error), "a test process crashed")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.add("pytest", str(excinfo.value), "the run ended early")  # also by pytest.exit

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if early := session.shouldfail or session.shouldstop:
            self.add("pytest", str(early), "the run ended early")
        if not hasattr(session.config, "workerinput"):  # the first process has the failures of all
            if session.config.args_source is pytest.Config.ArgsSource.ARGS:
                self.account.paths = session.config.args
            self.account.is_whole = True
            self.path.write_text(json.dumps(asdict(self.account)), encoding="utf-8")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--account", type=Path, help="write the account of the run to this file")


def pytest_configure(config: pytest.Config) -> None:
    if path := config.getoption("account"):
        config.pluginmanager.register(FailedTests(path))


def without_group(item: pytest.Item) -> str:
    """Return a test's node ID. pytest-xdist may have appended the test's group to it."""
    name, mark = item.nodeid, item.get_closest_marker("xdist_group")
    return name.rpartition("@")[0] if mark and name.rfind("@") > name.rfind("]") else name


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, those it arose from, and the members of groups, each once."""
    found, left = set[int](), [error]
    while left:
        each = left.pop()
        if id(each) not in found:
            found.add(id(each))
            yield each
            left += filter(None, (each.__cause__, each.__context__))
            left += each.exceptions if isinstance(each, BaseExceptionGroup) else ()


def last_lines(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return "\n".join(str(crash.message if crash else report.longrepr).splitlines()[:LINES])


def run(*words: str) -> tuple[int, Account]:
    """Run pytest; return its exit code and its account. Its output goes where this program's does."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "account.json"
        command = [sys.executable, "-m", "pytest", "-p", "tests.second_runs", "--account", str(path), *words]
        with subprocess.Popen(command) as process, passing_on(process):
            try:
                code = process.wait()
            except KeyboardInterrupt:  # pytest gets it also, and prints what has failed so far
                code = process.wait()
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    account = Account(**found)
    account.failures = [Failure(**failure) for failure in found.get("failures", ())]
    return code, account


@contextmanager
def passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass on the signals that would end this program and leave pytest running. Ctrl-C reaches both by itself."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, lambda number, frame: process.send_signal(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_green(code: int, account: Account) -> bool:
    """Return whether a run has passed: see rule 5."""
    return code == pytest.ExitCode.OK and account.is_whole and not account.failures


def judged(code: int, account: Account) -> tuple[list[str], str]:
    """Return the tests that run again, given the outcome of the first run, or why none does.

    >>> failures = [Failure("test_a", "it never came", ""), Failure("test_a", "it does not end", "")]
    >>> judged(1, Account(failures, is_whole=True))
    (['test_a'], '')
    >>> judged(1, Account([*failures, Failure("test_b", "assert 1 == 2", "a wrong result")], is_whole=True))
    ([], 'test_b: a wrong result')
    """
    failures = account.failures
    cases = list(dict.fromkeys(failure.case for failure in failures))
    if not account.is_whole:
        return [], f"pytest ended with {code}, before its end"
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not failures:
        return [], "; ".join([f"pytest ended with {code}", *(f"{each.case}: {each.red}" for each in failures[:MOST])])
    if reds := [f"{failure.case}: {failure.red}" for failure in failures if failure.red]:
        return [], "; ".join(reds[:MOST])
    if len(cases) > MOST:
        return [], f"{len(cases)} tests failed, more than {MOST}"
    return cases, ""


def words_again(words: Sequence[str], paths: Collection[str]) -> list[str]:
    """Return the words of a run for a second run of one of its tests: see rule 6. `paths`: those among the words.

    >>> words_again(["-q", "tests/cli", "--part", "3/8", "--rotation=2", "--fusion=off", "-n", "3"], ["tests/cli"])
    ['-q', '--fusion=off', '-n', '3']
    """
    kept, is_value = list[str](), False
    for word in words:
        name, has_value = word.partition("=")[0], "=" in word
        if not (is_value or name in LEFT_OUT or word in paths):
            kept.append(word)
        is_value = not is_value and LEFT_OUT.get(name, False) and not has_value
    return kept


def main(words: Sequence[str]) -> int:
    code, account = run(*words)
    if is_green(code, account):
        return 0
    cases, red = judged(code, account)
    if red:
        print(f"\nNo test runs again: {red}", flush=True)
        return code or pytest.ExitCode.TESTS_FAILED
    for case in cases:
        for turn in range(PASSES):
            print(f"\nAgain, alone ({turn + 1} of {PASSES}): {case}", flush=True)
            again = run(*words_again(words, account.paths), "-n", "0", case)
            if not is_green(*again) or again[1].skipped or not again[1].passed:
                print(f"\nIt has not passed again: {case}", flush=True)
                return pytest.ExitCode.TESTS_FAILED
    unsteady = "".join(
        f"UNSTEADY: {failure.case} failed, then passed {PASSES} times alone; it had said:\n"
        + "".join(f"    {line}\n" for line in failure.text.splitlines())
        for failure in account.failures
    )
    print(f"\n{unsteady}", end="", flush=True)
    if path := os.environ.get("UNSTEADY"):
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(unsteady)
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main(sys.argv[1:]))
