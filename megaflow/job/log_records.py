"""`--log-level` and `--log-format`: levels and forms of the log records of a job that `megaflow run` runs.

1. Without the options, nothing here is set up: loggers and handlers of the program stay as Python or the program made
   them. Scripts that call `megaflow.run` set up logging themselves (see `megaflow.job.script_logging`).
2. Handlers of the program keep their formats in text. The options replace Python's handler of last resort. Once the
   dataflow is built, they set the level of the root logger, and give it a handler if the program has not.
3. In JSON, all that appears on standard error is one object per line. Handlers for the console get the form
   `JsonForm`. A printed line is a record of the logger `print`, and a warning one of Python's logger for warnings.
4. A worker begins each object with MARK, so that the launcher can tell it from a line that another program prints. The
   launcher makes such a line an object, and also one that begins with MARK but is cut. So every line parses.
5. A record has at most RECORD_BYTES_MAX, so that the launcher can wait for its end. A longer printed line is split into
   records. Message and traceback of a longer record of the program are cut.
6. A call such as `log.warning("%d", "x")` makes a record also: its message is the format, its exception the error.
7. Text that a carriage return overwrites is left out, as a terminal does: of a progress bar, the last state remains.
8. `worker`, `attempt` and `epoch` are null outside a worker's thread. `attempt` is that of the job's store, as in the
   events of the job; 0 without a store. `epoch` is the first one that this worker has not completed.
"""

import datetime
import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, AnyStr, Final

from megaflow.job.script_logging import OwnLines, is_console
from megaflow.quick_dataclass import dataclass

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
MARK: Final = "\x1e"  # ASCII's record separator, as in RFC 7464
PRINT: Final = "print"  # the logger of printed lines
WARNINGS: Final = "py.warnings"  # the logger of Python's warnings
RECORD_BYTES_MAX: Final = 1 << 20
PIECE_CHARACTERS: Final = 40_000  # of a message or a traceback that is too long; JSON takes at most 12 bytes for each
TEXT_FORMAT: Final = "%(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where a record was made."""

    job: str | None = None
    worker: int | None = None
    attempt: int | None = None
    epoch: Callable[[], int | None] = lambda: None


class _Places(threading.local):
    here = LogPlace()  # of threads that have set no other


places: Final = _Places()
"""`here` is the place of this thread. Workers and launcher set it, each on its own thread."""


class JsonForm(logging.Formatter):
    """Format of a record as a line of JSON."""

    def __init__(self, mark: str = "") -> None:
        super().__init__()
        self._mark = mark

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        exception = record.exc_text
        if record.exc_info and not exception:
            exception = self.formatException(record.exc_info)
        if record.stack_info:
            exception = "\n".join(filter(None, [exception, self.formatStack(record.stack_info)]))
        return self._mark + json_line(record, places.here, exception or None)


def json_line(record: logging.LogRecord, place: LogPlace, exception: str | None = None) -> str:
    """Return a record as a JSON object on one line, in ASCII, of at most RECORD_BYTES_MAX."""
    time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    try:
        message = record.getMessage()
    except Exception as error:  # logging itself would print dozens of lines in place of the record
        message = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
        failed = f"{type(error).__name__}: {error}, in the call of logging at {record.pathname}:{record.lineno}"
        exception = "\n".join(filter(None, [exception, failed]))
    fields: dict[str, Any] = {
        "time": time.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "level": record.levelname,
        "logger": record.name,
        "message": message,
        "job": place.job,
        "worker": place.worker,
        "attempt": place.attempt,
        "epoch": place.epoch(),
        "exception": exception,
    }
    line = json.dumps(fields)
    if len(line) > RECORD_BYTES_MAX:
        line = json.dumps(fields | {"message": cut(message), "exception": exception and cut(exception)})
    return line


def cut(text: str) -> str:
    """Return the beginning and the end of a text that is too long.

    >>> len(cut("a" * 1_000_000)), cut("a")
    (40033, 'a')
    """
    left_out = len(text) - PIECE_CHARACTERS
    half = PIECE_CHARACTERS // 2
    return text if left_out <= 0 else f"{text[:half]}\n… {left_out:,} characters were cut …\n{text[-half:]}"


def line_of(text: str, place: LogPlace, level: int = logging.INFO, name: str = PRINT, exception: str = "") -> str:
    """Return a text as a JSON object, now."""
    record = logging.makeLogRecord({"msg": text, "levelno": level, "levelname": logging.getLevelName(level)})
    record.name = name
    return json_line(record, place, exception or None)


def marked_line(line: str, _: object, mark: str = MARK) -> str:
    """Return the marked object for a line that this thread has printed; several if it is long.

    A marked line stays as it is.
    """
    if line.startswith(MARK):
        return line
    shown = last_state(line)
    pieces = [shown[at : at + PIECE_CHARACTERS] for at in range(0, len(shown), PIECE_CHARACTERS)] or [""]
    return "\n".join(mark + line_of(piece, places.here) for piece in pieces)


def plain_line(line: str, _: object) -> str:
    """Return the object for a line that this thread has printed, for a process whose prints no launcher reads."""
    return marked_line(line, _, "").removeprefix(MARK)


def last_state(line: AnyStr) -> AnyStr:
    r"""Return what a terminal shows of a line in the end: a carriage return begins it anew.

    >>> last_state("10%\r20%"), last_state(b"a\r"), last_state("\r")
    ('20%', b'a', '')
    """
    if isinstance(line, str):
        return line.rstrip("\r").rpartition("\r")[2]
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def default_place(place: LogPlace) -> None:
    """Set the place of the threads that have set no other."""
    _Places.here = place


def record_of(line: bytes) -> dict[str, Any] | None:
    """Return the record that a marked line holds; None if it holds none.

    >>> record_of(b'\\x1e{"message": "a"}'), record_of(b'{"message": "a"}'), record_of(b'\\x1e{"mess')
    ({'message': 'a'}, None, None)
    """
    if not line.startswith(MARK.encode()):
        return None
    try:
        record = json.loads(line[len(MARK) :])
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def set_up(level: str | None, form: str, mark: str = "", place: LogPlace | None = None) -> None:
    """Set up this process before it loads a program; do nothing without options. `place`: of its other threads."""
    if level is None and form == "text":
        return
    if place is not None:
        default_place(place)
    logging.lastResort = logging.StreamHandler()
    logging.lastResort.setFormatter(JsonForm(mark) if form == "json" else logging.Formatter(TEXT_FORMAT))
    if form == "json":
        logging.getLogger(WARNINGS).addHandler(logging.lastResort)
        logging.captureWarnings(True)
    settle(level, form, mark)


def settle(level: str | None, form: str, mark: str = "", is_loaded: bool = False) -> None:
    """Apply the options to the loggers that exist now. `is_loaded`: the program has set up its logging."""
    if level is None and form == "text":
        return
    if level is not None:
        logging.root.setLevel(level.upper())
    own = logging.lastResort
    if is_loaded and own is not None and not logging.root.handlers:  # a NullHandler would keep records from it
        logging.root.addHandler(own)
    if is_loaded and own is not None and any(map(is_console, logging.root.handlers)):
        logging.getLogger(WARNINGS).removeHandler(own)  # they go to the root's
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in logger.handlers if isinstance(logger, logging.Logger) else ():
            if isinstance(handler, OwnLines) and level is not None:
                handler.setLevel(logging.NOTSET)
            if form == "json" and (is_console(handler) or isinstance(handler, OwnLines)):
                handler.setFormatter(JsonForm(mark))
                if isinstance(handler, logging.StreamHandler):
                    handler.setStream(sys.stderr)
