"""Messages about lines that tasks of Spark stage, until a `CommitBatch` names those that enter the stream.

    executor ─ StageLines…, StageEnd ─▶ worker process (role "ingest") ─ Staged | Refused ─▶ executor
    coordinator ─ StagedAsk ─▶ workers ─ StagedAnswer ─▶ coordinator        before it issues the `CommitBatch`

A task attempt sends all its lines, and their end, over one connection. If the connection ends earlier, the worker drops
the attempt's lines. The receiver checks every record with `megaflow.control.shapes`; it trusts no record for its type.
"""


from megaflow.control.messages import CommitBatch
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class AttemptPart:
    """Part of what a task attempt stages on a worker."""

    query: str
    run: str
    batch: int
    partition: int
    attempt: int
    worker: int
    lines: int


@dataclass(frozen=True, slots=True)
class StageLines(AttemptPart):
    """Lines of one task attempt, `text.split(separator)`. The worker stages them until a commit names the attempt.

    There is at least one line. Packed rows are bytes (see `megaflow.rows.packed_rows`), with an empty separator.
    """

    text: str | bytes
    separator: str = "\n"  # occurs in `text` between lines and nowhere else; two occurrences cannot overlap


@dataclass(frozen=True, slots=True)
class StageEnd(AttemptPart):
    """The attempt has sent all of its `lines` lines; the worker answers with `Staged` or `Refused`."""


@dataclass(frozen=True, slots=True)
class Staged:
    """The worker holds all lines of the attempt."""

    attempt: int
    lines: int


@dataclass(frozen=True, slots=True)
class StagedAsk:
    """The coordinator asks a worker whether it holds all lines that it should have of a batch."""

    asker: int  # the coordinating worker
    id: int
    commit: CommitBatch


@dataclass(frozen=True, slots=True)
class StagedAnswer:
    """A worker's answer to a `StagedAsk`."""

    asker: int
    id: int  # of the question
    missing: str | None  # the part that it does not hold; None: it holds all
