"""What fails once and what fails always: real runs of pytest on a folder of their own."""

import os
import signal
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
        with self.begin(*tests, words=words, **environment) as process:
            printed, _ = process.communicate()
        return process.returncode, printed

    def begin(self, *tests: str, words: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
        """Begin a run of tests with these texts."""
        (self.path / "pytest.ini").write_text("[pytest]\nmarkers =\n    cluster\n    spark\n    xdist_group\n")
        (self.path / "test_it.py").write_text(HEAD + "".join(tests))
        command = [sys.executable, "-m", "tests.second_runs", "-q", "-p", "no:cacheprovider", *words]
        plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # starts in half the time
        everything = {**os.environ, **plugins, "PYTHONPATH": str(ROOT), **environment}
        return subprocess.Popen(
            command, cwd=self.path, env=everything, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip

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
        pytest.param(
            "@pytest.mark.cluster\ndef test_it():\n    try:\n        check_equal(times('it'), 2)\n"
            "    except WrongResult:\n        raise ValueError() from OSError()\n",
            "a wrong result", id="wrong before a cause",
        ),
        pytest.param(
            "def test_it():\n    times('it')\n    try:\n        raise ExceptionGroup('one', [ValueError()])\n"
            "    except ExceptionGroup as group:\n        raise group.exceptions[0] from None\n",
            "no test of real processes", id="a circle of exceptions",
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


@pytest.mark.parametrize("words", [(), ("-n", "1")])
def test_an_exit_code_of_zero_is_not_enough(folder: Folder, words: tuple[str, ...]) -> None:
    undecodable = "def test_it():\n    raise RuntimeError(os.fsdecode(bytes([255])))\n"  # an error of pytest-xdist
    ends = "def test_it():\n    os._exit(0)\n"
    later = "import atexit\n@pytest.mark.cluster\ndef test_it():\n    atexit.register(os._exit, 0)\n    assert 0\n"
    for test in (undecodable, ends, later):
        assert folder.run(PASSES, test, words=words)[0] != 0


@pytest.mark.parametrize("words", [("-x",), ("-x", "-n", "2"), ("--maxfail=1", "-n", "1")])
def test_a_run_that_ended_early_is_red(folder: Folder, words: tuple[str, ...]) -> None:
    code, printed = folder.run(ONCE, "def test_wrong():\n    assert 0\n", words=words)
    assert code != 0 and "UNSTEADY" not in printed
    code, printed = folder.run(ONCE, "def test_ends():\n    pytest.exit('enough', returncode=1)\n", words=words)
    assert code != 0 and "UNSTEADY" not in printed


@pytest.mark.parametrize("end", ["pytest.skip('the port is busy')", "pytest.xfail('as ever')"])
def test_a_test_that_is_skipped_has_not_passed_again(folder: Folder, end: str) -> None:
    code, printed = folder.run(f"@pytest.mark.cluster\ndef test_it():\n    assert times('it') > 1\n    {end}\n")
    assert code == 1 and "It has not passed again: test_it.py::test_it" in printed


def test_a_test_runs_again_with_the_words_of_the_run(folder: Folder) -> None:
    test = "@pytest.mark.cluster\ndef test_it(pytestconfig):\n    assert pytestconfig.getoption('tbstyle') != 'line'\n"
    (folder.path / "test_other.py").write_text("def test_other():\n    pass\n")
    code, printed = folder.run(test, words=("--tb=line", "test_it.py", "test_other.py"))
    assert code == 1 and printed.count("Again, alone") == 1 and "2 passed" not in printed


def test_an_id_with_an_at_sign_is_found_again(folder: Folder) -> None:
    mark = "@pytest.mark.xdist_group('a')\n@pytest.mark.parametrize('name', ['me@host'])\n@pytest.mark.cluster\n"
    for words in ((), ("-n", "2", "--dist", "loadgroup")):
        code, printed = folder.run(mark, "def test_it(name):\n    assert times(name) > 1\n", words=words)
        assert code == 0 and "UNSTEADY: test_it.py::test_it[me@host]" in printed, printed
        (folder.path / "me@host.txt").unlink()


def test_text_that_cannot_be_encoded_is_shown(folder: Folder) -> None:
    test = "@pytest.mark.cluster\ndef test_it():\n    assert times('it') > 1, chr(0xd800)\n"
    code, printed = folder.run(test, UNSTEADY=str(folder.path / "unsteady"))
    assert code == 0 and "\\ud800" in printed and "\\ud800" in (folder.path / "unsteady").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_pytest_too(folder: Folder, number: signal.Signals) -> None:
    pipe, test = folder.path / "pipe", "def test_it():\n    open('pipe', 'w').write('here')\n    open('pipe').read()\n"
    os.mkfifo(pipe)
    with folder.begin(test) as process:
        assert pipe.read_text() == "here"
        process.send_signal(number)
        assert process.wait() != 0
    with pytest.raises(OSError, match="No such device or address"):  # no process reads
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


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
