"""What fails once and what fails always: real runs of pytest on a folder of their own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.second_runs import MOST

ROOT = Path(__file__).parent.parent
HEAD = """
import os
import pathlib
import threading
import pytest
from tests.results import WrongResult, check_equal

def times(name):
    with pathlib.Path(f"{name}.txt").open("a") as file:
        print("run", file=file)
    return len(pathlib.Path(f"{name}.txt").read_text().splitlines())
"""
ONCE = """
@pytest.mark.cluster
def test_once():
    assert times("once") > 1, "it never came"
"""
ALWAYS = """
@pytest.mark.spark
def test_always():
    assert times("always") == 0
"""
PASSES = """
def test_passes():
    times("passes")
"""


@dataclass
class Folder:
    """A folder with tests, to run them in."""

    path: Path

    def run(self, *tests: str, words: tuple[str, ...] = (), **environment: str) -> tuple[int, str]:
        """Run tests with these texts; return the exit code and what was printed."""
        (self.path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cluster\n    spark\n    xdist_group\n")
        (self.path / "test_it.py").write_text(HEAD + "".join(tests))
        command = [sys.executable, "-m", "tests.second_runs", "-q", "-p", "no:cacheprovider", *words]
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # starts in half the time
        everything = {**os.environ, **plugins, "PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(command, cwd=self.path, env=everything, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def times(self, name: str) -> int:
        """Return how often a test has run."""
        return len((self.path / f"{name}.txt").read_text().splitlines())


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


@pytest.mark.parametrize("words", [(), ("-n", "2", "--dist", "loadgroup")])
def test_a_test_that_fails_once_is_unsteady_and_the_run_green(folder: Folder, words: tuple[str, ...]) -> None:
    code, printed = folder.run(ONCE, PASSES, words=words, UNSTEADY=str(folder.path / "unsteady"))
    assert code == 0, printed
    last = printed[printed.index("UNSTEADY: test_it.py::test_once failed, then passed 2 times") :]
    assert "it never came" in last and "passed in" not in last, printed
    assert (folder.path / "unsteady").read_text() == last
    assert (folder.times("once"), folder.times("passes")) == (3, 1)


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_a_test_that_fails_always_is_red(folder: Folder, words: tuple[str, ...]) -> None:
    code, printed = folder.run(ALWAYS, ONCE, words=words)
    assert code == 1 and "UNSTEADY" not in printed
    assert folder.times("always") == 2


def test_a_test_must_pass_twice(folder: Folder) -> None:
    code, _ = folder.run("@pytest.mark.cluster\ndef test_it():\n    assert times('it') == 2\n")
    assert code == 1 and folder.times("it") == 3


def test_a_group_of_xdist_is_no_part_of_a_case(folder: Folder) -> None:
    code, printed = folder.run("@pytest.mark.xdist_group('a')", ONCE, words=("-n", "2", "--dist", "loadgroup"))
    assert code == 0 and folder.times("once") == 3, printed


def test_an_error_of_a_fixture_runs_again(folder: Folder) -> None:
    fixture = "@pytest.fixture\ndef ends():\n    yield\n    assert times('ends') > 1\n"
    code, printed = folder.run(fixture, "@pytest.mark.cluster\ndef test_it(ends):\n    pass\n")
    assert code == 0 and "UNSTEADY: test_it.py::test_it" in printed


@pytest.mark.parametrize(
    ("test", "why"),
    [
        pytest.param("def test_it():\n    assert times('it') > 1\n", "no test of real processes", id="deterministic"),
        pytest.param(
            "@pytest.mark.cluster\ndef test_it():\n    check_equal(times('it'), 2)\n", "a wrong result", id="wrong"
        ),
        pytest.param(
            "@pytest.mark.cluster\ndef test_it():\n    try:\n        check_equal(times('it'), 2)\n"
            "    finally:\n        assert times('it') > 2\n",
            "a wrong result", id="wrong and more",
        ),
        pytest.param(
            "@pytest.mark.cluster\ndef test_it():\n    try:\n        check_equal(times('it'), 2)\n"
            "    except WrongResult as error:\n        raise ExceptionGroup('both', [ValueError(), error])\n",
            "a wrong result", id="wrong in a group",
        ),
    ],
)  # fmt: skip
def test_some_failures_are_red_at_once(folder: Folder, test: str, why: str) -> None:
    code, printed = folder.run(test, PASSES)
    assert code == 1 and f"No test runs again: test_it.py::test_it: {why}" in printed
    assert folder.times("passes") == 1 and folder.times("it") < 3


def test_a_test_process_that_crashes_is_red(folder: Folder) -> None:
    crash = "@pytest.mark.cluster\ndef test_it():\n    times('it') > 1 or os._exit(3)\n"
    code, printed = folder.run(crash, PASSES, words=("-n", "2"))
    assert code == 1 and "a test process crashed" in printed
    assert folder.times("it") == 1


def test_many_failed_tests_are_red(folder: Folder) -> None:
    test = "@pytest.mark.cluster\n@pytest.mark.parametrize('n', range({}))\ndef test_it(n):\n    assert times(n) > 1\n"
    assert folder.run(test.format(MOST + 1))[0] == 1
    assert [folder.times(str(n)) for n in range(MOST + 1)] == [1] * (MOST + 1)


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        pytest.param("import no_such_module\n", (), 2, id="an error of the collection"),
        pytest.param("import no_such_module\n", ("-n", "2"), 1, id="an error of the collection with xdist"),
        pytest.param(PASSES, ("-m", "spark"), 5, id="no test"),
        pytest.param(PASSES, ("-m", "spark", "-n", "2"), 5, id="no test with xdist"),
        pytest.param(PASSES, ("--no-such-option",), 4, id="a wrong option"),
    ],
)
def test_a_run_that_pytest_cannot_do_is_red(folder: Folder, text: str, words: tuple[str, ...], code: int) -> None:
    found, printed = folder.run(text, words=words)
    assert found == code and "No test runs again" in printed
