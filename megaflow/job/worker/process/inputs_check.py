"""Check that a process finds the job's inputs, its store, and the places of its sinks, before it takes part.

A process of another machine may have other files, or none, under the same paths. It would wait without end for a
followed file that is not there, or read another file in place of the job's.
1. The process asks the coordinator for the unread inputs, and looks for each of them. A file is the job's file if it
   has the same path, is not shorter, and has the same bytes in SAMPLES places up to the size that the coordinator
   sees. One place is not enough, because many files begin with the same header. A followed file also has the same
   inode, under any name that the pattern matches. A source of the program checks its own partitions if it has
   `check(partitions)`. Standard input, items and Spark's rows come through the job's own processes, so there is nothing
   to look for.
2. A shared folder may show a file late, and a file may be removed or renamed meanwhile. So the process asks anew and
   looks again until LOOK_SECONDS have passed. Then it raises, and the job continues as before.
3. A joiner asks before it reports that it is ready, so a refused join changes nothing. A founder on a Spark executor
   asks at the start and does not wait. If it lacks an input, the job fails. Processes that the launcher starts on its
   own machine do not ask.
4. The coordinator answers once all followed inputs were looked for. It leaves out files that it does not find itself.
   If a file appears after its answer, each process that is to read it compares it (rule 12 of `followed_files`).
5. Looking at files may take long, so it runs in a thread, at both ends.
6. If the job has a store, the process writes a small file there and names it, and the answer says whether the
   coordinator's process sees it. A copy of the store has all that the store has, but not this file.
7. A sink with probes is checked the same way: the process writes a probe, and the coordinator's worker looks for it
   with its own copy of the sink, on its own thread. So the process opens its sinks before it asks. A founder does not
   wait, so a short job may end before. Then the last answer counts: rows in another place must not pass. It comes,
   because the question reaches the coordinator before the news that this worker's part of the dataflow has ended.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final, Protocol, TypeAlias

from megaflow.connect.source_protocol import Source
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.messages import Split
from megaflow.durable.commits import SourcePartition
from megaflow.durable.incarnation import probe_name
from megaflow.durable.store import Store
from megaflow.errors import ConfigMismatch, JoinDenied
from megaflow.job.files.file_position import SAMPLE_BYTES, digest, inodes
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.decode import decode

TOPIC: Final = "inputs"
LOOK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 0.5
SAMPLES: Final = 8  # of a file, each of SAMPLE_BYTES, evenly distributed from its first bytes to its last
SHOWN_MAX: Final = 3  # files in an error
OTHER_STORE: Final = (
    "what it writes to the folder of --state is not seen by the job, so it sees another folder there, such as a copy. "
    "All machines must see the same folder under its path: mount it here."
)
OTHER_PLACE: Final = (
    "the job does not see what this process writes with its sink {}. Its address means another place here: a relative "
    "path, a variable of the environment, or localhost. Let it mean the same place in all processes."
)

Sources: TypeAlias = Mapping[str, Source[Any]]
Probe: TypeAlias = tuple[str, bytes]
"""A sink, and a token of what a process has written to its place."""


class Sinks(Protocol):
    """The sinks of this worker, as the check uses them."""

    store: Store | None  # as this process sees it; None: the job is not durable

    @property
    def are_open(self) -> bool:
        """Whether all are open."""

    def open(self) -> None:
        """Open all that are not open."""

    def probes(self) -> tuple[Probe, ...]:
        """Write a probe with each sink that has probes."""

    def seen(self, probes: Iterable[Probe]) -> tuple[Probe, ...]:
        """Return those of another worker's probes that these sinks see."""

    def forget(self, probes: Iterable[Probe]) -> None:
        """Remove these probes."""

    def about(self, name: str) -> str:
        """Return how to name a sink in a message."""


@dataclass(frozen=True, slots=True)
class SeenFile:
    """A file that the job has not read to its end, as the coordinator's process sees it."""

    source: str  # its followed input; "": it is not followed
    path: str
    inode: int
    size: int  # bytes
    samples: str  # digest of SAMPLES pieces of these bytes


@dataclass(frozen=True, slots=True)
class InputsAsked:
    """Mail to the coordinator: the sender wants the unread inputs; `InputsSeen` is the answer."""

    probe: str = ""  # the file that it has written to the store; "": there is no store
    sinks: tuple[Probe, ...] = ()  # that it has written with its sinks


@dataclass(frozen=True, slots=True)
class InputsSeen:
    """The answer: the unread files, and unread partitions of sources that have a `check`, as (source, partition)."""

    files: tuple[SeenFile, ...]
    partitions: tuple[tuple[str, bytes], ...]
    probes: tuple[str, ...] = ()  # of those that were named, the ones that are in the store
    sinks: tuple[Probe, ...] = ()  # likewise, those that are at the places of the sinks


class InputsCheck:
    """One worker's part in the check. Everything but the looking runs on its thread."""

    def __init__(
        self, worker: Worker, sources: Sources, beside: Callable[[Callable[[], Any]], Future[Any]],
        lines: Callable[[], LinesToRead | None], sinks: Sinks, incarnation: int = 0,
    ) -> None:  # fmt: skip
        """`sources`: those that the program reads, and its followed inputs. `beside` runs a function in a thread.

        `lines` returns what is known of the inputs if this worker coordinates the job; otherwise None. `incarnation`:
        the job's, if it has a store.
        """
        self._worker, self._sources, self._beside, self._lines = worker, sources, beside, lines
        self._sinks, self._store, self._incarnation = sinks, sinks.store, incarnation
        self._asked = InputsAsked()  # by this process
        self._askers: list[tuple[int, InputsAsked]] = []  # workers that the coordinator has not answered
        self._seen: Future[InputsSeen] | None = None  # the answer to `_asking`
        self._asking: list[tuple[int, InputsAsked]] = []
        self._unseen = ""  # why this process sees another store or place than the job, as of the last answer
        self._missing: Future[list[str]] | None = None  # what this process lacks
        self._until: float | None = None  # seconds: when this process gives up; None: it does not ask
        self._again: float | None = None  # seconds: when it asks anew
        worker.on_mail(TOPIC, self._hear)

    def begin(self) -> None:
        """Open the sinks, and ask for the inputs. Call `turn` until the check is no longer `under_way`.

        Raises JoinDenied, in a founder ConfigMismatch, if this process cannot write to its store; the sinks' errors.
        """
        self._sinks.open()
        probe = ""
        if self._store is not None:
            probe = probe_name(self._incarnation)
            try:
                self._store.put(probe, [b"probe"])
            except OSError as error:
                raise self._refusal(f"it cannot write to the folder of --state: {error.strerror or error}.") from error
        self._asked = InputsAsked(probe, self._sinks.probes())
        self._until = self._worker.now() + LOOK_SECONDS
        self._ask()

    @property
    def under_way(self) -> bool:
        """Whether this process still looks for the inputs."""
        return self._until is not None

    @property
    def has_work(self) -> bool:
        """Whether this process looks for the inputs, or owes another one an answer."""
        return self._until is not None or bool(self._askers) or self._seen is not None

    def turn(self) -> float | None:
        """Go on, if there is something to do. Return the seconds until there is; None: until a message comes.

        Returns 0 as the check ends: the worker goes on at once.
        Raises JoinDenied, in a founder ConfigMismatch, if this process lacks an input.
        """
        self._answer()
        if self._until is None:
            return None
        now = self._worker.now()
        if self._missing is not None and self._missing.done():
            missing, self._missing = self._missing.result(), None
            if not missing and not self._unseen:
                self._end()
                return 0.0
            if now >= self._until:
                self._end()
                raise self._error(missing)
            self._again = now + AGAIN_SECONDS
        if self._again is None:
            return None
        if self._again <= now:
            self._ask()
            return None
        return self._again - now

    def end(self) -> Iterator[float]:
        """Give and await the last answers, as the dataflow has ended; yield how long to wait, until that is done.

        Raises ConfigMismatch if this process sees another store or place. A file that it lacks does not matter now.
        """
        until = self._worker.now() + LOOK_SECONDS  # the coordinator may have left with the question
        while self.has_work and self._worker.now() < until:
            if self._again is not None:  # the last answer was not good
                unseen = self._unseen
                self._end()
                if unseen:
                    raise self._refusal(unseen)
            elif (wait := self.turn()) is not None or self.has_work:
                yield AGAIN_SECONDS if wait is None else min(wait, AGAIN_SECONDS)
        if self.under_way:
            self._end()

    def _end(self) -> None:
        self._until = None
        if self._store is not None:
            with contextlib.suppress(OSError):  # the next launcher removes it
                self._store.delete([self._asked.probe])
        self._sinks.forget(self._asked.sinks)

    def _ask(self) -> None:
        self._again = None
        self._worker.post(self._worker.membership.coordinator, TOPIC, self._asked)

    def _hear(self, source: int, body: Any) -> None:
        match body:
            case InputsAsked():
                self._askers.append((source, body))
            case InputsSeen():
                elsewhere = [name for name, token in self._asked.sinks if (name, token) not in body.sinks]
                self._unseen = OTHER_PLACE.format(self._sinks.about(elsewhere[0])) if elsewhere else ""
                if self._asked.probe not in ("", *body.probes):
                    self._unseen = OTHER_STORE
                self._missing = self._beside(lambda: [*lacks(body, self._sources)])

    def _answer(self) -> None:
        """On the coordinator: look at the inputs if they are asked for, and answer."""
        if self._seen is not None and self._seen.done():
            seen, self._seen = self._seen.result(), None
            for asker, _ in self._asking:
                self._worker.post(asker, TOPIC, seen)
        if self._askers and self._seen is None and (lines := self._lines()) is not None:
            unheard = lines.partitions.state.unheard
            if not self._sinks.are_open or any(isinstance(self._sources.get(name), FollowedFiles) for name in unheard):
                return
            self._asking, self._askers = self._askers, []
            splits, partitions = [each for each, _ in lines.unread], [each for each, _ in lines.partitions.unread]
            probes = [asked.probe for _, asked in self._asking]
            sinks = self._sinks.seen(probe for _, asked in self._asking for probe in asked.sinks)
            self._seen = self._beside(lambda: look(splits, partitions, self._sources, self._store, probes, sinks))

    def _error(self, missing: list[str]) -> JoinDenied | ConfigMismatch:
        if self._unseen:
            return self._refusal(self._unseen)
        shown = "; ".join(missing[:SHOWN_MAX])
        more = f"; and {len(missing) - SHOWN_MAX} more" if len(missing) > SHOWN_MAX else ""
        fix = "Every process of a job must see its files under the same paths: mount the folder here"
        if self._worker.rescaling.joining:
            return JoinDenied(
                f"This process cannot join: it does not find inputs that the job still reads: {shown}{more}. {fix}, "
                "or give the job workers on its own machine by `megaflow control add-workers`."
            )
        return ConfigMismatch(
            f"Worker {self._worker.index} does not find inputs of the job: {shown}{more}. {fix}."
        )

    def _refusal(self, why: str) -> JoinDenied | ConfigMismatch:
        if self._worker.rescaling.joining:
            return JoinDenied(f"This process cannot join: {why}")
        return ConfigMismatch(f"Worker {self._worker.index}: {why}")


def look(
    splits: Iterable[Split], partitions: Iterable[SourcePartition], sources: Sources, store: Store | None = None,
    probes: Iterable[str] = (), sinks: tuple[Probe, ...] = (),
) -> InputsSeen:  # fmt: skip
    """Return the unread inputs, and those of the probes in the store, that this process sees.

    `sinks`: probes that its sinks see. Costs a look at each file.
    """
    files = {path: seen for path in dict.fromkeys(split.path for split in splits) if (seen := seen_file("", path))}
    followed: dict[str, set[int]] = {}
    own: list[tuple[str, bytes]] = []
    for each in partitions:
        source = sources.get(each.input)
        if isinstance(source, FollowedFiles):
            followed.setdefault(each.input, set()).add(decode(each.partition))
        elif hasattr(source, "check"):
            own.append((each.input, each.partition))
    grow = [
        seen for name, wanted in followed.items() for inode, path in names_of(sources[name]).items()
        if inode in wanted and (seen := seen_file(name, path)) is not None and seen.inode == inode
    ]  # fmt: skip
    found = tuple(probe for probe in probes if store is not None and is_there(store, probe))
    return InputsSeen((*files.values(), *grow), tuple(own), found, sinks)


def is_there(store: Store, name: str) -> bool:
    """Return whether this process sees a file of a store."""
    try:
        return store.length(name) is not None
    except OSError:
        return False


def lacks(wanted: InputsSeen, sources: Sources) -> Iterator[str]:
    """Yield what this process lacks of these inputs, in words. Costs a look at each file."""
    names = {name: names_of(sources[name]) for name in dict.fromkeys(each.source for each in wanted.files) if name}
    for each in wanted.files:
        if (fault := fault_of(each, names.get(each.source))) is not None:
            yield fault
    for name in dict.fromkeys(source for source, _ in wanted.partitions):
        check: Any = sources[name]
        try:
            check.check([decode(partition) for source, partition in wanted.partitions if source == name])
        except Exception as error:
            yield f"the source {name!r} says: {type(error).__name__}: {error}"


def names_of(source: Any) -> dict[int, str]:
    """Return the files of a followed input, by inode."""
    return inodes(source.pattern)


def seen_file(source: str, path: str) -> SeenFile | None:
    """Return how this process sees a file; None if it cannot read it."""
    try:
        return read_file(source, path)
    except OSError:
        return None


def read_file(source: str, path: str, wanted: int | None = None) -> SeenFile:
    """Return how this process sees a file, with samples of its first `wanted` bytes; None: of all. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError("it is not a regular file")
        size = status.st_size if wanted is None else min(wanted, status.st_size)
        starts = {max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1) for number in range(SAMPLES)}
        pieces = (os.pread(file.fileno(), min(SAMPLE_BYTES, size), start) for start in sorted(starts))
        return SeenFile(source, path, status.st_ino, status.st_size, digest(b"".join(pieces)))


def fault_of(wanted: SeenFile, names: Mapping[int, str] | None) -> str | None:
    """Return why a file is not the job's file here, in words; None if it is. `names`: of its input, if it is followed.
    """
    path = wanted.path if names is None else names.get(wanted.inode, wanted.path)
    try:
        here = read_file(wanted.source, path, wanted.size)
    except FileNotFoundError:
        return f"{path!r} is not there"
    except OSError as error:
        return f"{path!r} cannot be read ({error.strerror or error})"
    if here.size < wanted.size:
        return f"{path!r} has {here.size} bytes here, and {wanted.size} where the job reads it"
    if here.samples != wanted.samples:
        return f"{path!r} is another file here: it has other bytes"
    if names is not None and here.inode != wanted.inode:
        return f"{path!r} is another file here: its inode is {here.inode}, not {wanted.inode}"
    return None
