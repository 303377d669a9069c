"""An incarnation: one launcher's time with a store, from the commit that begins it to its end or the next one's.

Commits are numbered without a gap, and whoever writes number k + 1 has read k, or written it: so of two launchers that
both believe that the store is theirs, exactly one writes it. The other one is *fenced*, and nothing that it writes is
read:
 1. The store begins an incarnation with a commit of its own, before anything else is changed and before any child is
    started. Only then are files removed that no commit names: before, an older launcher could still commit them. It
    follows the commit by which the launcher has decided what to read, read once: were a newer one taken over unseen,
    what that had read would be read again. One that begins anew goes on from a commit of its own, or not at all.
 2. A commit counts if it is written and no higher one is there. A launcher that slept for long might find the number
    free again, which its successor has used and, many commits later, removed; the highest commit is never removed.
 3. A commit in doubt is neither acknowledged nor given up, nor may another checkpoint follow: `commit` is to be called
    with the same one again. Is its file there, the next number repeats it; is it not, it is written anew, unless there
    is a higher one: a successor has repeated it, and removed it. What is then recovered after any crash is the newest
    acknowledged checkpoint or the one in doubt.

What is removed, and when
 4. Kept are the newest commits of the last few checkpoints, and those of checkpoints that have a name, until it is
    dropped; the highest one names the others. A commit that repeats a checkpoint takes over its names, since what it
    repeats may be one that a launcher which slept takes back. Nothing else that looks like a commit counts: a launcher
    that slept may have found a number free (2), and have ended before it saw why.
 5. The files of commits go after one that does not name them is durable, never before; their segments go after that,
    unless a kept commit names them too. So each commit that counts has all of its segments, at every moment. The
    commit that begins the incarnation stays, too, until a later checkpoint is committed: processes that start read it.
 6. A segment that no commit has named is left alone while its incarnation lasts, for it may be in flight; unless
    `give_up` was told that it never will be, or its worker has written a later one that is committed: a worker writes
    its segments in order of their numbers, so those before it are of earlier checkpoints, which were abandoned. The
    next incarnation removes all, which their names tell from those of a successor that this launcher may not know of.
 7. Files that cannot be removed are tried again after the next commit, and hinder nothing.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from megaflow.durable.commits import COMMIT_NAME, Commit, OutputLength, commit_from_bytes, commit_name, commit_numbers
from megaflow.durable.segments import SEGMENT_NAME, SegmentRef
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt, StoreDamaged, StoreError, StoreFenced

CHECKPOINTS_KEPT: Final = 3
ASIDE: Final = r"(?:\.\d+\.tmp)?"  # what `store` calls a file while it is written
COMMIT_FILE: Final = re.compile(COMMIT_NAME.pattern + ASIDE)
SEGMENT_FILE: Final = re.compile(SEGMENT_NAME.pattern + ASIDE)


@dataclass(frozen=True, slots=True)
class DurablePart:
    """What a worker process must know of the store."""

    folder: str  # absolute
    incarnation: int  # that writes
    commit: int | None  # the file to begin from; None: the store has no checkpoint yet, or the process joins
    checkpoint_every: float = 1.0  # seconds from a commit to the next checkpoint, at least
    renamed: tuple[tuple[str, str], ...] = ()  # operators: (name in the store, name in the program)
    dropped: tuple[str, ...] = ()  # operators whose states are not wanted any more
    is_changed: bool = False  # whether the program is known to be another than the one that has written the commit


def read_commit(store: Store, number: int) -> Commit:
    """Return a commit of a store. Raises FileNotFoundError with its name, StoreDamaged or StoreError; OSError."""
    name = commit_name(number)
    return commit_from_bytes(name, store.read(name))


def read_commits(store: Store) -> list[Commit]:
    """Return the commits that count, newest first; all of their segments are there, as long as they say.

    What is in the segments is checked by whoever reads them, block by block. Raises StoreDamaged, StoreError or
    OSError: what is wrong is said, and nothing older is taken in its place.
    """
    while True:
        files = store.list()
        numbers = commit_numbers(files)
        commits: list[Commit] = []
        try:
            for number in numbers[-1:]:
                commits.append(read_commit(store, number))
                commits += [read_commit(store, older) for older in commits[0].others]
            for commit in commits:
                for segment in commit.files:
                    check_present(commit, segment, files)
            return commits
        except (FileNotFoundError, StoreDamaged) as error:
            if is_newer(store, numbers):
                continue  # a launcher that is still there goes on, and removes what it does not keep
            if isinstance(error, StoreDamaged):
                raise
            raise missing(numbers[-1], str(error.filename)) from error


def missing(number: int, name: str) -> StoreDamaged:
    """Return the error for a file that a commit names."""
    return StoreDamaged(f"{commit_name(number)} names {name}, which is missing; restore the store from a backup")


def is_newer(store: Store, numbers: Sequence[int]) -> bool:
    """Tell whether the highest commit is a higher one than among these by now."""
    return commit_numbers(store.list())[-1:] > list(numbers[-1:])


def check_present(commit: Commit, segment: SegmentRef, lengths: dict[str, int]) -> None:
    """Raise StoreDamaged unless a segment is there, as long as its commit says."""
    length = lengths.get(segment.name)
    if length is None:
        raise missing(commit.number, segment.name)
    if length != segment.length:
        raise StoreDamaged(
            f"{commit_name(commit.number)} names {segment.name} with {segment.length} bytes, but it has {length}; "
            "restore the store from a backup"
        )


class Incarnation:
    """What a launcher has of its store. Made by `begin`."""

    def __init__(self, store: Store, begun: Commit, before: Iterable[Commit], kept: int) -> None:
        self._store = store
        self._kept = kept
        self._doubtful: Commit | None = None  # tried last: whether it is there is not known
        self._number = begun.number - 1  # of the newest commit that is known to be there, durable or not
        self._begun: int | None = begun.number  # of the commit that processes read; None: there are none
        self._commits: dict[int, tuple[int, frozenset[str]]] = {}  # number -> checkpoint, segments; of those there
        self._doomed: set[str] = set()  # files to be removed, unless a kept commit names them
        self.latest = begun  # the newest commit that is durable
        self.tried = begun.checkpoint  # by the last `commit`
        for commit in before:
            self._know(commit)

    @property
    def in_doubt(self) -> bool:
        """Whether a commit later than `latest` may be what is recovered: that of checkpoint `tried`."""
        return self._doubtful is not None or self._number > self.latest.number

    def commit(self, commit: Commit, names: Iterable[str] = (), dropped: Iterable[str] = ()) -> Commit:
        """Make a checkpoint durable; return the commit as it is written, numbered and of this incarnation.

        It gets these `names`, which no checkpoint has; names that are `dropped` keep none any more. Raises OSError:
        nothing has changed, the checkpoint may be given up. CommitInDoubt: it must not be; call this again with the
        same one. StoreFenced: another launcher has the store, and this one must stop.
        """
        assert not self.in_doubt or self.tried == commit.checkpoint, "another commit is in doubt"
        self.tried = commit.checkpoint
        self._settle()
        number = self._number + 1
        given = {name: of for name, of in self.latest.named if name not in {*dropped}} | dict.fromkeys(names, number)
        named = ((name, number if self._repeats(commit, of) else of) for name, of in sorted(given.items()))
        written = replace(
            commit, number=number, incarnation=self.latest.incarnation, kept=self._to_keep(commit.checkpoint),
            named=tuple(named),
        )  # fmt: skip
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

    def begin_anew(self) -> "Incarnation":
        """Begin the next incarnation of the same launcher, whose processes are gone, from what the store has.

        Raises as `begin`; StoreFenced also if the newest commit, in doubt or not, is another launcher's, StoreDamaged
        if there is none.
        """
        found = read_commits(self._store)
        if not found:
            raise StoreDamaged("the store has lost all its commits: restore it from a backup")
        if found[0].incarnation != self.latest.incarnation:
            raise self._fenced(found[0].number)
        return begin(self._store, self.latest.app, self._kept, found=found)

    def give_up(self, names: Iterable[str]) -> None:
        """Let segments of this incarnation that no commit will name be removed after the next commit."""
        self._doomed.update(names)

    def drop_name(self, name: str) -> None:
        """Have no checkpoint kept by this name. Raises StoreError if there is none that has it, and as `commit`."""
        check_named(self.latest, name)
        self.commit(self.latest, dropped=[name])

    def collect(self) -> None:
        """Remove what is not kept; to be called after a commit. Raises OSError: it is tried again the next time."""
        assert not self.in_doubt, "a commit is in doubt"
        read = {self._begun} if self._begun is not None and self._repeats(self.latest, self._begun) else set[int]()
        old = sorted(self._commits.keys() - {self.latest.number, *self.latest.others} - read)
        if old:
            self._store.delete(map(commit_name, old))
        for number in old:
            self._doomed |= self._commits.pop(number)[1]
        self._doom_abandoned()
        self._doomed.difference_update(*(names for _, names in self._commits.values()))
        if self._doomed:
            self._store.delete(sorted(self._doomed))
            self._doomed.clear()

    def _doom_abandoned(self) -> None:
        """Let go the segments of this incarnation whose workers have written later ones that are committed."""
        latest = self.latest
        own = [SEGMENT_FILE.fullmatch(each.name) for each in latest.files if each.checkpoint == latest.checkpoint]
        first: dict[str | None, int] = {}  # worker -> the least number of its segments of the newest checkpoint
        for named in own:
            if named is not None and int(named[1]) == latest.incarnation:
                first[named[2]] = min(int(named[3]), first.get(named[2], int(named[3])))
        for name in self._store.list() if first else ():
            found = SEGMENT_FILE.fullmatch(name)
            if found is not None and int(found[1]) == latest.incarnation and int(found[3]) < first.get(found[2], 0):
                self._doomed.add(name)

    def _repeats(self, commit: Commit, number: int) -> bool:
        """Tell whether a commit that is to be written is of the checkpoint of one that is there: see rule 4."""
        return number in self._commits and self._commits[number][0] == commit.checkpoint

    def _to_keep(self, checkpoint: int) -> tuple[int, ...]:
        """The numbers of the commits to be kept beside a new one of this checkpoint, newest first."""
        kept: dict[int, int] = {}  # checkpoint -> number
        for number in sorted(self._commits, reverse=True):
            kept.setdefault(self._commits[number][0], number)
        kept.pop(checkpoint, None)
        return tuple(kept.values())[: self._kept - 1]

    def _settle(self) -> None:
        """Find out whether the commit in doubt is there."""
        doubtful = self._doubtful
        if doubtful is None:
            return
        try:
            content = self._store.read(commit_name(doubtful.number))
        except FileNotFoundError:
            self._check_highest(doubtful.number)
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
        self._commits[commit.number] = commit.checkpoint, frozenset(each.name for each in commit.files)

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
            f"another launcher has taken over the store and continues the job: {commit_name(number)} is not of this "
            f"launcher's incarnation, {self.latest.incarnation}. This launcher stops, and nothing is lost. If no "
            "other launcher is running, run the same command again."
        )

    def _doom_what_is_left(self) -> None:
        """Let go what earlier launchers have left and no commit that counts names."""
        for name in self._store.list():
            commit, segment = COMMIT_FILE.fullmatch(name), SEGMENT_FILE.fullmatch(name)
            if commit is not None and int(commit[1]) <= self._number:
                self._doomed.add(name)
            if segment is not None and int(segment[1]) < self.latest.incarnation:
                self._doomed.add(name)
        self._doomed -= set(map(commit_name, self._commits))


def _doubt(number: int, error: OSError) -> CommitInDoubt:
    return CommitInDoubt(f"it is unknown whether {commit_name(number)} was written: {error}")


def begin(
    store: Store,
    app: str,
    kept: int = CHECKPOINTS_KEPT,
    outputs: tuple[OutputLength, ...] = (),
    found: Sequence[Commit] | None = None,
) -> Incarnation:
    """Take a store over: its newest commit under a new incarnation, or the first one of an empty store.

    `outputs` is what the first one says of the outputs: how long they are before the job writes. `found` are the
    commits by which the caller has decided, as `read_commits` gave them; None: they are read now.
    What earlier launchers have left, and no commit names, is removed. Nothing has been changed when this raises
    StoreDamaged, StoreFenced (another launcher was quicker), another StoreError or OSError; of a CommitInDoubt the next
    one to begin finds out.
    """
    before = read_commits(store) if found is None else found
    newest = before[0] if before else Commit(number=0, checkpoint=0, time=0, incarnation=0, app=app, outputs=outputs)
    if newest.app != app:
        raise StoreError(
            f"the store belongs to {newest.app!r}, not to {app!r}: name another folder, or run that program"
        )
    begun = replace(newest, number=newest.number + 1, incarnation=newest.incarnation + 1)
    incarnation = Incarnation(store, begun, before, kept)
    incarnation.commit(begun)
    with contextlib.suppress(OSError):  # what is not removed now is, by the next one that begins
        incarnation._doom_what_is_left()
        incarnation.collect()
    return incarnation


def check_named(commit: Commit, name: str) -> None:
    """Raise StoreError unless one of the checkpoints that count has this name: `commit` is the newest of them."""
    if name not in dict(commit.named):
        there = ", ".join(name for name, _ in commit.named) or "none"
        raise StoreError(f"no checkpoint is named {name!r}; available: {there}")


def taken_text(name: str) -> str:
    """Say why a checkpoint cannot have a name."""
    return (
        f"another checkpoint is already named {name!r}, so this one was taken without a name: choose another name, "
        f"or drop the old one with megaflow state rm DIR {name}"
    )


def drop_name(store: Store, name: str) -> None:
    """Do so in a store that is locked, and that no job uses. Raises StoreError if there is no such name; OSError."""
    found = read_commits(store)
    if not found:
        raise StoreError(f"the store is empty, so no checkpoint is named {name!r}")
    check_named(found[0], name)
    incarnation = begin(store, found[0].app, kept=len(found[0].kept) + 1, found=found)
    incarnation._begun = None
    incarnation.drop_name(name)
    with contextlib.suppress(OSError):
        incarnation.collect()
