"""Messages between the launcher and the readers of its results in Spark (role "results").

    reader, in the driver              launcher
    Open, of a stateful frame    ──▶   Opened, once the job has started
    Claim, in another program    ──▶   Claimed, see `megaflow.job.launcher.outputs.results_consumer`
    Latest: all before is done   ──▶   Offset, as soon as there is more; meanwhile the reader asks anew
    AskFigures, for metrics      ──▶   JobFigures, within a moment
    in a task
    Take: a row                  ──▶   ResultRows: the pack that has it
    Take: the row after that     ──▶   ResultRows: the pack behind it
    any                          ◀──   ResultsRefused: the query cannot go on

A place is a number of rows, see `megaflow.job.launcher.outputs.results_log`. A reader sends one question at a time over
its connection, and each task has a connection of its own. Only `Latest` changes anything: it releases rows that Spark
is done with. So a task may run twice or stop in the middle without harm.

Both sides are authenticated: the connection begins with the handshake of the job's secret. The receiver checks the
shape of every message and unpickles nothing.

The launcher may answer `Latest` late, or not at all. So the reader asks again after a moment, with the next number. It
ignores answers to earlier questions, unless one reports that the job has ended. So neither side needs to know the clock
of the other.
"""

from megaflow.quick_dataclass import dataclass

RESULTS_ROLE = "results"


@dataclass(frozen=True, slots=True)
class Latest:
    """Ask how far Spark may read, and report that it is done with all rows before `after`; None: report nothing."""

    number: int  # the answer repeats it; the launcher forgets an earlier unanswered number
    after: int | None


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of the next batch; the place that was asked about, if there are no more rows."""

    number: int
    place: int
    ended: bool  # no rows follow it


@dataclass(frozen=True, slots=True)
class Open:
    """Ask for the job behind a stateful frame, which starts for this reader's query."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The job that the reader reads."""

    job: str  # as offsets name it


@dataclass(frozen=True, slots=True)
class Claim:
    """Ask for the results as their only consumer, over the connection that carries the questions."""

    consumer: str  # its name
    holder: str  # its program, for errors


@dataclass(frozen=True, slots=True)
class Claimed:
    """The reader is the consumer, unless another one is connected."""

    taken: str  # why it is not, for now; "": it is


@dataclass(frozen=True, slots=True)
class AskFigures:
    """Ask for the job's figures."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """The job's figures, usually new, otherwise about a second old. None: it is not known yet.

    Spark's metrics have the names of the fields.
    """

    rows_in: int | None = None  # read since the job began, or since its last restart
    state_rows: int | None = None  # keys with a state, of all operators
    state_bytes: int | None = None  # of these states, about
    late_rows: int | None = None  # records that were left out as late, counted like `rows_in`
    restarts: int | None = None  # after the loss of processes
    workers: int | None = None
    watermark: str | None = None  # as Spark writes times


@dataclass(frozen=True, slots=True)
class Take:
    """Ask for the row at a place."""

    place: int


@dataclass(frozen=True, slots=True)
class ResultRows:
    """The pack that contains the requested row."""

    start: int  # the place of the first row
    data: bytes  # see `megaflow.rows.result_rows`


@dataclass(frozen=True, slots=True)
class ResultsRefused:
    """The reason why there is no answer."""

    reason: str
