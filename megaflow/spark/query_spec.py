"""The meaning of `--lines spark:FORMAT:PATH?option=value&…` and `--rows NAME=spark:…`."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal, TypeAlias
from urllib.parse import parse_qsl

from megaflow.errors import UsageError, similar
from megaflow.quick_dataclass import dataclass

FILE_FORMATS = ("text", "csv", "json", "parquet", "orc", "xml", "avro", "delta")
OTHER_FORMATS = ("kafka", "rate", "rate-micro-batch", "socket")
NOT_READ_AGAIN = ("socket",)
FILES_PER_BATCH = "64"  # bounds the data staged at once; Spark's own default is all existing files
TRIGGER_SECONDS = 0.2  # without a pause Spark lists an idle folder all the time: 45 % of a core, against 6 %
TRIGGER_MAX = 86_400.0  # seconds
TIME_ZONE = "spark.sql.session.timeZone"  # setting of a session
EXAMPLE = "spark:text:FOLDER"
UNORDERED = "unordered"  # option of a program that needs no order
ROWS_EXAMPLE = "orders=spark:parquet:FOLDER"


TimeMode: TypeAlias = Literal["", "None", "ProcessingTime", "EventTime"]
"""The time that timers follow, in Spark's words; "": the batches are not whole, see `spark_commits`."""


@dataclass(frozen=True, slots=True)
class SparkSpec:
    """A Structured Streaming source and when to ask it for more."""

    format: str
    path: str = ""  # "" if the format has none
    options: dict[str, str] = field(default_factory=dict)
    trigger_seconds: float | None = TRIGGER_SECONDS  # None: read the present data, then end
    unordered: bool = False  # a batch may enter the stream before the previous batch has entered completely
    select: str = ""  # the columns, in SQL; "" for all
    where: str = ""  # condition for rows, in SQL, on the columns of the source; "" for all

    def __str__(self) -> str:
        return f"spark:{self.format}:{self.path}"


@dataclass(frozen=True, slots=True)
class RowFrames:
    """Inputs of rows of a job."""

    frames: Mapping[str, SparkSpec | Any]  # name -> a source, or a DataFrame
    trigger_seconds: float | None = TRIGGER_SECONDS  # of streaming DataFrames; None: read the present data, then end
    time_mode: TimeMode = ""  # unless "", batches are whole, and a streaming DataFrame gives the watermark
    first: str = ""  # a batch DataFrame whose rows all enter the stream before those of other inputs; "": none
    is_of_a_query: bool = False  # they are those of a stateful frame, whose user gave them no names

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, sorted."""
        return tuple(sorted(self.frames))

    def __str__(self) -> str:
        return ", ".join(f"the rows {name!r}" for name in self.names)


def sources_of(lines: SparkSpec | RowFrames | Any) -> dict[str, SparkSpec | Any]:
    """Return the source of each input, sorted by name; "" is the name of lines."""
    return {name: lines.frames[name] for name in lines.names} if isinstance(lines, RowFrames) else {"": lines}


def is_a_batch(source: SparkSpec | Any) -> bool:
    """Tell whether a source is a batch DataFrame."""
    return not getattr(source, "isStreaming", True)


def parse_row_specs(given: Iterable[str]) -> dict[str, SparkSpec]:
    """Parse the values of `--rows`, each NAME=spark:FORMAT:PATH. Raises UsageError.

    >>> parse_row_specs(["orders=spark:json:in/?schema=id LONG&where=id > 5"])["orders"].where
    'id > 5'
    """
    specs: dict[str, SparkSpec] = {}
    for text in given:
        name, _, rest = text.partition("=")
        if not (name.isidentifier() and rest.startswith("spark:")):
            raise UsageError(f"--rows {text}: must be NAME=spark:FORMAT:PATH, such as {ROWS_EXAMPLE}.")
        if name in specs:
            raise UsageError(f"--rows {text}: The rows {name!r} are given twice.")
        specs[name] = parse_spark_spec(rest, f"--rows {name}=")
    return specs


def parse_spark_spec(text: str, flag: str = "--lines ") -> SparkSpec:
    """Parse a specification that begins with `spark:` and belongs to this flag. Raises UsageError for a wrong one.

    Options are percent-decoded (a + stays) and passed to Spark, except `trigger`, `unordered`, `select` and `where`. A
    format outside the list is a plug-in of Spark, named by its class.

    >>> spec = parse_spark_spec("spark:text:books/?trigger=availableNow")
    >>> spec.format, spec.path, spec.options, spec.trigger_seconds
    ('text', 'books/', {'maxFilesPerTrigger': '64'}, None)
    >>> spec = parse_spark_spec("spark:rate:?rowsPerSecond=5&trigger=1.5&unordered&select=value + 1 AS n")
    >>> spec.options, spec.trigger_seconds, spec.unordered, spec.select
    ({'rowsPerSecond': '5'}, 1.5, True, 'value + 1 AS n')
    >>> parse_spark_spec("spark:txt:books/")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: --lines spark:txt:books/: Spark has no format 'txt'; did you mean 'text'?
    """
    body, _, query = text.partition("?")
    scheme, _, rest = body.partition(":")
    kind, _, path = rest.partition(":")
    text = f"{flag}{text}"
    if scheme != "spark" or not kind:
        raise _wrong(text, f"must be spark:FORMAT:PATH, such as {EXAMPLE}")
    check_format(text, kind, path)
    parts = query.split("&")
    options = read_options(text, "&".join(part for part in parts if part != UNORDERED))
    trigger_seconds = _trigger_seconds(text, options.pop("trigger", None))
    if kind in FILE_FORMATS and "maxBytesPerTrigger" not in options:
        options.setdefault("maxFilesPerTrigger", FILES_PER_BATCH)
    select, where = options.pop("select", ""), options.pop("where", "")
    return SparkSpec(kind, path, options, trigger_seconds, UNORDERED in parts, select, where)


def spark_spec_of(path: str) -> str | None:
    """Return the specification that was probably meant: the text lacks `spark:` before a format, or misspells it.

    >>> spark_spec_of("kafka:words"), spark_spec_of("csv:in"), spark_spec_of("kafka"), spark_spec_of("sprak:text:in")
    ('spark:kafka:?kafka.bootstrap.servers=HOST:PORT&subscribe=words', 'spark:csv:in', None, 'spark:text:in')
    """
    kind, colon, rest = path.partition(":")
    if ":" in rest and similar(kind, ("spark",)):
        return f"spark:{rest}"
    if not colon or kind not in FILE_FORMATS + OTHER_FORMATS:
        return None
    if kind == "kafka" and not rest.startswith("?"):
        return f"spark:kafka:?kafka.bootstrap.servers=HOST:PORT&subscribe={rest or 'TOPIC'}"
    return f"spark:{path}"


def check_format(text: str, kind: str, path: str, others: tuple[str, ...] = OTHER_FORMATS) -> None:
    """Raise UsageError if the format is neither for files nor in `others`, or if its path is missing or too much."""
    if kind in FILE_FORMATS and not path:
        raise _wrong(text, f"format '{kind}' reads files from a folder: spark:{kind}:FOLDER")
    if kind in others and path:
        raise _wrong(text, f"format '{kind}' has no path (found {path!r}), only options: spark:{kind}:?option=value")
    if kind not in FILE_FORMATS + others and "." not in kind:
        near = similar(kind, FILE_FORMATS + others)
        known = ", ".join(FILE_FORMATS + others)
        hint = f"did you mean '{near}'?" if near else f"it must be one of {known}, or the class of a plug-in"
        raise _wrong(text, f"Spark has no format '{kind}'; {hint}")


def read_options(text: str, query: str) -> dict[str, str]:
    """Return the options after the `?`. Raises UsageError."""
    try:
        pairs = parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _wrong(text, f"the options {query!r} must be option=value, joined by &") from None
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options:
            raise _wrong(text, f"option '{name}' is given twice")
        if name == UNORDERED:
            raise _wrong(text, f"option '{name}' takes no value")
        if name.lower() == "checkpointlocation":
            raise _wrong(text, "the job chooses the checkpoint; leave out 'checkpointLocation'")
        options[name] = value
    return options


def _trigger_seconds(text: str, trigger: str | None) -> float | None:
    if trigger is None:
        return TRIGGER_SECONDS
    if trigger.lower() == "availablenow":
        return None
    seconds = seconds_of(trigger)
    if not 0.001 <= seconds <= TRIGGER_MAX:
        raise _wrong(text, f"trigger must be availableNow or a number of seconds from 0.001 to 86400, not {trigger!r}")
    return seconds


def seconds_of(text: str) -> float:
    """Return a number of seconds. -1.0 for any other text."""
    try:
        return float(text)
    except ValueError:
        return -1.0


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(f"{text}: {why}")
