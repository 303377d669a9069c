"""What is said of lines that tasks of Spark stage, until a `CommitBatch` names those that enter the stream.

    executor ─ StageLines…, StageEnd ─▶ worker process (role "ingest") ─ Staged | Refused ─▶ executor
    coordinator ─ StagedAsk ─▶ workers ─ StagedAnswer ─▶ coordinator        before it issues the `CommitBatch`

A task attempt sends all its lines over one connection, and their end; what an attempt has not ended is dropped with
its connection. The receiver checks every record, by `megaflow.control.shapes`; none is trusted for its type.
"""


from megaflow.control.messages import CommitBatch
from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StageLines:
    """Lines of one task attempt, kept aside until a commit names the attempt: `text.split(separator)`.

    Or packed rows: bytes (see `megaflow.control.packed_rows`), and the separator is empty.
    """

    query: str
    run: str
    batch: int
    partition: int
    attempt: int
    worker: int
    lines: int  # at least one
    text: str | bytes
    separator: str = "\n"  # is in `text` between lines and nowhere else; no two of it could overlap


@dataclass(frozen=True, slots=True)
class StageEnd:
    """The attempt has sent all; `lines` is how many. Answered by `Staged` or `Refused`."""

    query: str
    run: str
    batch: int
    partition: int
    attempt: int
    worker: int
    lines: int


@dataclass(frozen=True, slots=True)
class Staged:
    """The worker holds all lines of the attempt."""

    attempt: int
    lines: int


@dataclass(frozen=True, slots=True)
class StagedAsk:
    """The coordinator asks a worker whether it holds all lines that a batch is to have of it."""

    asker: int  # the worker that coordinates
    id: int
    commit: CommitBatch


@dataclass(frozen=True, slots=True)
class StagedAnswer:
    """A worker's answer to a `StagedAsk`."""

    asker: int
    id: int  # of the question
    missing: str | None  # what it does not hold; None: it holds all
