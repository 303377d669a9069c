"""How a job with a store begins: new, or from where the last one was.

In this order, so that whatever is refused has changed nothing, and a crash in between is made good by the next start:
 1. The store is opened and locked, and its commits are read. A source that cannot be read again is refused.
 2. What the store says is compared with the outputs' names, with the input's files, and with what the program has of
    operators and sources: in a rehearsal, for which a process builds it without running it, unless its files and
    arguments are those that the checkpoint was taken with. It tells as well whether a job that had ended has a source
    to read by now. All segments that the job goes on from are read, and compared with their checksums.
 3. The outputs are opened and locked, and their lengths compared. This is the last check, as with `take_over` it may
    end another launcher (`spark_results`).
 4. The store is taken over by a commit of a new incarnation: from here on no other launcher can commit.
 5. The output is cut back to what is committed. Processes are started after that.
Other code is allowed, and said; but not where the job goes on by itself after a loss, as nobody would see it.
With `take_over` a launcher that does not answer, suspended for one, may have the locks. It keeps them up to step 4, as
it may be healthy and the newer launcher may be refused. After that it goes on, with processes that send it outputs,
until it wants to commit: that fails, and it ends. What it writes to the output until then is in another file (see
`output_copy`).
"""

import json
import os
import pickle
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from megaflow.control.messages import Split
from megaflow.control.packed_rows import names_text
from megaflow.control.wording import quantity
from megaflow.durable.commits import COMMIT_NAME, Commit, Fingerprint
from megaflow.durable.copying import Origin
from megaflow.durable.incarnation import DurablePart
from megaflow.durable.local_folder import open_for_a_job
from megaflow.durable.query_record import is_restored
from megaflow.errors import ClusterError, PeerFailed, StoreError, UsageError
from megaflow.job.exit_report import KeptBins
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.first_owners import OwnersBefore, first_owners, gone_text, of_checkpoint, table_of
from megaflow.job.launcher.kept_input import KeptInput, check_followed, check_rotated, check_there, resumed_input
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.launcher.place import BOOT, COMMAND
from megaflow.job.launcher.several_outputs import compare_lengths
from megaflow.job.launcher.store_keeper import StoreKeeper
from megaflow.job.program_code import code_now, difference
from megaflow.job.spec import AppFile, JobSpec, Rehearsal
from megaflow.quick_dataclass import dataclass
from megaflow.spark.kept_query import KeptQuery, check_record, keep_query
from megaflow.spark.query_spec import NOT_READ_AGAIN, RowFrames, SparkSpec

MEGABYTE: Final = 1e6
REHEARSAL: Final = tuple(BOOT.format("rehearsal") if "import" in word else word for word in COMMAND)
OTHER_STORE: Final = "start over with a new --state folder"
OTHER_LINES: Final = f"name them by --lines again, or {OTHER_STORE}"


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a job begins with."""

    job_input: JobInput  # what is still to be read
    part: DurablePart | None = None  # for the worker processes; None: nothing is durable
    is_over: bool = False  # all lines were read, and there are no new ones
    code: Fingerprint | None = None  # of the program's files; None: not known
    kept: KeptBins = ()  # that each worker begins with, by their ids; empty: they are dealt round
    gone: str = ""  # what is to be said of workers that owned bins and are not there


def open_store(spec: JobSpec, job_input: JobInput) -> StoreKeeper:
    """Open the store of a job. Raises UsageError for a source that cannot be read again, StoreError."""
    if job_input.pushed:
        raise UsageError(
            "--state: Standard input and iterables cannot be read again after a crash. Write the lines to a file "
            "and name that file by --lines."
        )
    if isinstance(job_input.spark, SparkSpec) and job_input.spark.format in NOT_READ_AGAIN:
        raise UsageError(
            f"--state: The lines of {job_input.spark} cannot be read again after a crash. Write them to files or "
            "to Kafka, and read these."
        )
    if isinstance(job_input.spark, RowFrames):
        check_kept_rows(job_input.spark)
    assert spec.state is not None, "there is a store"
    check_given_names(spec)
    origin = open_origin(*spec.origin, spec.state) if spec.origin is not None else None
    open_folder = partial(open_for_a_job, take_over=spec.take_over, for_a_copy=origin is not None)
    try:
        return StoreKeeper(spec.state, app_name(spec), spec.checkpoints_kept, open_folder, origin)
    except BaseException:
        if origin is not None:
            origin.close()
        raise


def check_kept_rows(given: RowFrames) -> None:
    """Raise UsageError for rows that a store cannot keep."""
    if len(given.frames) > 1:
        raise UsageError(
            f"--state keeps one input of rows, but there are {len(given.frames)}: {names_text(given.names)}. "
            "Join or union them in Spark, or leave --state out."
        )
    [(name, frame)] = given.frames.items()
    if isinstance(frame, SparkSpec) and frame.format in NOT_READ_AGAIN:
        raise UsageError(f"--state: The rows of {frame} cannot be read again after a crash. Write them to files first.")
    if not isinstance(frame, SparkSpec) and not frame.isStreaming:
        raise UsageError(
            f"--state: The rows {name!r} are a batch DataFrame, which can be read only once. Write them to "
            f"files, and read these: rows={{{name!r}: 'spark:parquet:FOLDER?trigger=availableNow'}}"
        )


def open_origin(folder: str, checkpoint: str, state: str) -> Origin | None:
    """Open what a new store is to begin with; None if `state` is not new. Raises UsageError or StoreError."""
    if os.path.realpath(folder) == os.path.realpath(state):
        raise UsageError(
            f"--from-checkpoint and --state name the same folder, {state}. To start a separate job, name a new "
            "--state folder; to resume this job, leave --from-checkpoint out."
        )
    if os.path.isdir(state) and any(map(COMMIT_NAME.fullmatch, os.listdir(state))):
        return None
    try:
        return Origin(folder, checkpoint)
    except OSError as error:
        raise StoreError(f"Cannot read the store {folder}: {error.strerror}.") from error


def renamings(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return what `--rename-state` says, each OLD=NEW. Raises UsageError.

    What is in a store has the name that it has; a new one is better chosen without "=".

    >>> renamings(["count=words", "a=b=c"])
    (('count', 'words'), ('a=b', 'c'))
    """
    pairs = tuple((old, new) for old, _, new in (each.rpartition("=") for each in given))
    for each, (old, new) in zip(given, pairs, strict=True):
        if not old or not new or old == new:
            raise UsageError(f"--rename-state {each}: must be OLD=NEW, with two different names of operators.")
    return pairs


def check_given_names(spec: JobSpec) -> None:
    """Raise UsageError if an operator is renamed or dropped twice, or both."""
    old, new = [old for old, _ in spec.renamed], [new for _, new in spec.renamed]
    for name in {*old, *new, *spec.dropped}:
        if old.count(name) + spec.dropped.count(name) > 1 or new.count(name) > 1 or (name in old and name in new):
            raise UsageError(f"--rename-state and --drop-state name operator {name!r} twice. Name it once.")


def app_name(spec: JobSpec) -> str:
    """Return whose a store is: FILE:FUNCTION without the folder, or a function's name."""
    app = spec.app
    return app.name


def rehearse_in_a_process(task: Rehearsal) -> Collection[str]:
    """Return which sources a program reads, by their names, but for files.

    Raises StoreError if it cannot go on with what the store has, PeerFailed with the traceback if it cannot be built.
    Blocks as long as building it takes, and a Python process to start.
    """
    files = [file for _, file in task.opened]
    done = subprocess.run(
        REHEARSAL, input=pickle.dumps(task), stdout=subprocess.PIPE, process_group=0, pass_fds=files, check=False
    )
    if done.returncode or not done.stdout:
        raise ClusterError(f"The process that builds the program exited with code {done.returncode} without a message.")
    match json.loads(done.stdout):
        case {"refused": str(text)}:
            raise StoreError(text)
        case {"failed": str(text)}:
            raise PeerFailed(text)
        case answer:
            sources: list[str] = answer["sources"]
            return sources


def check_kind(found: Commit, job_input: JobInput, whose: str) -> None:
    """Raise StoreError if a job reads another kind of input than the commit of the store `whose` says."""
    if job_input.spark is None and found.spark:
        raise StoreError(f"{whose} belongs to Spark's lines; {OTHER_LINES}.")
    if job_input.spark is not None and found.splits:
        raise StoreError(f"{whose} belongs to lines from files; {OTHER_LINES}.")
    if job_input.followed and found.splits:
        raise StoreError(f"{whose} belongs to files that are not followed; leave --follow out, or {OTHER_STORE}.")


def has_nothing_left(found: Commit, job_input: JobInput) -> bool:
    """Tell whether a job that goes on from a commit has nothing to read, and nothing to deliver to a sink."""
    reads = job_input.splits or job_input.spark or job_input.followed
    may_read = found.finished or found.sources  # which may find more partitions
    return found.ended and not (reads or may_read or found.tokens)


def rehearsal_of(
    spec: JobSpec, part: DurablePart, job_input: JobInput, writer: Writer, opened: tuple[tuple[str, int], ...]
) -> Rehearsal:
    """Return what a process must know that builds the program, to go on with the commit that `part` names."""
    has_lines = bool(job_input.splits) or job_input.spark is not None
    outputs = tuple(name for name, _ in writer.forms if name)
    followed = tuple(name for name, *_ in job_input.followed)
    return Rehearsal(spec, part, has_lines, job_input.rows, job_input.lines, outputs, followed, opened)


def resume(
    keeper: StoreKeeper,
    spec: JobSpec,
    writer: Writer,
    job_input: JobInput,
    report: Callable[[str], None],
    rehearse: Callable[[Rehearsal], Collection[str]] = rehearse_in_a_process,
) -> Resumption:
    """Take a store over, and bring input and output to where it is; `report` tells the user what came of it.

    Raises StoreError if they are not what the store says; nothing has changed then. `rehearse` raises what the program
    has against it, and returns the names of the sources that it reads.
    """
    found = keeper.found
    if (spec.renamed or spec.dropped) and (found is None or found.checkpoint == 0):
        raise StoreError(
            f"--rename-state and --drop-state: The store {keeper.path} has no states yet. Name the folder that "
            "has them, or leave these flags out."
        )
    keeper.check_outputs(writer.lengths(0))
    if found is not None:
        check_kind(found, job_input, f"the store {keeper.path}" if keeper.origin is None else keeper.origin.title)
    if found is not None and not is_restored(keeper.path, found):
        check_record(keeper.path, found.spark, job_input.rows)
    if found is not None:
        check_rotated(found, job_input.followed, spec.allow_loss, report)
    keeper.input = KeptInput(job_input.splits) if found is None else resumed_input(found.splits, job_input.splits)
    job_input = replace(job_input, splits=keeper.input.to_read)
    part = DurablePart(os.path.abspath(keeper.path), 0, None, spec.checkpoint_every, spec.renamed, spec.dropped)
    is_over = found is not None and has_nothing_left(found, job_input) and not spec.close_windows
    code = None if found is None or found.code is None else code_now(found.code, spec)
    other = None if found is None else difference(code, found.code)
    is_same = isinstance(spec.app, AppFile) and code is not None and not (other or spec.renamed or spec.dropped)
    if found is not None and found.checkpoint and not is_same:
        folder = part.folder if keeper.origin is None else os.path.abspath(keeper.origin.path)
        task = rehearsal_of(spec, replace(part, folder=folder, commit=found.number), job_input, writer, keeper.opened)
        is_over = not rehearse(task) and is_over  # a source may be new
    if not is_over:  # else nothing of it is read
        keeper.check_whole()
    length = writer.hold(spec.take_over)
    if found is not None and keeper.origin is None:
        compare_lengths(found.outputs, writer.lengths(length))
    fleeting = [each.name for each in writer.parts if not each.is_kept]
    for name in fleeting:
        report(
            f"the output goes to {name}, which cannot be truncated: after a crash, the records since the last "
            "checkpoint are written again"
        )
    begun = keeper.begin(writer.lengths(length))
    if job_input.spark is not None:
        job_input = replace(job_input, spark=keep_query(keeper.path, begun.spark, job_input.spark, job_input.rows))
    number = begun.number if begun.checkpoint else None
    part = replace(part, incarnation=begun.incarnation, commit=number, is_changed=other is not None)
    owners = of_checkpoint(begun.table, begun.members, count := spec.processes * spec.workers)
    if found is not None and keeper.origin is not None:
        text = resumption_text(begun, found.written_at, 0, time.time())
        report(f"begins with {keeper.origin.title}: {text}{gone_text(owners)}")
    elif found is not None:
        if spec.origin is not None:
            report(f"{keeper.path} already has a store, so the job resumes from that and ignores --from-checkpoint")
        committed = writer.length_of(begun.outputs)
        writer.cut_back(committed)
        again = max(0, length - committed) if not fleeting else 0
        text = resumption_text(begun, found.written_at, again, time.time(), writer.unit)
        text += skipped_text(keeper.input.to_read) + gone_text(owners)
        report(f"{text}; with other code: {other}" if other else text)
    if keeper.taken_from is not None:
        tail = f"; until then it may also write to {' and '.join(fleeting)}" if fleeting else ""
        report(f"takes the place of {keeper.taken_from}, which stops by itself when it wakes up{tail}")
    return Resumption(job_input, part, is_over, code=code, kept=first_owners(owners, count, may_be_new=True))


def go_on(
    before: Resumption,
    keeper: StoreKeeper,
    since: int,
    spec: JobSpec,
    kept: Sequence[Collection[int] | None] = (),
    places: Mapping[int, int] = MappingProxyType({}),
) -> Resumption:
    """Return what a job goes on with whose processes are lost: it had begun with `before`, from checkpoint `since`.

    `kept` are bins that processes have in memory, and `places` who has which place: see `first_owners`. The keeper has
    begun anew. Raises StoreError if the input's files
    are not what was read, ClusterError if the program is not what was run.
    """
    latest, part = keeper.latest, before.part
    assert part is not None, "it is durable"
    code, table = before.code, table_of(before.kept)
    check_followed(latest, before.job_input.followed, spec.allow_loss, lambda text: None)  # workers tell
    if latest.checkpoint > since:  # else there is still to be read what was
        found = (split for split in keeper.input.splits if os.path.exists(split.path))
        keeper.input = resumed_input(latest.splits, found)
        code, table = latest.code, latest.table
    if code is not None and (other := difference(code_now(code, spec), code)):
        raise ClusterError(f"the job does not restart by itself, as the program has changed since it started: {other}")
    number = latest.number if latest.checkpoint else None
    is_changed = part.is_changed and latest.checkpoint == since  # what a later one has is the program's own
    check_there(keeper.input.to_read)
    job_input = replace(before.job_input, splits=keeper.input.to_read)
    if isinstance(job_input.spark, KeptQuery):
        check_record(keeper.path, latest.spark, job_input.rows)
        query = keep_query(keeper.path, latest.spark, job_input.spark.lines, job_input.rows)
        job_input = replace(job_input, spark=query)
    owners = OwnersBefore(table, places)
    return Resumption(
        job_input,
        replace(part, incarnation=latest.incarnation, commit=number, is_changed=is_changed),
        code=code,
        kept=first_owners(owners, len(kept), kept),
        gone=gone_text(owners),
    )


def skipped_text(splits: Iterable[Split]) -> str:
    """Say how much of compressed files is decompressed again.

    >>> skipped_text([Split(0, "a.gz", 0, 100_000, skip=2_000_000), Split(1, "b", 5, 10)])
    '; 2.0 MB of text in 1 compressed file were already read and are decompressed again to skip them'
    """
    skips = [split.skip for split in splits if split.skip]
    tail = f"; {sum(skips) / MEGABYTE:.1f} MB of text in {quantity(len(skips), 'compressed file')}"
    return f"{tail} were already read and are decompressed again to skip them" if skips else ""


def resumption_text(begun: Commit, written_at: float, cut_back: int, now: float, unit: str = "byte") -> str:
    """Say where a job goes on.

    >>> print(resumption_text(Commit(7, 3, 41, 2, written_at=1000.0), 1000.0, 12, 1004.2))
    resumes from checkpoint 3, 4 s old: all before epoch 41, 0 keys in 0.0 kB; 12 bytes of the output are written again
    """
    tail = f"; {quantity(cut_back, unit)} of the output {'is' if cut_back == 1 else 'are'} written again"
    tail = tail if cut_back else ""
    if begun.checkpoint == 0:
        return f"the store has no checkpoint yet: begins with the first line{tail}"
    keys = sum(segment.keys for segment in begun.segments)
    length = sum(segment.length for segment in begun.segments)
    size = f"{length / MEGABYTE:.1f} MB" if length >= MEGABYTE / 10 else f"{length / 1000:.1f} kB"
    return (
        f"resumes from checkpoint {begun.checkpoint}, {max(0.0, now - written_at):.0f} s old: all before epoch "
        f"{begun.time}, {quantity(keys, 'key')} in {size}{tail}"
    )
