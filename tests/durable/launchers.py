"""Launchers and workers that use a store on a simulated disk, and the invariants that must hold in any case.

Each checkpoint has a unique *stamp*, its epoch. Two launchers that both believe that they own the store use the same
checkpoint numbers, but the oracle can still tell their checkpoints apart.
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count

from megaflow.durable.blocks import Block, BlockKind, CutHeader, pack, states_of
from megaflow.durable.commits import Commit, OperatorCut, needed
from megaflow.durable.incarnation import begin, read_commits
from megaflow.durable.inspection import inspect, verify_segment
from megaflow.durable.segments import SEGMENT_BYTES, SegmentReader, SegmentRef, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt, StoreFenced
from megaflow.testing.simulated_disk import Crashed, SimulatedDisk
from tests.durable.real_disk import RealDisk

APP = "count.py"
BINS = 4


def make_segments(
    header: CutHeader, blocks: Iterable[Block], names: Iterator[str], segment_bytes: int = SEGMENT_BYTES
) -> Iterator[tuple[SegmentRef, list[bytes]]]:
    """Yield the segments of a cut, none without blocks. Lazy: a caller that writes each at once holds only one."""
    writer = None
    for block in blocks:
        writer = writer or SegmentWriter(header)
        writer.add(block)
        if writer.length >= segment_bytes:
            yield writer.finish(next(names))
            writer = None
    if writer:
        yield writer.finish(next(names))


class Launcher:
    """A launcher with two workers, which cut a checkpoint on request. Each process opens the disk by itself."""

    def __init__(self, history: "History", open_store: Callable[[], Store], kept: int = 2) -> None:
        self._history = history
        self._stores = [open_store() for _ in range(2)]  # those of the workers
        self.in_doubt: Commit | None = None
        self._in_flight: tuple[Commit, list[SegmentRef]] | None = None  # written, but not committed yet
        store = open_store()
        self.incarnation = begin(store, APP, kept)
        history.begun(self)
        self._checkpoints = count(self.incarnation.latest.checkpoint + 1)
        self._sequences = [map(_named(self.incarnation.latest.incarnation, worker), count(1)) for worker in (0, 1)]

    def checkpoint(self, whole: bool = False) -> bool:
        """Let the workers cut, and commit; return whether this succeeded. A disk error only ends the launcher."""
        if self.in_doubt is not None:
            return self._commit(self.in_doubt)
        if self._in_flight is None:
            self.cut(whole)
        made, self._in_flight = self._in_flight, None
        return made is not None and self._commit(*made)

    def cut(self, whole: bool) -> None:
        """Let the workers write their segments, for the next `checkpoint` to commit."""
        latest = self.incarnation.latest
        number, stamp = next(self._checkpoints), self._history.stamp()
        written: list[SegmentRef] = []
        try:
            for worker, (store, names) in enumerate(zip(self._stores, self._sequences, strict=True)):
                header = CutHeader(number, stamp, latest.checkpoint or None, worker)
                kind = BlockKind.BIN if whole else BlockKind.DELTA
                bins = range(worker, BINS, 2) if whole else [None]
                blocks = [pack(kind, "count", bin, ["key"], [stamp]) for bin in bins]
                for ref, parts in make_segments(header, blocks, names):
                    written.append(ref)
                    store.put(ref.name, parts)
                self._collect()  # while segments are in flight
        except OSError:
            self.incarnation.give_up(each.name for each in written)
            return
        bases = (number,) * BINS if whole else latest.operators[0].bases if latest.operators else (None,) * BINS
        operators = (OperatorCut("count", "state_machine", bases),)
        segments = needed(operators, latest.segments + tuple(written))
        commit = replace(latest, checkpoint=number, time=stamp, operators=operators, segments=segments)
        self._in_flight = commit, written

    def _commit(self, commit: Commit, written: Sequence[SegmentRef] = ()) -> bool:
        names, dropped = self._history.names_for(commit, self.incarnation.latest)
        self._history.trying(self, commit)
        self.in_doubt = None
        try:
            self.incarnation.commit(commit, names, dropped)
        except CommitInDoubt:
            self.in_doubt = commit
            return False
        except OSError:
            self._history.trying(self, None)
            self.incarnation.give_up(each.name for each in written)
            return False
        self._history.acknowledge(self, commit)
        self._collect()
        return True

    def _collect(self) -> None:
        with contextlib.suppress(OSError):
            self.incarnation.collect()


def _named(incarnation: int, worker: int) -> Callable[[int], str]:
    return lambda sequence: segment_name(incarnation, worker, sequence)


class History:
    """Acknowledged checkpoints, and the states of the store that a crash may therefore leave."""

    def __init__(self, naming: bool = False) -> None:
        """With `naming`, every third checkpoint gets a name by its stamp, and the older of two names is dropped."""
        self._naming = naming
        self.live: Launcher | None = None  # the last that began
        self.acknowledged = 0  # stamp of the newest acknowledged checkpoint; 0: none
        self._tried: int | None = None  # stamp of a checkpoint that may also be there
        self._names: set[str] = set()  # given and not dropped
        self._names_tried = self._names  # the names if that checkpoint is there
        self._stamps = count(1)

    def stamp(self) -> int:
        return next(self._stamps)

    def names_for(self, commit: Commit, latest: Commit) -> tuple[list[str], list[str]]:
        """Return the names that a checkpoint gets, and those that are dropped with it."""
        if not self._naming or commit.time % 3:
            return [], []
        return [f"n{commit.time:06}"], [name for name, _ in latest.named][:-1]

    def check_names(self, commits: list[Commit]) -> None:
        """Check that each name belongs to its checkpoint. `commits` are all valid ones, newest first."""
        for name, number in commits[0].named if commits else ():
            assert [f"n{each.time:06}" for each in commits if each.number == number] == [name]

    def trying(self, launcher: Launcher, commit: Commit | None) -> None:
        if launcher is self.live:
            self._tried = commit and commit.time
            if commit is not None:
                names, dropped = self.names_for(commit, launcher.incarnation.latest)
                self._names_tried = (self._names - {*dropped}) | {*names}

    def acknowledge(self, launcher: Launcher, commit: Commit) -> None:
        assert launcher is self.live, "a launcher that was fenced acknowledges a checkpoint"
        self.acknowledged, self._tried = commit.time, None
        self._names = self._names_tried

    def begun(self, launcher: Launcher) -> None:
        """Note that a launcher has recovered the newest acknowledged checkpoint or a newer one, now to be kept."""
        latest = launcher.incarnation.latest
        if self.live is not None and self.live.incarnation.latest.incarnation > latest.incarnation:
            return  # it is fenced, and will find out
        assert latest.time in (self.acknowledged, self._tried), (latest.time, self.acknowledged, self._tried)
        names = self._names if latest.time == self.acknowledged else self._names_tried
        assert {name for name, _ in latest.named} == names, (latest.named, names)
        self.live, self.acknowledged, self._tried, self._names = launcher, latest.time, None, names


def check_kept(store: Store) -> list[Commit]:
    """Check that each valid commit has all of its segments, unchanged; return the commits, newest first."""
    commits = read_commits(store)
    for commit in commits:
        for segment in commit.segments:
            verify_segment(store, segment)
            check_content(store, segment)
    return commits


def check_content(store: Store, segment: SegmentRef) -> None:
    """Check that a segment has exactly the blocks of its cut."""
    reader = SegmentReader(segment.name, partial(store.read, segment.name), segment.length)
    assert all(states_of(block) == [reader.header.time] for block in reader.blocks())


class Scene:
    """A disk, the launchers that use it, and the history of acknowledgements."""

    def __init__(self, seed: int = 0, kept: int = 1, disk: RealDisk | None = None, naming: bool = False) -> None:
        self.disk = disk or SimulatedDisk(random.Random(seed))
        self.history = History(naming)
        self.launchers: list[Launcher] = []  # running, including fenced ones that do not know it
        self._kept = kept

    def open(self) -> Store:
        return Store(self.disk.open())

    def launcher(self) -> Launcher:
        return Launcher(self.history, self.open, self._kept)

    def begin(self) -> None:
        """Let a launcher take the store over, unless the disk fails or another launcher is quicker."""
        with contextlib.suppress(Crashed, StoreFenced, CommitInDoubt, OSError):
            self.launchers.append(self.launcher())

    def checkpoint(self, launcher: Launcher, whole: bool = False) -> None:
        """Let a launcher commit a checkpoint, unless the disk fails. The launcher may end."""
        try:
            launcher.checkpoint(whole)
        except (Crashed, StoreFenced):
            self.launchers = [each for each in self.launchers if each is not launcher]

    def overtake(self, checkpoints: int, and_cut: bool = False) -> None:
        """During an operation of one launcher, let another one take the store over and write checkpoints.

        With `and_cut`, the new launcher has segments in flight when the first one continues.
        """
        before = list(self.launchers)
        self.begin()
        for at in range(checkpoints):
            for launcher in [each for each in self.launchers if each not in before]:
                self.checkpoint(launcher, whole=at % 2 == 0)
        for launcher in [each for each in self.launchers if each not in before and and_cut]:
            if launcher.in_doubt is None:
                with contextlib.suppress(Crashed):
                    launcher.cut(whole=True)

    def lose_power(self) -> None:
        self.launchers.clear()
        self.disk.lose_power()

    def check(self) -> None:
        """Check that the store is complete. A reader is not affected by planned faults."""
        happenings, self.disk.happenings = self.disk.happenings, {}
        self.history.check_names(check_kept(self.open()))
        self.disk.happenings = happenings

    def check_end(self) -> None:
        """Check that a launcher can continue, the power may fail once more, and the store has no needless files."""
        self.disk.happenings.clear()
        self.disk.capacity = None
        self.check()
        last = self.launcher()
        for whole in (False, True) * self._kept:
            assert last.checkpoint(whole)
        newest, *_ = kept = check_kept(self.open())
        self.history.check_names(kept)
        assert len([each for each in kept if each.number in (newest.number, *newest.kept)]) == self._kept
        assert newest.time == self.history.acknowledged
        self.disk.lose_power()
        assert self.launcher().incarnation.latest.time == newest.time
        content = inspect(self.open())
        assert not content.damage and not content.unnamed, content
