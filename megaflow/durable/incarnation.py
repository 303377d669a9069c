"""An incarnation: one launcher's time with a store, from its first commit to its end or the next incarnation.

Commits are numbered without a gap, and a launcher that writes number k + 1 has read or written k. So if two launchers
both believe that they own the store, exactly one of them writes the next commit. The other launcher is *fenced*:
nothing that it writes is ever read.
 1. An incarnation begins with its own commit, before the launcher changes anything else and before it starts any child.
    Only then does it remove files that no commit names: until then, an older launcher could still commit them. The
    launcher reads the commits once, decides from them what to read, and writes its first commit directly after the
    newest of them. If it took over a newer commit unseen, it would read again the input that this commit contains.
    `begin_anew` continues only from this launcher's own commit.
 2. A commit counts if it is written and no higher one exists. A launcher that slept for long might find its next number
    free again, because its successor has used it and, many commits later, removed it. So a launcher looks for a higher
    commit after each write. If there is one, it takes its own back. The highest commit is never removed.
 3. A commit in doubt is neither acknowledged nor given up, and no other checkpoint may follow: call `commit` again with
    the same one. If the file exists, `commit` repeats it under the next number. If not, `commit` writes it anew, unless
    a higher commit exists: then a successor has repeated it and removed it. So after any crash, the recovered
    checkpoint is the newest acknowledged one or the one in doubt.

Removal of files
 4. A launcher keeps the newest commits of the last few checkpoints, and those of checkpoints with a name, until the
    name is dropped. The highest commit names the others. A commit that repeats a checkpoint takes over its names,
    because a launcher that slept may take the repeated one back. Any other file that looks like a commit does not
    count: a launcher that slept may have found a number free (rule 2), and have ended before it noticed why.
 5. Commit files are removed only after a commit that does not name them is durable. Then their segments are removed,
    unless a kept commit also names them. So at every moment, each commit that counts has all of its segments. The
    commit that begins the incarnation also stays until a later checkpoint is committed, because processes that start
    read it.
 6. A segment that no commit has named stays while its incarnation lasts, because it may be in flight. There are two
    exceptions. `give_up` may have announced that no commit will name it. Or its worker has written a later segment that
    is committed: a worker numbers its segments in order, so the earlier ones belong to abandoned checkpoints. The next
    incarnation removes all of them. It knows them by the incarnation in their names, so it spares the segments of a
    successor that it may not know.
 7. Files that cannot be removed are tried again after the next commit. They block nothing.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from megaflow.durable.commits import COMMIT_NAME, Commit, OutputLength, commit_from_bytes, commit_name, commit_numbers
from megaflow.durable.segments import SEGMENT_NAME, SegmentRef
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt, StoreDamaged, StoreError, StoreFenced, StoreUnfit, naming

CHECKPOINTS_KEPT: Final = 3
LINEAGES_MAX: Final = 16  # that a commit keeps: of parents, and of its own
ASIDE: Final = r"(?:\.\d+\.tmp)?"  # the suffix that `store` gives to a file while it writes it
COMMIT_FILE: Final = re.compile(COMMIT_NAME.pattern + ASIDE)
SEGMENT_FILE: Final = re.compile(SEGMENT_NAME.pattern + ASIDE)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a store says about the places that the job's sinks write to: see `lineage`."""

    lineage: str = ""  # "": there is no store, or nothing is compared
    parents: tuple[str, ...] = ()  # lineages of the stores from which it was forked; empty: it is no fork
    earlier: tuple[str, ...] = ()  # lineages that it had before
    checkpoint: int = 0  # its newest
    delivered: tuple[tuple[str, int], ...] = ()  # (sink, last checkpoint of which it delivered records; 0: none)
    tokens: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (sink, names of its tokens of that checkpoint)
    newest: frozenset[str] = frozenset()  # names of all tokens of the newest checkpoint, of any sink
    accepted: tuple[str, ...] = ()  # sinks that are not compared, as the user wishes
    found: tuple[str, ...] = ()  # sinks whose deliveries the rehearsal has found, if there were any
    before: tuple[tuple[str, str, int, tuple[str, ...]], ...] = ()  # as `Commit.delivered_before`


NOT_COMPARED: Final = Standing()


@dataclass(frozen=True, slots=True)
class PartialWindows:
    """Up to which timestamps windows may lack records, in microseconds: see `state_migration`.

    >>> partial = PartialWindows((("kept", None), ("since", 7)), 9)
    >>> partial.of("kept"), partial.of("since"), partial.of("new")
    (None, 7, 9)
    """

    known: tuple[tuple[str, int | None], ...] = ()  # operator with states in the commit -> its limit; None: it has none
    fresh: int | None = None  # the limit of all others
    are_emitted: bool = False  # whether their results are put out like all others

    def of(self, operator: str) -> int | None:
        """Return the limit of an operator; None if its windows lack nothing."""
        return dict(self.known).get(operator, self.fresh)


NONE_PARTIAL: Final = PartialWindows()
PARTIAL_CHOICES: Final = ("leave-out", "emit")
"""What a user may wish for the results of partial windows."""


@dataclass(frozen=True, slots=True)
class DurablePart:
    """Information about the store for a worker process."""

    folder: str  # absolute
    incarnation: int  # the one that writes
    commit: int | None  # number of the commit to begin from; None: there is no checkpoint yet, or the process joins
    checkpoint_every: float = 1.0  # least time in seconds from a commit to the next checkpoint
    renamed: tuple[tuple[str, str], ...] = ()  # operators: (name in the store, name in the program)
    dropped: tuple[str, ...] = ()  # operators whose states are given up
    is_changed: bool = False  # whether the program certainly differs from the one that wrote the commit
    run: int = 0  # the first incarnation of the current run, which continues through recoveries
    standing: Standing = NOT_COMPARED
    partial: PartialWindows = NONE_PARTIAL


def read_commit(store: Store, number: int) -> Commit:
    """Return a commit of a store. Raises FileNotFoundError with its name, StoreDamaged or StoreError; OSError."""
    name = commit_name(number)
    return commit_from_bytes(name, store.read(name))


def read_commits(store: Store) -> list[Commit]:
    """Return the commits that count, newest first. All of their segments exist and have the recorded lengths.

    Readers of segments check their content, block by block. Raises StoreDamaged, StoreError or OSError, and never
    returns an older commit instead of a damaged one.
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
                continue  # a launcher that still runs continues, and removes what it does not keep
            if isinstance(error, StoreDamaged):
                raise
            raise missing(numbers[-1], str(error.filename)) from error


def missing(number: int, name: str) -> StoreDamaged:
    """Return the error for a missing file that a commit names."""
    return StoreDamaged(f"{commit_name(number)} names {name}, which is missing; restore the store from a backup")


def is_newer(store: Store, numbers: Sequence[int]) -> bool:
    """Tell whether the store now has a higher commit than these."""
    return commit_numbers(store.list())[-1:] > list(numbers[-1:])


def check_present(commit: Commit, segment: SegmentRef, lengths: dict[str, int]) -> None:
    """Raise StoreDamaged unless a segment exists and has the length in its commit."""
    length = lengths.get(segment.name)
    if length is None:
        raise missing(commit.number, segment.name)
    if length != segment.length:
        raise StoreDamaged(
            f"{commit_name(commit.number)} names {segment.name} with {segment.length} bytes, but it has {length}; "
            "restore the store from a backup"
        )


def check_same_store(store: Store, part: DurablePart, joins: bool = True) -> None:
    """Raise StoreUnfit unless the folder that this process sees is the job's store, and StoreError if it may not write.

    The newest commit must be of this lineage and, if the process `joins`, of this incarnation. (The commit that begins
    it is new when founders look. A network file system may not list it yet.) A copy of this incarnation is found out by
    another process that looks for a probe, and at the latest by `check_arrived`. Raises StoreDamaged for a damaged
    store. Costs reading the newest commits, and writing a small file.
    """
    with naming(StoreError, f"The job keeps its state in {part.folder}, which this process cannot use"):
        found = read_commits(store)
        is_same = bool(found) and found[0].lineage == part.standing.lineage
        if is_same and (not joins or found[0].incarnation >= part.incarnation):
            store.probe(probe_name(part.incarnation))
            return
    what = "an older copy" if is_same else "another store" if found else "no store"
    raise StoreUnfit(
        f"The job keeps its state in {part.folder}, but this process sees {what} there, so what it wrote would be "
        "missing in the job's. All machines must see the same folder under this path: mount it here."
    )


def probe_name(incarnation: int) -> str:
    """Return a new name for a file that shows whether two processes see the same store. Later launchers remove it."""
    return f"i{incarnation}-w{uuid4().int}-000000.seg"


def check_arrived(store: Store, folder: str, commit: Commit, latest: Commit) -> None:
    """Raise StoreError unless the segments that `commit` names, and the `latest` one does not, are in the folder.

    If one is missing, its process sees another folder under this path. It may be of an earlier checkpoint that failed
    for that reason, because an outbox repeats its tokens. Costs a look at each of these segments.
    """
    known = {each.name for each in latest.files}
    for each in commit.files:
        named = SEGMENT_NAME.fullmatch(each.name)
        if each.name not in known and named is not None and store.length(each.name) != each.length:
            raise StoreError(
                f"{each.name}, which worker {named[2]} has written, is not in {folder}. The machine of the worker sees "
                "another folder under this path: mount the same folder there, or remove the worker: megaflow control "
                f"remove-workers --id {named[2]}"
            )


class Incarnation:
    """A launcher's hold on its store. Made by `begin`."""

    def __init__(self, store: Store, begun: Commit, before: Iterable[Commit], kept: int) -> None:
        self._store = store
        self._kept = kept
        self._doubtful: Commit | None = None  # the last one tried, if it is not known whether its file exists
        self._number = begun.number - 1  # of the newest commit that certainly exists, durable or not
        self._begun: int | None = begun.number  # of the commit that processes read; None: no process reads one
        self._commits: dict[int, tuple[int, frozenset[str]]] = {}  # number -> checkpoint, segments; of existing commits
        self._doomed: set[str] = set()  # files to remove, unless a kept commit names them
        self.latest = begun  # the newest durable commit
        self.tried = begun.checkpoint  # the checkpoint of the last `commit`
        for commit in before:
            self._know(commit)

    @property
    def in_doubt(self) -> bool:
        """Whether recovery may find a commit later than `latest`, of checkpoint `tried`."""
        return self._doubtful is not None or self._number > self.latest.number

    def commit(self, commit: Commit, names: Iterable[str] = (), dropped: Iterable[str] = ()) -> Commit:
        """Make a checkpoint durable; return the commit as written, with its number and this incarnation.

        It gets these `names`, which no other checkpoint has; names in `dropped` keep no checkpoint from now on. Raises
        OSError if nothing has changed, so the checkpoint may be given up. Raises CommitInDoubt if it must not be given
        up: call this again with the same commit. Raises StoreFenced if another launcher has the store, and this one
        must stop.
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
        except OSError as error:  # this commit is not written, but an earlier one may be
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
        """Begin the next incarnation of the same launcher from the store, after its processes have ended.

        Raises like `begin`. Also raises StoreFenced if the newest commit, in doubt or not, belongs to another launcher,
        and StoreDamaged if there is no commit.
        """
        found = read_commits(self._store)
        if not found:
            raise StoreDamaged("the store has lost all its commits: restore it from a backup")
        if found[0].incarnation != self.latest.incarnation:
            raise self._fenced(found[0].number)
        return begin(self._store, self.latest.app, self._kept, found=found)

    def give_up(self, names: Iterable[str]) -> None:
        """Allow the removal, after the next commit, of segments of this incarnation that no commit will name."""
        self._doomed.update(names)

    def drop_name(self, name: str) -> None:
        """Drop a checkpoint's name. Raises StoreError if no checkpoint has it, and like `commit`."""
        check_named(self.latest, name)
        self.commit(self.latest, dropped=[name])

    def collect(self) -> None:
        """Remove files that are not kept; call this after a commit. After an OSError, the next call tries again."""
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
        """Mark for removal the segments of this incarnation whose workers have committed later ones."""
        latest = self.latest
        own = [SEGMENT_FILE.fullmatch(each.name) for each in latest.files if each.checkpoint == latest.checkpoint]
        first: dict[str | None, int] = {}  # worker -> the lowest number of its segments in the newest checkpoint
        for named in own:
            if named is not None and int(named[1]) == latest.incarnation:
                first[named[2]] = min(int(named[3]), first.get(named[2], int(named[3])))
        for name in self._store.list() if first else ():
            found = SEGMENT_FILE.fullmatch(name)
            if found is not None and int(found[1]) == latest.incarnation and int(found[3]) < first.get(found[2], 0):
                self._doomed.add(name)

    def _repeats(self, commit: Commit, number: int) -> bool:
        """Tell whether a new commit repeats the checkpoint of an existing one: see rule 4."""
        return number in self._commits and self._commits[number][0] == commit.checkpoint

    def _to_keep(self, checkpoint: int) -> tuple[int, ...]:
        """Return the numbers of the commits to keep beside a new one of this checkpoint, newest first."""
        kept: dict[int, int] = {}  # checkpoint -> number
        for number in sorted(self._commits, reverse=True):
            kept.setdefault(self._commits[number][0], number)
        kept.pop(checkpoint, None)
        return tuple(kept.values())[: self._kept - 1]

    def _settle(self) -> None:
        """Find out whether the commit in doubt exists."""
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
        """Record that a commit of this incarnation exists."""
        self._number = commit.number
        self._know(commit)

    def _know(self, commit: Commit) -> None:
        self._commits[commit.number] = commit.checkpoint, frozenset(each.name for each in commit.files)

    def _check_highest(self, number: int) -> None:
        """If there is a higher commit, take this one back and raise StoreFenced."""
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
        """Mark for removal the files that earlier launchers have left and no valid commit names."""
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
    renews: bool = False,
    settled: Collection[str] = (),
) -> Incarnation:
    """Take a store over: repeat its newest commit in a new incarnation, or write the first one of an empty store.

    The first commit records `outputs`, their lengths before the job writes. `found` are the commits from which the
    caller has decided, as `read_commits` returned them; None: read them now. `renews`: draw another lineage, and forget
    what the `settled` sinks have delivered. Files that earlier launchers have left and no commit names are removed. If
    this raises StoreDamaged, StoreFenced (another launcher was faster), another StoreError or OSError, nothing has
    changed. After a CommitInDoubt, the next call finds out.
    """
    before = read_commits(store) if found is None else found
    newest = before[0] if before else Commit(number=0, checkpoint=0, time=0, incarnation=0, app=app, outputs=outputs)
    if newest.app != app:
        raise StoreError(
            f"the store belongs to {newest.app!r}, not to {app!r}: name another folder, or run that program"
        )
    if renews or not newest.lineage:
        newest = renewed(newest, settled)
    begun = replace(newest, number=newest.number + 1, incarnation=newest.incarnation + 1)
    incarnation = Incarnation(store, begun, before, kept)
    incarnation.commit(begun)
    with contextlib.suppress(OSError):  # the next launcher that begins removes what stays now
        incarnation._doom_what_is_left()
        incarnation.collect()
    return incarnation


def renewed(commit: Commit, settled: Collection[str] = ()) -> Commit:
    """Return a commit with a new lineage, without deliveries.

    `delivered_before` has the last ones of earlier lineages, except those of the `settled` sinks.
    """
    earlier = (commit.lineage, *commit.earlier)[:LINEAGES_MAX] if commit.lineage else ()
    tokens = dict(commit.delivered_tokens)
    before = {each[0]: each for each in commit.delivered_before}
    before |= {sink: (sink, commit.lineage, n, tokens.get(sink, ())) for sink, n in commit.delivered if n}
    return replace(
        commit, lineage=uuid4().hex, earlier=earlier, delivered=tuple((sink, 0) for sink, _ in commit.delivered),
        delivered_tokens=(), delivered_before=tuple(before[sink] for sink in sorted(before) if sink not in settled),
    )  # fmt: skip


def check_named(commit: Commit, name: str) -> None:
    """Raise StoreError unless a valid checkpoint has this name; `commit` is the newest commit."""
    if name not in dict(commit.named):
        there = ", ".join(name for name, _ in commit.named) or "none"
        raise StoreError(f"no checkpoint is named {name!r}; available: {there}")


def taken_text(name: str) -> str:
    """Return why a checkpoint cannot have a name."""
    return (
        f"another checkpoint is already named {name!r}, so this one was taken without a name: choose another name, "
        f"or drop the old one with megaflow state rm DIR {name}"
    )


def drop_name(store: Store, name: str) -> None:
    """Drop a name in a locked store that no job uses. Raises StoreError if no checkpoint has it; OSError."""
    found = read_commits(store)
    if not found:
        raise StoreError(f"the store is empty, so no checkpoint is named {name!r}")
    check_named(found[0], name)
    incarnation = begin(store, found[0].app, kept=len(found[0].kept) + 1, found=found)
    incarnation._begun = None
    incarnation.drop_name(name)
    with contextlib.suppress(OSError):
        incarnation.collect()
