"""All outputs of a job as one writer: each call applies to all of them as of the same moment.

1. Each output has its own writer, which receives only that output's records. The one thread that writes makes all
   outputs durable, cuts them back and closes them together.
2. The common length is the sum of their lengths. Outputs only grow, except when they are cut back together; then the
   common lengths beyond the cut are forgotten. So each remaining common length of a `sync` determines the length of
   each output.
3. A store knows each output by its name and its destination. A job that resumes has the same outputs, in any order, and
   none can be swapped for another.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from megaflow.durable.commits import OutputLength
from megaflow.errors import MegaflowError, StoreError
from megaflow.job.launcher.outputs.writer import Writer


class SeveralOutputs(Writer):
    """Writers of outputs by name; "" is the stream that the dataflow function returns."""

    def __init__(self, writers: Mapping[str, Writer]) -> None:
        self._writers = dict(writers)
        self._lock = threading.Lock()  # guards `_lengths`: one thread writes, another commits
        self._lengths: dict[int, tuple[int, ...]] = {0: (0,) * len(writers)}  # common length -> each, in their order
        units = {writer.unit for writer in writers.values() if writer.form != "nothing"}
        self.unit = units.pop() if len(units) == 1 else "unit"
        self.is_kept = all(writer.is_kept for writer in writers.values())

    @property
    def parts(self) -> Mapping[str, Writer]:
        """The writers."""
        return self._writers

    def lengths(self, length: int) -> tuple[OutputLength, ...]:
        """Return the entries that a store records for the outputs."""
        named = zip(self._writers.items(), self._each(length), strict=True)
        return tuple(said_of(name, writer, each) for (name, writer), each in named)

    def check_content(self, said: Sequence[OutputLength]) -> None:
        """Raise StoreError if bytes of an output that a store records as durable have changed."""
        known = {each.output: each for each in said}
        for name, writer in self._writers.items():
            if (each := known.get(said_of(name, writer, 0).output)) is not None:
                writer.check_content([each])

    def length_of(self, said: Sequence[OutputLength]) -> int:
        """Return the common length of the outputs at the lengths that a store records."""
        lengths = {each.output: each.length for each in said}
        names = (said_of(name, writer, 0).output for name, writer in self._writers.items())
        return self._note([lengths.get(name, 0) for name in names])

    def hold(self, take_over: bool = False) -> int:
        """Keep other jobs from writing to any output; return the common length."""
        return self._note([writer.hold(take_over) for writer in self._writers.values()])

    def flush(self) -> None:
        """Make everything written visible."""
        for writer in self._writers.values():
            writer.flush()

    def sync(self) -> int:
        """Make everything written durable; return the common length."""
        return self._note([writer.sync() for writer in self._writers.values()])

    def cut_back(self, length: int) -> None:
        """Cut each output back to the length that it had when the common length was `length`."""
        for writer, each in zip(self._writers.values(), self._each(length), strict=True):
            writer.cut_back(each)
        with self._lock:
            self._lengths = {together: each for together, each in self._lengths.items() if together <= length}

    def committed(self, length: int) -> None:
        """Note that a durable commit includes the outputs up to this length. Any thread."""
        for writer, each in zip(self._writers.values(), self._each(length), strict=True):
            writer.committed(each)
        with self._lock:
            self._lengths = {together: each for together, each in self._lengths.items() if together >= length}

    @contextlib.contextmanager
    def served(self, secret: bytes, fail: Callable[[MegaflowError], None]) -> Iterator[None]:
        """During the block, serve the readers of outputs that are read through a port."""
        with contextlib.ExitStack() as stack:
            for writer in self._writers.values():
                stack.enter_context(writer.served(secret, fail))
            yield

    def close(self) -> None:
        """Close each output, even if closing another one raises."""
        with contextlib.ExitStack() as stack:
            for writer in self._writers.values():
                stack.callback(writer.close)

    def _note(self, each: Sequence[int]) -> int:
        with self._lock:
            self._lengths[sum(each)] = tuple(each)
        return sum(each)

    def _each(self, length: int) -> tuple[int, ...]:
        with self._lock:
            return self._lengths[length]


def said_of(name: str, writer: Writer, length: int) -> OutputLength:
    """Return the entry that a store records for an output of this name."""
    [said] = writer.lengths(length)
    return replace(said, output=f"{name}={said.output}") if name else said


def together(writers: Mapping[str, Writer]) -> Writer:
    """Return one writer for outputs by name; a single output without a name needs only its own."""
    return writers[""] if [*writers] == [""] else SeveralOutputs(writers)


def compare_outputs(path: str, said: Sequence[OutputLength], given: Sequence[OutputLength]) -> None:
    """Raise StoreError unless the store at this path records the same outputs; lengths do not count."""
    now, before = ([each.output for each in some] for some in (given, said))
    if before and {*now} != {*before}:
        missing, others = [name for name in before if name not in now], [name for name in now if name not in before]
        goes = " and ".join(f"--output {name}" for name in missing or before)
        instead = f", not {' and '.join(others)}" if others else ""
        raise StoreError(
            f"The store {path} belongs to {goes}{instead}. Outputs cannot be swapped: name the same ones again, "
            "add --relocate OLD=NEW if a file has moved, or start over with a new --state folder."
        )


def compare_lengths(said: Sequence[OutputLength], given: Sequence[OutputLength]) -> None:
    """Raise StoreError if an output is shorter now than the store records.

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
