"""Log records and prints as JSON: one object per line, whatever is printed."""

import datetime
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job import log_records
from megaflow.job.launcher.processes.printed_lines import PrintedLines
from megaflow.job.log_records import (
    MARK,
    RECORD_BYTES_MAX,
    JsonForm,
    LogPlace,
    line_of,
    marked_line,
    places,
    plain_line,
    record_of,
    set_up,
    settle,
)
from megaflow.job.script_logging import print_own_lines

ROOT = Path(__file__).parents[2] / "megaflow"
FIELDS = ["time", "level", "logger", "message", "job", "worker", "attempt", "epoch", "exception"]


@pytest.fixture
def clean() -> Iterator[logging.Logger]:
    """A logging module without any setup."""
    root, manager = logging.root, logging.root.manager
    before = root.handlers[:], root.level, manager.loggerDict, logging.lastResort, places.here
    root.handlers[:], manager.loggerDict = [], {}
    yield logging.getLogger("shop.orders")
    root.handlers[:], manager.loggerDict, logging.lastResort, places.here = before[0], before[2], before[3], before[4]
    root.setLevel(before[1])
    logging.captureWarnings(False)


def test_a_record_has_all_fields(clean: logging.Logger) -> None:
    places.here = LogPlace("count", 3, 2, lambda: 17)
    try:
        raise ValueError("é")
    except ValueError:
        record = logging.LogRecord("shop.orders", logging.ERROR, "a.py", 1, "saw %s", ("ü",), sys.exc_info())
    line = JsonForm().format(record)
    found = json.loads(line)
    assert list(found) == FIELDS and "\n" not in line and line.isascii()
    time = datetime.datetime.fromisoformat(found["time"])
    assert abs(time.timestamp() - record.created) < 0.001
    assert list(found.values())[1:8] == ["ERROR", "shop.orders", "saw ü", "count", 3, 2, 17]
    assert found["exception"].endswith("ValueError: é")


@given(st.text())
def test_any_text_is_one_line_that_parses(text: str) -> None:
    line = line_of(text, LogPlace())
    assert json.loads(line)["message"] == text and len(line.splitlines()) == 1


def test_a_call_with_wrong_arguments_is_a_record() -> None:
    record = logging.LogRecord("shop", logging.WARNING, "a.py", 7, "%d of them", ("x",), None)
    found = json.loads(JsonForm().format(record))
    assert (found["level"], found["message"]) == ("WARNING", "%d of them")
    assert found["exception"].startswith("TypeError: ") and found["exception"].endswith("a.py:7")


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 500_000])
def test_a_long_record_arrives_whole_or_says_what_was_cut(text: str) -> None:
    record = logging.LogRecord("shop", logging.ERROR, "a.py", 1, text, (), None)
    sent = JsonForm(MARK).format(record).encode() + b"\n"
    lines = PrintedLines(lambda worker: "", lambda worker: LogPlace("count", worker, 1))
    shown = b"".join(lines.take(sent[at : at + 65_536]) for at in range(0, len(sent), 65_536)).splitlines()
    assert len(shown) == 1 and len(sent) <= RECORD_BYTES_MAX
    found = json.loads(shown[0])
    assert found["level"] == "ERROR"
    assert found["message"] == text or ("460,000 characters were cut" in found["message"] and len(text) == 500_000)


def test_a_long_printed_line_becomes_several_records() -> None:
    lines = marked_line("x" * 100_000, None).split("\n")
    texts = [json.loads(line.removeprefix(MARK))["message"] for line in lines]
    assert len(texts) == 3 and "".join(texts) == "x" * 100_000
    assert plain_line("x" * 100_000, None).count(MARK) == 0


def test_a_printed_line_has_the_last_state_of_a_progress_bar() -> None:
    assert json.loads(plain_line("\r10%\r90%\r100%", None))["message"] == "100%"
    lines = PrintedLines(lambda worker: "", lambda worker: LogPlace("count", worker, 1))
    assert json.loads(lines.take(b"\r10%\r100%\r\n"))["message"] == "100%"


@given(st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\r", b"")), max_size=10), st.integers(0, 30))
def test_each_line_of_a_process_becomes_an_object(pieces: list[bytes], cut: int) -> None:
    lines = PrintedLines(lambda worker: "worker 3: ", lambda worker: LogPlace("count", worker, 1))
    marked = marked_line("saw a", None).encode()
    shown = b"".join([*map(lines.take, pieces), lines.take(b"\n" + marked[:cut] + b"\n" + marked + b"\n")])
    found = [json.loads(line) for line in (shown + lines.finish()).splitlines()]
    assert all(list(each) == FIELDS for each in found) and found[-1]["message"] == "saw a"
    whole = b"".join(pieces).decode(errors="backslashreplace")
    assert "".join(each["message"] for each in found[:-2]).startswith(whole.split("\n")[0][:1])


def test_a_line_of_another_program_has_the_place_of_its_process() -> None:
    lines = PrintedLines(lambda worker: "", lambda worker: LogPlace("count", 3 if worker is None else worker, 1))
    [line] = lines.take(b"raw \xff\n", is_alone=True).splitlines()
    found = json.loads(line)
    assert (found["message"], found["logger"], found["worker"]) == ("raw \\xff", "print", 3)
    gap = json.loads(lines.gap(1234))
    assert (gap["message"], gap["level"]) == ("1,234 lines were left out", "WARNING")
    lines.take(marked_line("saw b", None).encode() + b"\n")
    assert lines.last() == "raw \\xff\nsaw b"


def test_a_marked_line_stays_as_it_is() -> None:
    line = marked_line("a", None)
    assert line.startswith(MARK) and marked_line(line, None) == line
    assert json.loads(plain_line("a", None))["message"] == json.loads(plain_line(line, None))["message"] == "a"
    assert record_of(b"\x1e[1]") is None


def test_the_level_holds_for_loggers_without_handlers(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.root.handlers[:] = []  # pytest's
    set_up("info", "text")
    settle("info", "text", is_loaded=True)
    logging.getLogger("library").addHandler(logging.NullHandler())
    for log in (clean, logging.getLogger("library")):
        log.info("a word")
        log.debug("hidden")
    assert capsys.readouterr().err == "INFO shop.orders: a word\nINFO library: a word\n"


def test_the_setup_of_the_program_keeps_its_format(clean: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logging.root.handlers[:] = []  # pytest's
    set_up("warning", "text")
    logging.basicConfig(level=logging.DEBUG, format="app: %(message)s")
    settle("warning", "text", is_loaded=True)
    clean.info("hidden")
    clean.warning("once")
    assert capsys.readouterr().err == "app: once\n"


def test_json_takes_over_the_handlers_of_the_console(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    logging.root.handlers[:] = []  # pytest's
    print_own_lines("megaflow.timely.communication", logging.WARNING)
    set_up(None, "json")
    logging.basicConfig(stream=sys.stdout, format="app: %(message)s")
    clean.addHandler(logging.FileHandler(tmp_path / "log"))
    settle(None, "json", is_loaded=True)
    clean.warning("once")
    logging.getLogger("megaflow.timely.communication").warning("closed")
    shown = capsys.readouterr()
    assert [json.loads(line)["message"] for line in shown.err.splitlines()] == ["once", "closed"] and shown.out == ""
    assert (tmp_path / "log").read_text() == "once\n"


@pytest.mark.parametrize("has_own", [False, True])
def test_warnings_are_records_before_and_after_a_program_is_loaded(
    clean: logging.Logger, capsys: pytest.CaptureFixture[str], has_own: bool
) -> None:
    logging.root.handlers[:] = []  # pytest's
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up(None, "json")
        warnings.warn("at the top", stacklevel=1)
        if has_own:
            logging.basicConfig(format="app: %(message)s")
        settle(None, "json", is_loaded=True)
        warnings.warn("in a fold", stacklevel=1)
        logging.captureWarnings(False)
    found = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(each["logger"], each["level"]) for each in found] == [("py.warnings", "WARNING")] * 2
    assert "at the top" in found[0]["message"] and "in a fold" in found[1]["message"]


def test_without_options_nothing_is_set_up(clean: logging.Logger) -> None:
    logging.root.handlers[:] = []  # pytest's
    before = logging.lastResort
    set_up(None, "text")
    settle(None, "text", is_loaded=True)
    assert logging.lastResort is before and not logging.root.handlers and logging.root.level == logging.WARNING


def test_loggers_have_the_names_of_packages() -> None:
    found = 0
    for path in ROOT.rglob("*.py"):
        package = ".".join(path.relative_to(ROOT.parent).parent.parts)
        for name in re.findall(r'^\w+ = logging\.getLogger\("(.*?)"\)', path.read_text(), re.MULTILINE):
            found += 1
            assert f"{package}.".startswith(f"{name}.") or name == f"{package}.http", (path, name)
    assert found > 10 and log_records.__name__.startswith("megaflow.job.")
