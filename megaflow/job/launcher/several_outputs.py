"""The outputs of a job together, as one writer: what is said of one holds for all of them at one moment.

1. Each output has a writer of its own, which is given its records and no others. They are made durable, cut back and
   closed together, by the one thread that writes.
2. Together they are as long as all of them are, added up. None becomes shorter but by being cut back; so how long they
   are together says how long each of them was, at all moments that were `sync`ed since.
3. A store knows each by its name and what it is written to. A job that goes on has the same, in any order; they are not
   taken for each other.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megaflow.durable.commits import OutputLength
from megaflow.errors import MegaflowError, StoreError
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.spec import Form


class SeveralOutputs(Writer):
    """The writers of outputs by name; "" is that of the stream that the dataflow function returns."""

    def __init__(self, writers: Mapping[str, Writer]) -> None:
        self._writers = dict(writers)
        self._lock = threading.Lock()  # guards the next: who writes and who commits are two threads
        self._lengths: dict[int, tuple[int, ...]] = {0: (0,) * len(writers)}  # all together -> each, in their order
        units = {writer.unit for writer in writers.values() if writer.form != "nothing"}
        self.unit = units.pop() if len(units) == 1 else "unit"
        self.is_kept = all(writer.is_kept for writer in writers.values())

    @property
    def forms(self) -> tuple[tuple[str, Form], ...]:
        """What each output is given."""
        return tuple((name, writer.form) for name, writer in self._writers.items())

    @property
    def parts(self) -> Sequence[Writer]:
        """The writers."""
        return [*self._writers.values()]

    def lengths(self, length: int) -> tuple[OutputLength, ...]:
        """Return what a store is to say of each."""
        named = zip(self._writers.items(), self._each(length), strict=True)
        return tuple(said_of(name, writer, each) for (name, writer), each in named)

    def length_of(self, said: Sequence[OutputLength]) -> int:
        """Return how long they were together of which a store says this."""
        lengths = {each.output: each.length for each in said}
        names = (said_of(name, writer, 0).output for name, writer in self._writers.items())
        return self._note([lengths.get(name, 0) for name in names])

    def hold(self, take_over: bool = False) -> int:
        """Keep others from writing to any of them; return how long they are together."""
        return self._note([writer.hold(take_over) for writer in self.parts])

    def write_to(self, output: str, epoch: int, records: list[Any]) -> None:
        """Write the records of one epoch to one of them."""
        self._writers[output].write(epoch, records)

    def flush(self) -> None:
        """Make what was written visible."""
        for writer in self.parts:
            writer.flush()

    def sync(self) -> int:
        """Make what was written to any durable; return how long they are together."""
        return self._note([writer.sync() for writer in self.parts])

    def cut_back(self, length: int) -> None:
        """Take back what was written to each after they were so long together."""
        for writer, each in zip(self.parts, self._each(length), strict=True):
            writer.cut_back(each)
        with self._lock:
            self._lengths = {together: each for together, each in self._lengths.items() if together <= length}

    def committed(self, length: int) -> None:
        """Learn that a commit is durable that has them up to this length. Any thread."""
        for writer, each in zip(self.parts, self._each(length), strict=True):
            writer.committed(each)
        with self._lock:
            self._lengths = {together: each for together, each in self._lengths.items() if together >= length}

    @contextlib.contextmanager
    def served(
        self, secret: bytes, fail: Callable[[MegaflowError], None], report: Callable[[str], None]
    ) -> Iterator[None]:
        """Have what reads one of them by a port do so during the block."""
        with contextlib.ExitStack() as stack:
            for writer in self.parts:
                stack.enter_context(writer.served(secret, fail, report))
            yield

    def waits_text(self) -> str:
        """Say what they wait for, if that takes long."""
        return "; ".join(filter(None, (writer.waits_text() for writer in self.parts)))

    def await_read(self, pause: Callable[[float], None]) -> None:
        """Wait until what reads them has all."""
        for writer in self.parts:
            writer.await_read(pause)

    def close(self) -> None:
        """Close each, whatever closing another one raises."""
        with contextlib.ExitStack() as stack:
            for writer in self.parts:
                stack.callback(writer.close)

    def _note(self, each: Sequence[int]) -> int:
        with self._lock:
            self._lengths[sum(each)] = tuple(each)
        return sum(each)

    def _each(self, length: int) -> tuple[int, ...]:
        with self._lock:
            return self._lengths[length]


def said_of(name: str, writer: Writer, length: int) -> OutputLength:
    """Return what a store says of an output of this name."""
    [said] = writer.lengths(length)
    return OutputLength(f"{name}={said.output}" if name else said.output, said.length)


def together(writers: Mapping[str, Writer]) -> Writer:
    """Return what writes outputs by name: the writer of the only one, if that has none."""
    return writers[""] if [*writers] == [""] else SeveralOutputs(writers)


def compare_outputs(path: str, said: Sequence[OutputLength], given: Sequence[OutputLength]) -> None:
    """Raise StoreError unless outputs are those of which the store at this path says this; lengths do not count."""
    now, before = ([each.output for each in some] for some in (given, said))
    if before and {*now} != {*before}:
        missing, others = [name for name in before if name not in now], [name for name in now if name not in before]
        goes = " and ".join(f"--output {name}" for name in missing or before)
        instead = f", not {' and '.join(others)}" if others else ""
        raise StoreError(
            f"The store {path} belongs to {goes}{instead}. Outputs cannot be swapped: name the same ones again, "
            "or start over with a new --state folder."
        )


def compare_lengths(said: Sequence[OutputLength], given: Sequence[OutputLength]) -> None:
    """Raise StoreError if one of these outputs is shorter now than the store says.

    >>> compare_lengths([OutputLength("jsonl:/a", 5)], [OutputLength("jsonl:/a", 7)])
    """
    now = {each.output: each.length for each in given}
    for name, length in ((each.output, each.length) for each in said):
        if now[name] < length:
            raise StoreError(
                f"--output {name} {f'has {now[name]} bytes' if now[name] else 'is gone or empty'}, but had "
                f"{length} bytes at the last checkpoint. Put back the file that this job wrote, or start over "
                "with a new --state folder."
            )

