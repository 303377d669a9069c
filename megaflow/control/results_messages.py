"""What the launcher and the readers of its results in Spark say to each other (role "results").

    reader, in the driver              launcher
    Latest: all before is done   ──▶   Offset, as soon as there is more; meanwhile the reader asks anew
    in a task
    Take: a row                  ──▶   ResultRows: the pack that has it
    Take: the row after that     ──▶   ResultRows: the pack behind it
    any                          ◀──   ResultsRefused: the query cannot go on

A place is a number of rows, see `megaflow.job.launcher.results_log`. A reader asks one question after another by a
connection, each task by one of its own; nothing but `Latest` changes anything, and that only what is let go. So it does
no harm if a task is run twice, or is left in the middle.

Both sides know who they talk to: the connection begins with the handshake of the job's secret. What comes is checked
for its shape, and nothing of it is unpickled.

The launcher answers `Latest` late, or not at all: the reader asks anew after a moment, by the next number, and passes
over answers to earlier ones. So neither side needs to know the clock of the other.
"""

from megaflow.quick_dataclass import dataclass

RESULTS_ROLE = "results"


@dataclass(frozen=True, slots=True)
class Latest:
    """Ask up to where may be read. This says that Spark has done with all before a place; None: it does not say."""

    number: int  # comes back in the answer; an earlier one that was not answered is not any more
    after: int | None


@dataclass(frozen=True, slots=True)
class Offset:
    """The place up to which the next batch may go; it is the one that was asked about if that is the last one."""

    number: int
    place: int
    ended: bool  # nothing comes after it


@dataclass(frozen=True, slots=True)
class Take:
    """Ask for the row at a place."""

    place: int


@dataclass(frozen=True, slots=True)
class ResultRows:
    """The rows that came together with it."""

    start: int  # the place of the first
    data: bytes  # see `megaflow.control.result_rows`


@dataclass(frozen=True, slots=True)
class ResultsRefused:
    """Why there is no answer."""

    reason: str
