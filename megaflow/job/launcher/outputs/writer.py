"""The destination of a job's outputs: the base class of writers, and those that keep nothing or a list.

The output queue calls a writer with the epochs that the merge closes (`epoch_merge`). `output_specs` has the writers of
the command line.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megaflow.control.launcher_messages import Ended, ResultsAt, WhereResults
from megaflow.durable.commits import OutputLength
from megaflow.errors import MegaflowError
from megaflow.job.spec import Form


class Writer:
    """Destination of closed epochs. This base class takes no records, and has nothing to flush or close."""

    form: Form = "nothing"  # what it takes: records, or lines rendered by the workers
    name = "none"  # in the store
    is_kept = True  # whether the output survives a crash, or need not
    is_in_memory = False  # of this process: a run that resumes begins with an empty output
    unit = "byte"  # of the output's length
    report: Callable[[str], None] = staticmethod(lambda text: None)  # prints for the user; any thread
    freed: Callable[[], None] = staticmethod(lambda: None)  # called when `unread_bytes` has become less; any thread

    def hold(self, take_over: bool = False) -> int:
        """Lock the output while the writer is open; return the output's length before the job writes.

        With `take_over`, a job that writes there now is also locked out, from `cut_back` on. Otherwise raises
        OutputError for such a job.
        """
        return 0

    @property
    def parts(self) -> Mapping[str, "Writer"]:
        """The writer of each output by name; "" names the output of the stream that the dataflow function returns."""
        return {"": self}

    @property
    def forms(self) -> tuple[tuple[str, Form], ...]:
        """The name and form of each output."""
        return tuple((name, part.form) for name, part in self.parts.items())

    def lengths(self, length: int) -> tuple[OutputLength, ...]:
        """Return the store's records of outputs whose total length is `length`."""
        return (OutputLength(self.name, 0 if self.is_in_memory else length),)

    def check_content(self, said: Sequence[OutputLength]) -> None:
        """Raise StoreError if bytes that the store records as durable have changed. Call after `hold`."""

    def length_of(self, said: Sequence[OutputLength]) -> int:
        """Return the total length of the outputs in the store's records `said`."""
        return sum(each.length for each in said)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write the records of one epoch; epochs increase."""

    @property
    def unread_bytes(self) -> int:
        """The bytes that are written and wait for their reader; they count like bytes that wait to be written."""
        return 0

    def bytes_of(self, records: list[Any]) -> int:
        """Return the memory that waiting records take, in bytes; 0 if they stay in memory anyway."""
        return 0 if self.form == "records" else sum(map(len, records))

    def flush(self) -> None:
        """Make the written records visible; at the end of a job that has not failed, also that there are none."""

    def sync(self) -> int:
        """Make the written records durable; return the output's length: bytes of a file, records in memory."""
        return 0

    def cut_back(self, length: int) -> None:
        """Remove what was written beyond `length`, as far as that is possible."""

    def committed(self, length: int) -> None:
        """Note that a commit with the output up to `length` is durable. Any thread."""

    def note_end(self, ended: Ended) -> None:
        """Note the last report of a worker."""

    def where(self, asked: WhereResults) -> ResultsAt:
        """Return where another program reads the output as a stream of Spark. Any thread; returns quickly."""
        return ResultsAt(
            refused="It was started without results for Spark. Start it with --output 'spark:megaflow?schema=COLUMNS', "
            "or by megaflow.spark.run(frames, dataflow, schema=COLUMNS)."
        )

    @contextlib.contextmanager
    def served(self, secret: bytes, fail: Callable[[MegaflowError], None]) -> Iterator[None]:
        """Serve the output's reader through a port of this launcher during the block; pass its error to `fail`."""
        yield

    def waits_text(self) -> str:
        """Return what the writer has been waiting for, if for long; "" for nothing. Any thread."""
        return ""

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until the reader has everything. Call it after the last `write`. Raises the reader's error.

        `pause` waits for a number of seconds, and raises to end the wait.
        """

    def close(self) -> None:
        """Flush, and close what is open."""


class NothingWriter(Writer):
    """`--output none`: the workers send no records at all."""


class ListWriter(Writer):
    """Writer that keeps the records in a list, for `megaflow.run`."""

    form: Form = "records"
    name = "records"
    is_in_memory = True

    def __init__(self, records: list[Any] | None = None) -> None:
        """Append to `records`; None: to a new list."""
        self.records: list[Any] = [] if records is None else records
        self._before = len(self.records)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Append the records to the list."""
        self.records += records

    def sync(self) -> int:
        """Return how many records this job has written."""
        return len(self.records) - self._before

    def cut_back(self, length: int) -> None:
        """Drop the records beyond `length`."""
        del self.records[self._before + length :]
