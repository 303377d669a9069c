"""Start of a job with a store: from its beginning, or from the point that the last run reached.

The steps have this order, so a refusal has changed nothing, and the next start repairs a crash in between:
 1. The store is opened and locked, and its commits are read. A source that cannot be read again is refused.
 2. The store is compared with the outputs' names, with the input's files, and with the program's operators and sources.
    For operators and sources, a process builds the program without running it: a rehearsal. It also compares the store
    with the places of sinks (`megaflow.durable.lineage`). Before the first checkpoint, that is all, because the store
    may be an older copy. If no sink has delivered, there is none if the program's files and arguments are those of the
    checkpoint and no state is renamed or dropped. A rehearsal also shows whether a job that had ended now has a source
    to read. A DataFrame's columns are compared (`megaflow.rows.kept_columns`). If the job is not over, all segments
    from which it resumes are read, and compared with their checksums.
 3. The outputs are opened and locked, and their lengths and last bytes are compared. This is the last check, because
    with `take_over` it may end another launcher (`spark_results`).
 4. A commit of a new incarnation takes over the store. From here on no other launcher can commit.
 5. The output is cut back to the committed length. Processes start after that.

A start by a user accepts a changed program and reports the change. A restart after a loss refuses a changed program,
because no user may be there to read the report.

With `take_over` an old launcher that does not answer, for instance a suspended one, may have the locks. It keeps them
up to step 4, because it may be healthy and the new launcher may be refused. After step 4 the old launcher continues if
it wakes up, with processes that send it outputs, until its next commit fails. Then it ends. Its output until then goes
to another file (see `OutputCopy`).
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from megaflow.control.messages import Split
from megaflow.control.wording import Notice, quantity
from megaflow.durable.commits import COMMIT_NAME, Commit
from megaflow.durable.copying import Origin
from megaflow.durable.incarnation import DurablePart, PartialWindows, Standing
from megaflow.durable.lineage import forked, sinks_found, standing_of
from megaflow.durable.local_folder import open_for_a_job
from megaflow.durable.query_record import to_restore
from megaflow.durable.state_migration import partial_windows
from megaflow.errors import ClusterError, PeerFailed, StoreError, UsageError, naming
from megaflow.job.launcher.inputs.launcher_input import JobInput, Resumption
from megaflow.job.launcher.outputs.several_outputs import compare_lengths
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.provisioner import command
from megaflow.job.launcher.processes.wakeups import withheld_signals
from megaflow.job.launcher.store.first_owners import OwnersBefore, first_owners, gone_text, of_checkpoint, table_of
from megaflow.job.launcher.store.input_positions import check_compressed, check_followed, input_again, known_input
from megaflow.job.launcher.store.store_keeper import StoreKeeper
from megaflow.job.program_code import code_now, difference
from megaflow.job.spec import AppFile, JobSpec, Rehearsal, Rehearsed
from megaflow.python_executable import marked_environment
from megaflow.rows.kept_columns import KeptColumns
from megaflow.spark import launching as spark

MEGABYTE: Final = 1e6
OTHER_STORE: Final = "start over with a new --state folder"
OTHER_LINES: Final = f"name them by --lines again, or {OTHER_STORE}"


def open_store(spec: JobSpec, job_input: JobInput) -> StoreKeeper:
    """Open a job's store. Raises StoreError; UsageError for a source that cannot be read again."""
    if job_input.pushed:
        raise UsageError(
            "--state: Standard input and iterables cannot be read again after a crash. Write the lines to a file "
            "and name that file by --lines."
        )
    if job_input.spark is not None:
        check_kept_query(job_input.spark)
    assert spec.state is not None, "there is a store"
    check_given_names(spec)
    origin = open_origin(*spec.origin, spec.state, spec.relocated) if spec.origin is not None else None
    open_folder = partial(open_for_a_job, take_over=spec.take_over, for_a_copy=origin is not None)
    try:
        return StoreKeeper(spec.state, spec.app.name, spec.checkpoints_kept, open_folder, origin, spec.relocated,
                           spec.dropped)  # fmt: skip
    except BaseException:
        if origin is not None:
            origin.close()
        raise


def check_kept_query(given: Any) -> None:
    """Raise UsageError for lines or rows of Spark that a store cannot keep."""
    for name, source in spark.sources_of(given).items():
        if isinstance(source, spark.SparkSpec) and source.format in spark.NOT_READ_AGAIN:
            what, where = (f"rows {name!r}", "files") if name else ("lines", "files or to Kafka")
            raise UsageError(
                f"--state: The {what} of {source} cannot be read again after a crash. Write them to {where}, and read "
                "these."
            )


def open_origin(
    folder: str, checkpoint: str, state: str, moved: Sequence[tuple[str, str]] = ()
) -> Origin | None:
    """Open the store from which a new store begins; None if `state` is not new. Raises UsageError or StoreError."""
    if os.path.realpath(folder) == os.path.realpath(state):
        raise UsageError(
            f"--from-checkpoint and --state name the same folder, {state}. To start a separate job, name a new "
            "--state folder; to resume this job, leave --from-checkpoint out."
        )
    if os.path.isdir(state) and any(map(COMMIT_NAME.fullmatch, os.listdir(state))):
        return None
    with naming(StoreError, f"Cannot read the store {folder}"):
        return Origin(folder, checkpoint, moved)


def check_given_names(spec: JobSpec) -> None:
    """Raise UsageError if an operator is renamed twice, dropped twice, or both."""
    old, new = [old for old, _ in spec.renamed], [new for _, new in spec.renamed]
    for name in {*old, *new, *spec.dropped}:
        if old.count(name) + spec.dropped.count(name) > 1 or new.count(name) > 1 or (name in old and name in new):
            raise UsageError(f"--rename-state and --drop-state name operator {name!r} twice. Name it once.")


def check_has_these(keeper: StoreKeeper, spec: JobSpec) -> None:
    """Raise StoreError if the user renames states or relocates files that the store does not have yet."""
    if (spec.renamed or spec.dropped) and (keeper.found is None or keeper.found.checkpoint == 0):
        raise StoreError(
            f"--rename-state and --drop-state: The store {keeper.path} has no states yet. Name the folder that "
            "has them, or leave these flags out."
        )
    if spec.relocated and keeper.found is None:
        raise StoreError(f"--relocate: The store {keeper.path} is new and names no files. Leave this flag out.")


def rehearse_in_a_process(task: Rehearsal) -> Rehearsed:
    """Return what a program reads, without files, and what its sinks have that its store does not know.

    Raises StoreError if the program cannot continue with the store, PeerFailed with the traceback if it cannot be
    built. Blocks for as long as a Python process needs to start and build the program.
    """
    files = [file for _, file in task.opened]
    words, environment = command("rehearsal"), marked_environment()
    with withheld_signals() as release, subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0, pass_fds=files, env=environment
    ) as process:
        try:
            release()
            answered, _ = process.communicate(pickle.dumps(task))
        except BaseException:
            process.kill()
            raise
    if process.returncode or not answered:
        code = process.returncode
        raise ClusterError(f"The process that builds the program exited with code {code} without a message.")
    match json.loads(answered):
        case {"refused": str(text)}:
            raise StoreError(text)
        case {"failed": str(text)}:
            raise PeerFailed(text)
        case answer:
            given_up, newer = (tuple(map(tuple, answer[each])) for each in ("given up", "newer"))
            there, windows = (tuple(answer[each]) for each in ("found", "rewindowed"))
            return Rehearsed(frozenset(answer["sources"]), given_up, newer, there, windows, answer["converts"])


def check_kind(found: Commit, job_input: JobInput, whose: str) -> None:
    """Raise StoreError if a job reads another kind of input than the commit; `whose` names the store."""
    if job_input.spark is None and found.spark:
        raise StoreError(f"{whose} belongs to Spark's lines; {OTHER_LINES}.")
    if job_input.spark is not None and found.splits:
        raise StoreError(f"{whose} belongs to lines from files; {OTHER_LINES}.")
    if job_input.names.followed and found.splits:
        raise StoreError(f"{whose} belongs to files that are not followed; leave --follow out, or {OTHER_STORE}.")


def has_nothing_left(found: Commit, job_input: JobInput) -> bool:
    """Return whether a job that resumes from a commit has nothing to read, and nothing to deliver to a sink."""
    reads = job_input.splits or job_input.spark or job_input.names.followed
    may_read = found.finished or found.sources  # sources may find more partitions
    return found.ended and not (reads or may_read or found.tokens)


def with_input(
    keeper: StoreKeeper, spec: JobSpec, job_input: JobInput, report: Callable[[str], None]
) -> Commit | None:
    """Return the commit that a job begins with, as the input is now; set the keeper's input. Raises StoreError."""
    found = keeper.found
    if found is not None:
        check_kind(found, job_input, f"the store {keeper.path}" if keeper.origin is None else keeper.origin.title)
    if found is not None and found.spark:
        spark.check_records(keeper.path, found.spark, job_input.spark, to_restore(keeper.path, found))
    keeper.input, found = known_input(found, job_input, spec, report)
    if found is not None:
        for check in (check_followed, check_compressed):
            check(found, job_input.names.followed, spec.allow_loss, report)
    return found


def dry_part(keeper: StoreKeeper, found: Commit, part: DurablePart, standing: Standing) -> DurablePart:
    """Return the part of a rehearsal: it begins with the commit that was found, or with the one to be forked."""
    if keeper.origin is None:
        return replace(part, commit=found.number, standing=standing)
    if standing.lineage:
        standing = standing_of(forked(found), standing.accepted)
    return replace(part, folder=os.path.abspath(keeper.origin.path), commit=found.number, standing=standing)


def rehearsal_of(
    spec: JobSpec, part: DurablePart, job_input: JobInput, writer: Writer, opened: tuple[tuple[str, int], ...]
) -> Rehearsal:
    """Return the task of the process that builds the program to check it against the commit that `part` names."""
    has_lines = bool(job_input.splits) or job_input.spark is not None
    return Rehearsal(spec, part, has_lines, job_input.names, tuple(filter(None, writer.parts)), opened)


def checked_columns(found: Commit | None, rehearsed: Rehearsed, job_input: JobInput) -> dict[str, KeptColumns]:
    """Return the columns that inputs of rows must still have: none if each operator's states are converted.

    Raises StoreUnfit if a DataFrame has others.
    """
    if found is None or job_input.spark is None or rehearsed.converts or not found.operators:
        return {}
    columns = dict(found.columns or ())
    spark.check_frames(found.spark, job_input.spark, columns)
    return columns


def may_have_delivered(found: Commit | None) -> bool:
    """Tell whether sinks of a store, or of a newer copy, may have delivered something."""
    return found is not None and bool(found.delivered or (found.lineage and not found.checkpoint))


def resume(
    keeper: StoreKeeper,
    spec: JobSpec,
    writer: Writer,
    job_input: JobInput,
    report: Callable[[str], None],
    rehearse: Callable[[Rehearsal], Rehearsed] = rehearse_in_a_process,
) -> Resumption:
    """Take over a store, and bring input and output to its newest checkpoint; `report` prints for the user.

    Raises StoreError if they do not match the store, before anything has changed. `rehearse` raises an error if the
    program, or a place to which its sinks write, does not match it.
    """
    check_has_these(keeper, spec)
    keeper.check_outputs(writer.lengths(0))
    found = keeper.found = with_input(keeper, spec, job_input, report)  # with this the store begins
    job_input = replace(job_input, splits=keeper.input.to_read)
    part = DurablePart(os.path.abspath(keeper.path), 0, None, spec.checkpoint_every, spec.renamed, spec.dropped)
    is_over = found is not None and has_nothing_left(found, job_input) and not spec.close_windows
    code = None if found is None or found.code is None else code_now(found.code, spec)
    other = None if found is None else difference(code, found.code)
    same = isinstance(spec.app, AppFile) and code is not None and not (other or spec.renamed or spec.dropped)
    forks = keeper.origin is not None
    renews, compares = bool(spec.accept_rows), spec.on is None and (forks or may_have_delivered(found))
    rehearsed = Rehearsed()
    if found is not None and (compares or ((found.checkpoint or forks) and not (same and found.columns is not None))):
        dry = dry_part(keeper, found, part, standing_of(found, spec.accept_rows) if compares else part.standing)
        rehearsed = rehearse(rehearsal_of(spec, dry, job_input, writer, keeper.opened))
        is_over = not rehearsed.sources and is_over  # a source may be new
        renews = renews or bool(rehearsed.newer)
        for text in rehearsed.texts:
            report(text)
    columns = checked_columns(found, rehearsed, job_input)
    if not is_over:  # otherwise nothing of it is read
        keeper.check_whole()
    length = writer.hold(spec.take_over)
    if found is not None and keeper.origin is None:
        compare_lengths(found.outputs, writer.lengths(length))
        writer.check_content(found.outputs)
    for name in (fleeting := [each.name for each in writer.parts.values() if not each.is_kept]):
        report(
            f"the output goes to {name}, which cannot be truncated: after a crash, the records since the last "
            "checkpoint are written again"
        )
    settled = (*spec.accept_rows, *(sink for sink, _ in rehearsed.newer))
    begun = keeper.begin(writer.lengths(length), renews, settled)
    if job_input.spark is not None:
        kept = spark.keep_queries(keeper.path, begun.spark, job_input.spark, begun.watermark, columns)
        keeper.columns, job_input = kept.columns, replace(job_input, spark=kept)
    number, run = begun.number if begun.checkpoint else None, begun.incarnation
    part = replace(part, incarnation=run, commit=number, is_changed=other is not None, run=run,
                   standing=standing_of(begun, spec.accept_rows, rehearsed.found),
                   partial=partial_of(begun, spec, rehearsed.rewindowed))  # fmt: skip
    owners = of_checkpoint(begun.table, begun.members, count := spec.processes * spec.workers)
    if found is not None and keeper.origin is not None:
        text = resumption_text(begun, found.written_at, 0, time.time())
        report(Notice(f"begins with {keeper.origin.title}: {text}{gone_text(owners)}"))
    elif found is not None:
        if spec.origin is not None:
            report(f"{keeper.path} already has a store, so the job resumes from that and ignores --from-checkpoint")
        committed = writer.length_of(begun.outputs)
        writer.cut_back(committed)
        again = max(0, length - committed) if not fleeting else 0
        text = resumption_text(begun, found.written_at, again, time.time(), writer.unit)
        text += skipped_text(keeper.input.to_read) + gone_text(owners)
        report(Notice(f"{text}; with other code: {other}" if other else text))
    if keeper.taken_from is not None:
        tail = f"; until then it may also write to {' and '.join(fleeting)}" if fleeting else ""
        report(Notice(f"takes the place of {keeper.taken_from}, which stops by itself when it wakes up{tail}"))
    return Resumption(job_input, part, is_over, code=code, kept=first_owners(owners, count, may_be_new=True))


def go_on(
    before: Resumption,
    keeper: StoreKeeper,
    since: int,
    spec: JobSpec,
    report: Callable[[str], None],
    kept: Sequence[Collection[int] | None] = (),
    places: Mapping[int, int] = MappingProxyType({}),
) -> Resumption:
    """Return how a job continues after it lost processes, having begun with `before` from checkpoint `since`.

    `kept` are the bins that processes still have in memory, and `places` the place of each worker: see `first_owners`.
    The keeper has begun a new incarnation. `report` reports compressed files that are left out. Raises StoreError if
    the input's files are not those that were read, ClusterError if they are elsewhere or the program has changed: the
    same command may succeed then.
    """
    latest, part = keeper.latest, before.part
    assert part is not None, "it is durable"
    code, table = before.code, table_of(before.kept)
    followed = before.job_input.names.followed
    check_followed(latest, followed, spec.allow_loss, lambda text: None)  # workers report it
    check_compressed(latest, followed, spec.allow_loss, report)
    is_newer = latest.checkpoint > since  # otherwise the input to read is the same as before
    keeper.input = input_again(keeper.input, latest.splits if is_newer else None)
    if is_newer:
        code, table = latest.code, latest.table
    if code is not None and (other := difference(code_now(code, spec), code)):
        raise ClusterError(f"the job does not restart by itself, as the program has changed since it started: {other}")
    number = latest.number if latest.checkpoint else None
    is_changed = part.is_changed and latest.checkpoint == since  # a later checkpoint has the program's own names
    job_input = replace(before.job_input, splits=keeper.input.to_read)
    if job_input.spark is not None and isinstance(job_input.spark, spark.KeptFeed):
        lines, columns = job_input.spark.lines, job_input.spark.columns()
        spark.check_records(keeper.path, latest.spark, lines)
        feed = spark.keep_queries(keeper.path, latest.spark, lines, latest.watermark, columns)
        keeper.columns, job_input = feed.columns, replace(job_input, spark=feed)
    owners = OwnersBefore(table, places)
    return Resumption(
        job_input,
        replace(part, incarnation=latest.incarnation, commit=number, is_changed=is_changed,
                standing=standing_of(latest, spec.accept_rows, sinks_found(latest, part.standing)),
                partial=partial_of(latest, spec) if is_newer else part.partial),
        code=code,
        kept=first_owners(owners, len(kept), kept),
        gone=gone_text(owners),
    )


def partial_of(commit: Commit, spec: JobSpec, rewindowed: Collection[str] = ()) -> PartialWindows:
    """Return which windows lack records if a job resumes from a commit; `rewindowed` is as for `partial_windows`."""
    return partial_windows(commit, spec.renamed, spec.dropped, spec.partial_windows == "emit", rewindowed)


def skipped_text(splits: Iterable[Split]) -> str:
    """Return the text about compressed files that are decompressed again.

    >>> skipped_text([Split(0, "a.gz", 0, 100_000, skip=2_000_000), Split(1, "b", 5, 10)])
    '; 2.0 MB of text in 1 compressed file were already read and are decompressed again to skip them'
    """
    skips = [split.skip for split in splits if split.skip]
    tail = f"; {sum(skips) / MEGABYTE:.1f} MB of text in {quantity(len(skips), 'compressed file')}"
    return f"{tail} were already read and are decompressed again to skip them" if skips else ""


def resumption_text(begun: Commit, written_at: float, cut_back: int, now: float, unit: str = "byte") -> str:
    """Return the text about where a job resumes.

    >>> print(resumption_text(Commit(7, 3, 41, 2, written_at=1000.0), 1000.0, 12, 1004.2))
    resumes from checkpoint 3, 4 s old: all before epoch 41, 0 keys in 0.0 kB; 12 bytes of the output are written again
    """
    tail = f"; {quantity(cut_back, unit)} of the output {'is' if cut_back == 1 else 'are'} written again"
    tail = tail if cut_back else ""
    if begun.checkpoint == 0:
        return f"the store has no checkpoint yet: begins with the first line{tail}"
    count = sum(segment.keys for segment in begun.segments)  # one that changed meanwhile counts twice
    keys = ("at most " if count else "") + quantity(count, "key")
    length = sum(segment.length for segment in begun.segments)
    size = f"{length / MEGABYTE:.1f} MB" if length >= MEGABYTE / 10 else f"{length / 1000:.1f} kB"
    return (
        f"resumes from checkpoint {begun.checkpoint}, {max(0.0, now - written_at):.0f} s old: all before epoch "
        f"{begun.time}, {keys} in {size}{tail}"
    )
