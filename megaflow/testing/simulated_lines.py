"""The lines of a `dataflow(flow)` on a simulated cluster: read by the source of a real job, dealt out like in one.

What a job's coordinator does for lines happens here; its commands go over the simulated control stream:
1. A partition is given to one worker (`AssignSplits`), which reads it in order. Who is chosen, when, at which rate
   lines come, and how many make a batch, is drawn.
2. A worker that is to leave is told to close its source (`Withdraw`) and returns what it has not read; and now and then
   one is told to hand back some of its partitions (`RevokeSplits`), read in part or not. The rest is given to another
   one, or the same, by a command at the control stream's present time, which no source has stamped anything with: so
   it enters in later epochs only.
3. If the dataflow has timestamps watermarks are issued as its workers' reports of these come (`simulated_watermarks`).
4. When all is read and no change is under way the end is announced (`EndOfLines`), behind the last watermark.
Unlike in a job a report reaches the coordinator at once: what follows from it comes as early as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import signature
from random import Random
from typing import Any, TypeAlias

from megaflow.control.messages import EndOfLines, ParserPlace, Split, Withdraw
from megaflow.control.reading_messages import (
    AssignSplits,
    RevokeSplits,
    ShareRate,
    SplitRead,
    SplitsReturned,
    SplitsRevoked,
)
from megaflow.control.watermark_messages import MaximaSeen
from megaflow.control.worker.latency import Lateness
from megaflow.control.worker.port_roles import LauncherDoor
from megaflow.errors import UsageError
from megaflow.job.launcher.function_pickler import check_function
from megaflow.job.launcher.pulled_source import without_end
from megaflow.job.record_format import LINES, RecordFormat
from megaflow.job.split_reader import SplitReader
from megaflow.job.worker.flow import Flow, build_flow
from megaflow.job.worker.line_queue import LineQueue
from megaflow.job.worker.named_inputs import NamedInputs
from megaflow.job.worker.source_operator import LineSource
from megaflow.job.worker.staging import Staging
from megaflow.megaphone.control_stream import set_default
from megaflow.megaphone.event_clock import EventTimes
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing.simulated_watermarks import SimulatedWatermarks
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.operators.movement import broadcast
from megaflow.timely.dataflow.probe import ProbeHandle

FlowFunction: TypeAlias = Callable[[Flow], Stream[Any]]
"""`dataflow(flow) -> outputs`, as for `megaflow run`."""
Lines: TypeAlias = Iterable[str] | Iterable[Iterable[str]] | Mapping[Any, Iterable[str]]
"""One partition, or several: a list of them, or a dict whose keys are names.

Or inputs by name, as for `flow.lines(name)`: a dict of such dicts, `{"orders": {"one": [...], "two": [...]}, ...}`.
"""
Partition: TypeAlias = tuple[str, list[str]]
"""Whose lines these are ("": the only ones, without a name), and the lines."""

_GRAINS = (1, 3, 10)
"""A batch has one line to so many; a run draws which."""
_FEW_LINES = 2000
"""With more of them batches are larger, so that a run takes seconds."""
_SECONDS = (0.0, 1.0, 3.0, 6.0)
"""So long all lines together take to come: they come at once, or while the membership changes once, or a few times."""
_REVOCATIONS = (0.0, 0.1, 0.5)
"""With each batch so many partitions, or rather groups of them, are taken back."""
_TICK_PAUSES = (1.0, 10.0, 100.0)
"""Ticks are so many times as seldom as what they wait for: an epoch is long beside what messages take."""


class SimulatedLauncher(LauncherDoor):
    """The launcher of a job, which always keeps up."""

    @property
    def has_room(self) -> bool:
        """Whether outputs may be made."""
        return True


class PartitionReader(SplitReader):
    """Reads a part of a partition: of its split `start` and `end` count lines."""

    def __init__(self, split: Split, lines: Sequence[str], size: Callable[[], int], format: RecordFormat | None):
        """`size()` says how many lines the next batch has at most."""
        super().__init__(split)
        if format is not None:
            start = ParserPlace(split.input, split.start, tuple(lines[: split.start]))
            self.stream = format.stream(lambda line: f"line {line + 1} of {split.path}", start, lines[split.start :])
        self._partition = lines
        self._size = size

    def next_batch(self) -> list[str]:
        """Return the next batch; none when all are read."""
        start = self.position
        self.position = min(self.end, start + self._size())
        return list(self._partition[start : self.position])

    def rest(self, untaken: int) -> Split | None:
        """Return what is left with the last `untaken` lines of batches; None if that is nothing."""
        start = self.position - untaken
        return replace(self.split, start=start) if start < self.end else None


class PartitionQueue(LineQueue):
    """What one worker may read now of the partitions."""

    def __init__(self, worker: int, rate: float | None, make: Callable[[Split], SplitReader]) -> None:
        super().__init__(Staging(worker), rate=rate)
        self._make = make

    def reader(self, split: Split) -> SplitReader:
        """Return what reads a split."""
        return self._make(split)


def build_of(function: Any, args: Sequence[Any]) -> Callable[[Worker, Stream[Any], Stream[Any]], Stream[Any]]:
    """Return a `build(worker, records, commands)`: the function itself, or that of a `dataflow(flow)`.

    The lines of that are the records, and its commands are numbered. Raises UsageError for what is neither.
    """
    with suppress(TypeError, ValueError):
        signature(function).bind(None, None, None)
        return function  # type: ignore[no-any-return]
    check_function(function)

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        numbered = broadcast(commands.port, Lane.MAIL)
        set_default(numbered)
        inputs = NamedInputs()
        read = partial(_parsed, records, inputs)
        flow = Flow(worker, Scope(commands.port.scope), Stream(numbered), args, read, inputs)
        return build_flow(function, flow, has_lines=True)

    return build


def _parsed(records: Stream[Any], inputs: NamedInputs) -> Stream[Any]:
    """Return the records of lines, by the format in which the program reads them."""
    stream = inputs.formats.get("", LINES).stream(lambda line: f"line {line + 1} of a feed", None)
    return records if stream is None else records.flat_map(lambda line: stream.feed([line]))


class SimulatedLines:
    """A dataflow function and the partitions that it reads. One writer: the simulated cluster."""

    def __init__(
        self,
        dataflow: FlowFunction,
        partitions: Sequence[Partition],
        args: Sequence[Any],
        random: Random,
        issue: Callable[[Any], None],
        owners: Collection[int],
    ) -> None:
        """`issue` puts a command on the control stream; `owners`, a set that others change, may be given lines."""
        self.ended = False  # the end of all lines has been announced
        self.pause = random.choice(_TICK_PAUSES)  # between ticks of the control stream
        self._dataflow = dataflow
        self._partitions = [lines for _, lines in partitions]
        self._inputs = [name for name, _ in partitions]  # of each partition
        self._args = args
        self._random = random
        self._lines = sum(map(len, self._partitions))
        self._grain = random.choice(_GRAINS) * (1 + self._lines // _FEW_LINES)
        seconds = random.choice(_SECONDS)
        self._rate = self._lines / seconds if seconds and self._lines else None  # lines per simulated second
        self._issue = issue
        self._owners = owners
        self._queues: dict[int, LineQueue] = {}  # worker -> what its source reads; none if the dataflow has no source
        self._pool: list[Split] = []  # partitions, or what is left of them, that nobody holds
        self._held: dict[int, set[int]] = {}  # worker -> numbers of those that it was given
        self._revoked: dict[int, set[int]] = {}  # worker -> of those that it was told to hand back
        self._revocations = random.choice(_REVOCATIONS)
        self._closing: set[int] = set()  # workers whose sources were told to close
        self._closed: set[int] = set()  # that have said that they did
        some = {number: name for number, (name, lines) in enumerate(partitions) if lines}
        self._watermarks = SimulatedWatermarks(some)

    @property
    def taken(self) -> int:
        """How many lines have entered."""
        return sum(queue.lines_taken for queue in self._queues.values())

    @property
    def are_taken(self) -> bool:
        """Whether all have."""
        return self.taken >= self._lines

    def build(self, worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        """Build the dataflow as a worker of a job does; nothing comes by `records`."""
        numbered = broadcast(commands.port, Lane.MAIL)
        set_default(numbered)
        probe = ProbeHandle()

        def read() -> Stream[str]:
            queue = self._queues[worker.index] = PartitionQueue(worker.index, self._rate, self._reader)
            queue.streams.formats = inputs.formats
            report = partial(self._learn, worker.index)
            source = LineSource(
                numbered, worker, SimulatedLauncher(), queue, Lateness(), probe, report, None, inputs.are_several
            )
            return Stream(source.lines)

        inputs = NamedInputs(lines=sorted({*self._inputs} - {""}))
        flow = Flow(worker, Scope(commands.port.scope), Stream(numbered), self._args, read, inputs)
        outputs = build_flow(self._dataflow, flow, has_lines=self._lines > 0).probe_with(probe)
        self._watermarks.operators = commands.port.scope.graph.extension(EventTimes).operators
        return outputs

    def begin(self) -> None:
        """Deal the partitions out."""
        given = enumerate(zip(self._inputs, self._partitions))
        self._pool = [
            Split(number, f"partition {number}", 0, len(lines), name) for number, (name, lines) in given if lines
        ]
        self._deal()

    def may_close(self, workers: Iterable[int]) -> bool:
        """Tell whether another worker could read on if the sources of these closed."""
        return bool(set(self._readers).difference(workers))

    def close(self, worker: int) -> None:
        """Have a worker's source close."""
        if self._queues:
            self._closing.add(worker)
            self._issue(Withdraw((worker,)))
        else:
            self._closed.add(worker)

    def is_closed(self, worker: int) -> bool:
        """Tell whether it has, so that the worker may leave."""
        return worker in self._closed

    def end(self) -> None:
        """Announce the end if all is read; nothing else is planned or under way."""
        if not (self._pool or any(self._held.values()) or self.ended):
            self.ended = True
            for command in (*self._watermarks.at_end(), EndOfLines()):
                self._issue(command)

    @property
    def _readers(self) -> list[int]:
        return sorted(set(self._owners) - self._closing)

    def _reader(self, split: Split) -> SplitReader:
        queues = self._queues.values()
        format = next((queue.streams.formats.get(split.input) for queue in queues), None)
        return PartitionReader(split, self._partitions[split.number], self._size, format)

    def _size(self) -> int:
        """Say how many lines the next batch has at most; and have partitions handed back, if the dice say so."""
        if self._random.random() < self._revocations:
            self._revoke()
        return self._random.randint(1, self._grain)

    def _deal(self) -> None:
        """Give away some of the partitions that nobody holds, and one at least if nobody holds any."""
        given: dict[int, tuple[Split, ...]] = {}
        for split in list(self._pool):
            if self._random.random() < 0.5 or not any(self._held.values()):
                reader = self._random.choice(self._readers)
                given[reader] = (*given.get(reader, ()), split)
                self._held.setdefault(reader, set()).add(split.number)
                self._pool.remove(split)
        if given:
            self._issue(AssignSplits(given))
            self._issue(ShareRate(tuple(worker for worker, held in self._held.items() if held)))

    def _revoke(self) -> None:
        some = [worker for worker in self._readers if self._held.get(worker) and worker not in self._revoked]
        if some:
            worker = self._random.choice(some)
            held = sorted(self._held[worker])
            self._revoked[worker] = set(self._random.sample(held, self._random.randint(1, len(held))))
            self._issue(RevokeSplits({worker: tuple(sorted(self._revoked[worker]))}))

    def _learn(self, worker: int, report: Any) -> None:
        """Hear what a worker's source reports."""
        match report:
            case SplitRead(number):
                self._held[worker].discard(number)
                self._watermarks.read(number)
            case MaximaSeen():
                self._watermarks.learn(report)
                for watermark in self._watermarks.due() if self._random.random() < 0.5 else ():
                    self._issue(watermark)
                return
            case SplitsRevoked(splits):
                self._held[worker] -= self._revoked.pop(worker)
                self._pool += splits
            case SplitsReturned(splits):
                self._closed.add(worker)
                self._held.pop(worker, None)
                self._pool += splits
            case _:
                return
        places = [split.number for split in self._pool] + [number for held in self._held.values() for number in held]
        assert len(places) == len(set(places)), f"a partition is in two places: {sorted(places)}"
        self._deal()


def partitions_of(lines: Any) -> list[Partition]:
    """Return the partitions that are meant, without line ends. Raises UsageError for what is none.

    >>> partitions_of(["a\\n", "b"]), partitions_of([["a"], ["b"]]), partitions_of({"left": ["a"]})
    ([('', ['a', 'b'])], [('', ['a']), ('', ['b'])], [('', ['a'])])
    >>> partitions_of({"orders": {"one": ["a"]}, "payments": {"one": ["b"], "two": []}})
    [('orders', ['a']), ('payments', ['b']), ('payments', [])]
    """
    if isinstance(lines, Mapping) and lines and all(isinstance(each, Mapping) for each in lines.values()):
        return [(name, some) for name, each in lines.items() for _, some in partitions_of(each) or [("", [])]]
    several = lines.values() if isinstance(lines, Mapping) else lines
    if isinstance(lines, str | bytes) or not isinstance(several, Iterable):
        raise UsageError(
            f"a simulated cluster reads no files: lines must be an iterable of str, or a dict or list of such "
            f"partitions, not {lines!r:.80} ({type(lines).__name__})"
        )
    given = list(several)
    if not isinstance(lines, Mapping) and any(isinstance(each, str) for each in given):
        given = [given]
    return [("", _lines_of(partition)) for partition in given]


def _lines_of(partition: Any) -> list[str]:
    if isinstance(partition, str | bytes) or not isinstance(partition, Iterable):
        raise UsageError(f"a partition must be an iterable of str, not {partition!r:.80} ({type(partition).__name__})")
    return [without_end(line) for line in partition]


def check_feeds(feeds: Any, commands: Sequence[tuple[int, Any]], workers: Sequence[int]) -> None:
    """Raise UsageError for feeds or commands that would not go in as they stand."""
    if not isinstance(feeds, Mapping):
        raise UsageError(f"feeds must be a dict, worker -> [(time, record), …], not {feeds!r:.80}")
    if strangers := set(feeds).difference(workers):
        raise UsageError(f"there are feeds for workers {sorted(strangers)}; the workers are {list(workers)}")
    for name, script in [*((f"feeds[{worker}]", feed) for worker, feed in feeds.items()), ("commands", commands)]:
        last = 0
        for time, _ in script:
            if not isinstance(time, int) or time < last:
                raise UsageError(f"{name}: times must be ints in order, from 0 on; {time!r} comes after {last}")
            last = time
