"""The meaning of `--output spark:FORMAT:PATH?schema=…&option=value`, and checks that find failures before the start.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from megaflow.errors import StoreError, UsageError
from megaflow.python_executable import named_python
from megaflow.quick_dataclass import dataclass
from megaflow.rows.ddl import EXAMPLE, parse_ddl, schema_json
from megaflow.spark.preflight import check_installation
from megaflow.spark.push import VARIABLE
from megaflow.spark.query_spec import FILE_FORMATS, TRIGGER_MAX, check_format, read_options, seconds_of

PASSING: Final = ("console", "memory", "noop")  # what they get does not outlast the job
NAMED: Final = "megaflow"  # no sink: another program reads the results by the job's name
SINKS: Final = ("console", "kafka", "memory", "noop", NAMED)
FLAG: Final = "--output "
ARROW: Final = ("pandas", "pyarrow")
PYTHON_SECONDS: Final = 60.0  # for another Python to start
BATCH: Final = re.compile(r"\d+(\.compact)?")
PROBE: Final = (  # prints the version, and the missing modules
    "import sys, importlib.util as util; "
    "print('%d.%d' % sys.version_info[:2], *(name for name in sys.argv[1:] if util.find_spec(name) is None))"
)


@dataclass(frozen=True, slots=True)
class ResultsSpec:
    """Streaming query that writes a job's results."""

    format: str
    path: str  # "" if the format has none
    schema: str  # as `StructType.json` writes it
    options: dict[str, str]
    trigger_seconds: float = 0.0  # least time from one batch to the next

    def __str__(self) -> str:
        return f"spark:{self.format}:{self.path}"

    @property
    def name(self) -> str:
        """Its name in a store."""
        return f"spark:{self.format}:{os.path.abspath(self.path) if self._is_local else self.path}"

    @property
    def _is_local(self) -> bool:
        return self.format in FILE_FORMATS and re.match(r"[A-Za-z][\w+.-]+:", self.path) is None

    def check_new(self) -> None:
        """Raise UsageError if the folder is not empty: after an earlier query, Spark would skip the first batches."""
        if self._is_local and os.path.exists(self.path) and (not os.path.isdir(self.path) or os.listdir(self.path)):
            raise UsageError(
                f"{FLAG}{self}: The folder is not empty, and does not belong to the store of a resumed job. Name a "
                "new folder."
            )

    def check_same_batches(self, checkpoint: Path) -> None:
        """Raise StoreError unless the query's checkpoint and the folder of its output are of one moment.

        Spark notes a batch in `offsets` before it writes it, in the output's `_spark_metadata` when it is written, and
        in `commits` after that. It writes no batch that the output has noted. So beside an older checkpoint it would
        leave rows out, and beside an older output, rows stay missing. Outputs that are not files of this machine are
        not compared.
        """
        if not self.is_compared or not checkpoint.exists():
            return
        planned, done = (_newest(checkpoint / name) for name in ("offsets", "commits"))
        written = _newest(Path(self.path, "_spark_metadata"))
        if done <= written <= planned:
            return
        which = "the store" if written > planned else "the output"
        raise StoreError(
            f"{FLAG}{self}: Spark's query in the store has done batch {done}, but the output has noted {written}: "
            f"{which} is an older copy, and rows would be left out. Restore both as they were at one moment, or begin "
            "with a new --state folder and a new output."
        )

    @property
    def is_compared(self) -> bool:
        """Whether `check_same_batches` can compare the output with the store."""
        return self._is_local


def _newest(folder: Path) -> int:
    """Return the highest number of a batch in a folder of Spark's, -1 if there is none."""
    names = os.listdir(folder) if folder.is_dir() else []
    return max((int(name.removesuffix(".compact")) for name in names if BATCH.fullmatch(name)), default=-1)


def parse_results_spec(output: str) -> ResultsSpec:
    """Parse a value of `--output`. Raises UsageError if it is wrong.

    >>> spec = parse_results_spec("spark:parquet:out?schema=word string, n long&compression=zstd&trigger=2")
    >>> spec.format, spec.path, spec.options, spec.trigger_seconds
    ('parquet', 'out', {'compression': 'zstd'}, 2.0)
    >>> parse_results_spec("spark:parquet:out")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: --output spark:parquet:out: The columns are missing. Add ?schema=word string, n long
    """
    body, _, query = output.partition("?")
    _, _, rest = body.partition(":")
    kind, _, path = rest.partition(":")
    text = f"{FLAG}{output}"
    if not kind:
        raise UsageError(f"{text}: must be spark:FORMAT:PATH?schema=COLUMNS, as in spark:parquet:OUT?schema={EXAMPLE}.")
    check_format(text, kind, path, SINKS)
    options = read_options(text, query)
    columns = options.pop("schema", None)
    if columns is None:
        raise UsageError(f"{text}: The columns are missing. Add {'&' if query else '?'}schema={EXAMPLE}")
    try:
        schema = schema_json(parse_ddl(columns))
    except UsageError as error:
        raise UsageError(f"{FLAG}{body}: {error}") from None
    if kind == NAMED and options:
        raise UsageError(f"{text}: The format '{NAMED}' has no options but schema. Leave out {', '.join(options)}.")
    return ResultsSpec(kind, path, schema, options, _trigger(text, options.pop("trigger", "0")))


def check_results(spec: ResultsSpec) -> None:
    """Raise UsageError or SourceError if Spark cannot read results here: it has no Arrow for them, or cannot start."""
    if spec.format not in FILE_FORMATS:
        check_arrow(f"{FLAG}{spec}")
    check_installation()


def missing_for_arrow() -> list[str]:
    """Return the modules for Arrow that are not installed here."""
    return [name for name in ARROW if importlib.util.find_spec(name) is None]


def has_arrow() -> bool:
    """Return whether Spark can and should read results by Arrow."""
    return not missing_for_arrow() and os.environ.get(VARIABLE) != "rows"


def check_arrow(what: str) -> None:
    """Raise UsageError if there is no Arrow for these results."""
    if missing := missing_for_arrow():
        raise UsageError(
            f"{what}: Spark reads results by Arrow, but {' and '.join(missing)} cannot be imported here. Install "
            "it here and on Spark's executors: pip install 'megaflow[arrow]'"
        )


def check_python(what: str, python: str) -> None:
    """Raise UsageError unless the Python that a session starts on this machine can read results.

    `python` is the session's `pythonExec`. If it was not set, it is the `python3` on PATH, which may lack everything
    that is installed here. If it is not the current Python, it is started and asked; this blocks until it answers.
    """
    path = shutil.which(python)
    if path is not None and os.path.abspath(path) == os.path.abspath(named_python()):
        return
    lack = "which does not exist" if path is None else _what_lacks(path)
    if lack:
        raise UsageError(
            f"{what}: To read results, Spark starts {path or python} on this machine, {lack}. Set "
            f"PYSPARK_PYTHON={named_python()} before the session starts."
        )


def _what_lacks(path: str) -> str:
    """Return what a Python lacks, "" if nothing."""
    try:
        told = subprocess.run(
            [path, "-c", PROBE, *ARROW], capture_output=True, text=True, timeout=PYTHON_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"which does not run ({error})"
    version, *missing = told.stdout.split() or [""]
    if told.returncode or not version:
        said = told.stderr.strip().splitlines()
        return f"which does not run ({said[-1] if said else f'exit code {told.returncode}'})"
    own = "{}.{}".format(*sys.version_info)
    if version != own:
        return f"which is Python {version}, but this is {own}"
    return f"which has no {' and no '.join(missing)}" if missing else ""


def _trigger(text: str, trigger: str) -> float:
    seconds = seconds_of(trigger)
    if not 0.0 <= seconds <= TRIGGER_MAX:
        raise UsageError(f"{text}: trigger must be a number of seconds up to {TRIGGER_MAX:g}, not {trigger!r}.")
    return seconds
