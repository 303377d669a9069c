"""An incarnation: one launcher's time with a store, from the commit that begins it to its end or the next one's.

Commits are numbered without a gap, and whoever writes number k + 1 has read k, or written it: so of two launchers that
both believe that the store is theirs, exactly one writes it. The other one is *fenced*, and nothing that it writes is
read:
 1. The store begins an incarnation with a commit of its own, before anything else is changed and before any child is
    started. Only then are files removed that no commit names: before, an older launcher could still commit them.
 2. A commit counts if it is written and no higher one is there. A launcher that slept for long might find the number
    free again, which its successor has used and, many commits later, removed; the highest commit is never removed.
 3. A commit in doubt is neither acknowledged nor given up, nor may another checkpoint follow: `commit` is to be called
    with the same one again. Is its file there, the next number repeats it; is it not, it is written anew. What is then
    recovered after any crash is the newest acknowledged checkpoint or the one in doubt.

What is removed, and when
 4. Kept are the newest commits of the last few checkpoints. The files of all others go after a commit is durable, never
    before; their segments go after that, unless a kept commit names them too. So each commit that is there has all of
    its segments, at every moment.
 5. A segment that no commit has named is left alone while its incarnation lasts, for it may be in flight; unless
    `give_up` was told that it never will be. The next incarnation removes it, which its name tells from those of a
    successor that this launcher may not know of yet.
 6. Files that cannot be removed are tried again after the next commit, and hinder nothing.
"""

import contextlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from megaflow.durable.commits import Commit, commit_from_bytes, commit_name, commit_numbers
from megaflow.durable.segments import SEGMENT_NAME, SegmentRef
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt, StoreDamaged, StoreError, StoreFenced

CHECKPOINTS_KEPT: Final = 3
COMMIT_ASIDE: Final = re.compile(r"(\d{12})\.commit\.\d+\.tmp")  # while it is written: `store`


def read_commit(store: Store, number: int) -> Commit:
    """Return a commit of a store. Raises FileNotFoundError, StoreDamaged or StoreError; OSError."""
    name = commit_name(number)
    return commit_from_bytes(name, store.read(name))


def newest_commit(store: Store) -> Commit | None:
    """Return the highest commit, None if there is none; its segments must be there, as long as it says.

    What is in them is checked by whoever reads them, block by block. Raises StoreDamaged, StoreError or OSError:
    nothing older is ever taken in its place.
    """
    lengths = store.list()
    numbers = commit_numbers(lengths)
    if not numbers:
        return None
    commit = read_commit(store, numbers[-1])
    for segment in commit.segments:
        check_present(commit, segment, lengths)
    return commit


def check_present(commit: Commit, segment: SegmentRef, lengths: dict[str, int]) -> None:
    """Raise StoreDamaged unless a segment is there, as long as its commit says."""
    length = lengths.get(segment.name)
    if length != segment.length:
        found = "which is not there" if length is None else f"of {segment.length} bytes, which has {length}"
        raise StoreDamaged(
            f"{commit_name(commit.number)} (checkpoint {commit.checkpoint}) names {segment.name}, {found}; "
            "restore the store from a backup"
        )


class Incarnation:
    """What a launcher has of its store. Made by `begin`."""

    def __init__(self, store: Store, begun: Commit, kept: int) -> None:
        self._store = store
        self._kept = kept
        self._doubtful: Commit | None = None  # tried last: whether it is there is not known
        self._number = begun.number - 1  # of the newest commit that is known to be there, durable or not
        self._commits: dict[int, tuple[int, frozenset[str]]] = {}  # number -> checkpoint, segments; of those there
        self._doomed: set[str] = set()  # segments to be removed
        self.latest = begun  # the newest commit that is durable
        self.tried = begun.checkpoint  # by the last `commit`

    @property
    def in_doubt(self) -> bool:
        """Whether a commit later than `latest` may be what is recovered: that of checkpoint `tried`."""
        return self._doubtful is not None or self._number > self.latest.number

    def commit(self, commit: Commit) -> Commit:
        """Make a checkpoint durable; return the commit as it is written, numbered and of this incarnation.

        Raises OSError: nothing has changed, the checkpoint may be given up. CommitInDoubt: it must not be; call this
        again with the same one. StoreFenced: another launcher has the store, and this one must stop.
        """
        assert not self.in_doubt or self.tried == commit.checkpoint, "another commit is in doubt"
        self.tried = commit.checkpoint
        self._settle()
        written = replace(commit, number=self._number + 1, incarnation=self.latest.incarnation)
        written._check()
        try:
            if not self._store.commit(commit_name(written.number), written.to_bytes()):
                raise self._fenced(written.number)
        except CommitInDoubt:
            self._doubtful = written
            raise
        except OSError as error:  # this one is not written, but one before it may be
            if self.in_doubt:
                raise _doubt(self._number, error) from error
            raise
        self._doubtful = written
        self._check_highest(written.number)
        self._doubtful = None
        self._note(written)
        self.latest = written
        return written

    def give_up(self, names: Iterable[str]) -> None:
        """Let segments of this incarnation that no commit will name be removed after the next commit."""
        self._doomed.update(names)

    def collect(self) -> None:
        """Remove what is not kept; to be called after a commit. Raises OSError: it is tried again the next time."""
        assert not self.in_doubt, "a commit is in doubt"
        kept: dict[int, int] = {}  # checkpoint -> number of its newest commit
        for number in sorted(self._commits, reverse=True):
            checkpoint, _ = self._commits[number]
            if checkpoint in kept or len(kept) < self._kept:
                kept.setdefault(checkpoint, number)
        old = sorted(self._commits.keys() - kept.values())
        if old:
            self._store.delete(map(commit_name, old))
        for number in old:
            self._doomed |= self._commits.pop(number)[1]
        self._doomed.difference_update(*(names for _, names in self._commits.values()))
        if self._doomed:
            self._store.delete(sorted(self._doomed))
            self._doomed.clear()

    def _settle(self) -> None:
        """Find out whether the commit in doubt is there."""
        doubtful = self._doubtful
        if doubtful is None:
            return
        try:
            content = self._store.read(commit_name(doubtful.number))
        except FileNotFoundError:
            self._doubtful = None
            return
        except OSError as error:
            raise _doubt(doubtful.number, error) from error
        if content != doubtful.to_bytes():
            raise self._fenced(doubtful.number)
        self._doubtful = None
        self._note(doubtful)

    def _note(self, commit: Commit) -> None:
        """Take in that a commit of this incarnation is there."""
        self._number = commit.number
        self._know(commit)

    def _know(self, commit: Commit) -> None:
        self._commits[commit.number] = commit.checkpoint, frozenset(each.name for each in commit.segments)

    def _check_highest(self, number: int) -> None:
        """Raise StoreFenced, and take the commit back, if there is a higher one."""
        try:
            highest = max(commit_numbers(self._store.list()), default=number)
            if highest > number:
                self._store.delete([commit_name(number)])
                raise self._fenced(highest)
        except OSError as error:
            raise _doubt(number, error) from error

    def _fenced(self, number: int) -> StoreFenced:
        return StoreFenced(
            f"another launcher has taken the store over: {commit_name(number)} is not of incarnation "
            f"{self.latest.incarnation}, which is this one; it stops"
        )

    def _adopt(self) -> None:
        """Know the commits that were there before, and what is left of those who were."""
        files = self._store.list()
        for number in commit_numbers(files):
            if number < self._number:
                with contextlib.suppress(FileNotFoundError):  # an older launcher is still removing it
                    self._know(read_commit(self._store, number))
        for name in files:
            segment, aside = SEGMENT_NAME.match(name), COMMIT_ASIDE.fullmatch(name)
            if segment is not None and int(segment[1]) < self.latest.incarnation:
                self._doomed.add(name)
            if aside is not None and int(aside[1]) <= self._number:
                self._doomed.add(name)


def _doubt(number: int, error: OSError) -> CommitInDoubt:
    return CommitInDoubt(f"{commit_name(number)} may be written or not: {error}")


def begin(store: Store, app: str, kept: int = CHECKPOINTS_KEPT) -> Incarnation:
    """Take a store over: its newest commit under a new incarnation, or the first one of an empty store.

    What earlier launchers have left, and no commit names, is removed. Nothing has been changed when this raises
    StoreDamaged, StoreFenced (another launcher was quicker), another StoreError or OSError; of a CommitInDoubt the next
    one to begin finds out.
    """
    before = newest_commit(store)
    if before is None:
        before = Commit(number=0, checkpoint=0, time=0, incarnation=0, app=app)
    elif before.app != app:
        raise StoreError(f"the store is of {before.app!r}, not of {app!r}: name another folder, or run that program")
    begun = replace(before, number=before.number + 1, incarnation=before.incarnation + 1)
    incarnation = Incarnation(store, begun, kept)
    incarnation.commit(begun)
    incarnation._adopt()
    with contextlib.suppress(OSError):  # it is tried again after each commit
        incarnation.collect()
    return incarnation
