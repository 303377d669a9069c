"""Workers log with the setup of the script that starts the job."""

import io
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.launcher.program.function_pickler import pickle_by_value
from megaflow.job.script_logging import capture, print_own_lines, take_over
from megaflow.spark.spark_session import quiet_connections
from tests.results import check_equal

SCRIPT = """
import logging
import sys
import megaflow
{setup}
log = logging.getLogger("app")

def shout(word):
    log.info("saw %s", word)
    log.debug("hidden")
    return word.upper()

def dataflow(flow):
    return flow.lines().map(shout)

print(megaflow.run(dataflow, lines=["a", "b"], **eval(sys.argv[1])))
"""
BASIC = 'logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")'
FORMATTER = """
class Loud(logging.Formatter):
    def format(self, record):
        return "LOUD " + record.getMessage()
handler = logging.StreamHandler()
handler.setFormatter(Loud())
logging.getLogger("app").addHandler(handler)
logging.getLogger("app").setLevel("INFO")
logging.getLogger("app").propagate = False
"""
TO_A_FILE = 'logging.basicConfig(level=logging.INFO, filename="app.log", format="%(message)s")'


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("setup", "arguments", "lines"),
    [
        (BASIC, "{}", ["INFO app: saw a", "INFO app: saw b"]),
        (BASIC, "{'workers': 2}", ["worker N: INFO app: saw a", "worker N: INFO app: saw b"]),
        (FORMATTER, "{}", ["LOUD saw a", "LOUD saw b"]),
        (TO_A_FILE, "{}", ["saw a", "saw b"]),
        ("", "{}", []),
    ],
)
def test_info_lines_of_workers_appear_once(tmp_path: Path, setup: str, arguments: str, lines: list[str]) -> None:
    (tmp_path / "app.py").write_text(SCRIPT.format(setup=setup))
    run = [sys.executable, "app.py", arguments]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=750, check=True)
    check_equal(done.stdout, "['A', 'B']\n")
    said = [line.replace("worker 0", "worker N").replace("worker 1", "worker N") for line in done.stderr.splitlines()]
    assert [line for line in said if "saw" in line] == lines and "hidden" not in done.stderr, done.stderr


@pytest.fixture
def clean() -> Iterator[logging.Logger]:
    """A logging module without any setup, and a logger to set up."""
    root, manager = logging.root, logging.root.manager
    before = root.handlers[:], root.level, manager.disable, dict(manager.loggerDict), root.filters[:]
    root.handlers[:], root.filters[:], manager.loggerDict = [], [], {}  # type: ignore[assignment]
    yield logging.getLogger("app")
    root.handlers[:], root.filters[:], manager.loggerDict = before[0], before[4], before[3]  # type: ignore[assignment]
    root.setLevel(before[1])
    logging.disable(before[2])


def in_a_worker(capsys: pytest.CaptureFixture[str]) -> None:
    """Make this process look like a worker that has set up its own logging."""
    captured = capture(pickle_by_value)
    logging.root.handlers[:], logging.root.manager.loggerDict = [], {}  # type: ignore[assignment]
    logging.root.setLevel(logging.WARNING)
    take_over(captured)
    capsys.readouterr()


def test_nothing_is_captured_without_a_setup(clean: logging.Logger) -> None:
    clean.addHandler(logging.NullHandler())
    assert capture(pickle_by_value) == b""


def test_levels_and_filters_are_taken_over(clean: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    handler.setLevel(logging.ERROR)
    handler.addFilter(lambda record: "secret" not in record.getMessage())
    logging.getLogger().addHandler(handler)
    clean.setLevel(logging.DEBUG)
    logging.getLogger("quiet").disabled = True
    in_a_worker(capsys)
    worker = logging.getLogger("app")
    assert worker.level == logging.DEBUG
    for say in (worker.info, worker.error):
        say("a word")
        say("a secret")
    logging.getLogger("quiet").error("a word")
    assert capsys.readouterr().err == "a word\n"


def test_a_second_handler_for_a_file_prints_nothing_twice(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))
    file = logging.FileHandler(tmp_path / "app.log")
    clean.addHandler(file)
    clean.addHandler(logging.StreamHandler(io.StringIO()))
    in_a_worker(capsys)
    logging.getLogger("app").warning("once")
    file.close()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "once\n") and not (tmp_path / "app.log").read_text()


def test_a_logger_that_the_worker_has_set_up_stays(clean: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    clean.addHandler(logging.StreamHandler())
    captured = capture(pickle_by_value)
    take_over(captured)
    assert len(clean.handlers) == 1


def test_a_formatter_that_cannot_be_pickled_is_replaced(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler, formatter = logging.StreamHandler(), logging.Formatter("%(message)s!")
    formatter.file = open(os.devnull, "w")  # type: ignore[attr-defined]  # noqa: SIM115
    handler.setFormatter(formatter)
    clean.addHandler(handler)
    in_a_worker(capsys)
    logging.getLogger("app").warning("a word")
    formatter.file.close()  # type: ignore[attr-defined]
    assert capsys.readouterr().err == "WARNING:app:a word\n"


def test_a_formatter_that_the_worker_cannot_load_is_replaced(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(Unloadable("%(message)s"))
    handler.addFilter(Unloadable.rejects)  # type: ignore[arg-type]
    clean.addHandler(handler)
    in_a_worker(capsys)
    logging.getLogger("app").warning("a word")
    assert capsys.readouterr().err == "WARNING:app:a word\n"


class Unloadable(logging.Formatter):
    """A formatter whose module is missing on a worker's machine."""

    def __reduce__(self) -> Any:
        return int, ("no number",)

    class Rejects:
        """A filter whose module is missing there."""

        def filter(self, record: logging.LogRecord) -> bool:
            return False

        def __reduce__(self) -> Any:
            return int, ("no number",)

    rejects = Rejects()


def test_captured_bytes_need_only_pickle(clean: logging.Logger) -> None:
    clean.setLevel("INFO")
    assert pickle.loads(capture(pickle_by_value))[1][0].name == "app"


def test_own_lines_are_printed_unless_a_handler_has_them(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.root.handlers[:] = []  # pytest's
    log = logging.getLogger("megaflow.job")
    print_own_lines("megaflow")
    print_own_lines("megaflow")
    log.warning("3 lines skipped")
    log.info("stopping")
    assert capsys.readouterr().err == "megaflow: 3 lines skipped\n"
    logging.getLogger("megaflow").setLevel(logging.INFO)
    log.info("stopping")
    assert capsys.readouterr().err == "megaflow: stopping\n"
    logging.getLogger().addHandler(logging.StreamHandler())
    log.warning("once")
    assert capsys.readouterr().err == "once\n"


def test_own_lines_of_nested_loggers_are_printed_once(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.root.handlers[:] = []  # pytest's
    print_own_lines("megaflow")
    print_own_lines("megaflow.timely.communication", logging.WARNING)
    logging.getLogger("megaflow.timely.communication").warning("closed")
    assert capsys.readouterr().err == "megaflow: closed\n"


def test_own_lines_on_a_broken_standard_error_raise_nothing(
    clean: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.root.handlers[:] = []  # pytest's
    print_own_lines("megaflow")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    logging.getLogger("megaflow.job").warning("3 lines skipped")


def test_own_lines_do_not_keep_the_setup_of_a_script_away(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.root.handlers[:] = []  # pytest's
    logging.getLogger("megaflow.timely.communication").setLevel(logging.ERROR)
    captured = capture(pickle_by_value)
    logging.root.manager.loggerDict = {}
    print_own_lines("megaflow.timely.communication", logging.WARNING)
    take_over(captured)
    logging.getLogger("megaflow.timely.communication").warning("closed")
    assert capsys.readouterr().err == ""


def test_own_lines_are_no_setup_of_the_script(clean: logging.Logger) -> None:
    print_own_lines("megaflow")
    with quiet_connections():
        assert capture(pickle_by_value) == b""


LATE = """
import logging
import sys
import megaflow
{setup}

def dataflow(flow):
    return flow.items().event_time(float).window(megaflow.tumbling(10), key=lambda n: n % 3).count()

print(len(megaflow.run(dataflow, items=[*range(500, 1000), *range(500)], processes=2)))
"""


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("setup", "before"),
    [("", "megaflow: "), (BASIC, "WARNING megaflow.job: "), ("logging.basicConfig()", "WARNING:megaflow.job:")],
)
def test_a_script_is_warned_of_late_records_once(tmp_path: Path, setup: str, before: str) -> None:
    (tmp_path / "app.py").write_text(LATE.format(setup=setup))
    run = [sys.executable, "app.py"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=750, check=True)
    said = [line for line in done.stderr.splitlines() if "late" in line]
    assert [line.startswith(before) for line in said] == [True, True], done.stderr
    assert "500 of 1,000 records were late and left out by 'window'" in said[-1]
