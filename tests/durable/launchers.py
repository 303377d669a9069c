"""Launchers and workers that use a store, and what must be true of it whatever happens to them.

Each checkpoint has a *stamp* of its own, its epoch: so the oracle can tell whose it is, though two launchers that both
believe that the store is theirs give out the same numbers.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from megaflow.durable.blocks import BlockKind, CutHeader, pack, states_of
from megaflow.durable.commits import Commit, OperatorCut, commit_numbers, needed
from megaflow.durable.incarnation import Incarnation, begin, read_commit
from megaflow.durable.inspection import verify_segment
from megaflow.durable.segments import SegmentReader, SegmentRef, make_segments, segment_name
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt

APP = "count.py"
BINS = 4


class Launcher:
    """A launcher with two workers, which cut a checkpoint whenever it asks; each process opens the disk by itself."""

    def __init__(self, history: "History", open_store: Callable[[], Store], kept: int = 2) -> None:
        self._history = history
        self._stores = [open_store() for _ in range(2)]  # of the workers
        self._in_doubt: Commit | None = None
        store = open_store()
        self.incarnation: Incarnation = begin(store, APP, kept)
        history.begun(self)
        self._checkpoints = count(self.incarnation.latest.checkpoint + 1)
        self._sequences = [map(_named(self.incarnation.latest.incarnation, worker), count(1)) for worker in (0, 1)]

    def checkpoint(self, whole: bool = False) -> bool:
        """Let the workers cut, and commit; return whether it is committed. A failing disk ends it, and nothing more."""
        if self._in_doubt is not None:
            return self._commit(self._in_doubt)
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
        except OSError:
            self.incarnation.give_up(each.name for each in written)
            return False
        bases = (number,) * BINS if whole else latest.operators[0].bases if latest.operators else (None,) * BINS
        operators = (OperatorCut("count", "state_machine", bases),)
        segments = needed(operators, latest.segments + tuple(written))
        return self._commit(
            replace(latest, checkpoint=number, time=stamp, operators=operators, segments=segments), written
        )

    def _commit(self, commit: Commit, written: Sequence[SegmentRef] = ()) -> bool:
        self._history.trying(self, commit)
        self._in_doubt = None
        try:
            self.incarnation.commit(commit)
        except CommitInDoubt:
            self._in_doubt = commit
            return False
        except OSError:
            self._history.trying(self, None)
            self.incarnation.give_up(each.name for each in written)
            return False
        self._history.acknowledge(self, commit)
        with contextlib.suppress(OSError):
            self.incarnation.collect()
        return True


def _named(incarnation: int, worker: int) -> Callable[[int], str]:
    return lambda sequence: segment_name(incarnation, worker, sequence)


class History:
    """What was promised to the world, and what may be found after a crash."""

    def __init__(self) -> None:
        self.live: Launcher | None = None  # the last that began
        self.acknowledged = 0  # stamp of the newest; 0: none
        self._tried: int | None = None  # stamp that may be there, too
        self._stamps = count(1)

    def stamp(self) -> int:
        return next(self._stamps)

    def trying(self, launcher: Launcher, commit: Commit | None) -> None:
        if launcher is self.live:
            self._tried = commit and commit.time

    def acknowledge(self, launcher: Launcher, commit: Commit) -> None:
        assert launcher is self.live, "a launcher that was fenced acknowledges a checkpoint"
        self.acknowledged, self._tried = commit.time, None

    def begun(self, launcher: Launcher) -> None:
        """A launcher has recovered the newest acknowledged checkpoint or one newer; from now on that is kept."""
        latest = launcher.incarnation.latest
        if self.live is not None and self.live.incarnation.latest.incarnation > latest.incarnation:
            return  # it has been fenced already, and will find out
        assert latest.time in (self.acknowledged, self._tried), (latest.time, self.acknowledged, self._tried)
        self.live, self.acknowledged, self._tried = launcher, latest.time, None


def check_kept(store: Store, kept: int = 2) -> list[Commit]:
    """Each commit of the last checkpoints has all of its segments, as they were written; return these, newest first."""
    found: dict[int, Commit] = {}
    for number in reversed(commit_numbers(store.list())):
        commit = read_commit(store, number)
        if commit.checkpoint not in found and len(found) == kept:
            break
        found.setdefault(commit.checkpoint, commit)
        for segment in commit.segments:
            verify_segment(store, segment)
            check_content(store, segment)
    return list(found.values())


def check_content(store: Store, segment: SegmentRef) -> None:
    """A segment has what its cut has put into it."""
    reader = SegmentReader(segment.name, lambda start, length: store.read(segment.name, start, length), segment.length)
    assert all(states_of(block) == [reader.header.time] for block in reader.blocks())
