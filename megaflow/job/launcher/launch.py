"""The launcher: starts the worker processes of a job, stays with it, ends them.

Children start first; slow work (Spark, reading input) happens meanwhile. More may start while the job runs. However
`launch` ends, no child survives it and the job's file is removed.
"""

import contextlib
import os
import resource
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from megaflow.control.launcher_messages import DropName, EndNow, WhoIsBusy
from megaflow.errors import MegaflowError, PeerFailed, StateKept, StoreFenced, UsageError
from megaflow.job.compression import has_suffix
from megaflow.job.file_position import matching
from megaflow.job.job_file import (
    Job,
    check_free,
    check_name,
    process_namespace,
    process_start,
    publish,
    publish_numbered,
    withdraw,
)
from megaflow.job.launcher.busy_workers import BusyWords, who_is_busy
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.door_keeper import DoorKeeper
from megaflow.job.launcher.early_end import EarlyEnd
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.file_lines import FileLines
from megaflow.job.launcher.launcher_input import JobInput, find_input
from megaflow.job.launcher.line_options import split_options
from megaflow.job.launcher.on_spark import OnSpark
from megaflow.job.launcher.output_queue import OutputQueue
from megaflow.job.launcher.place import Here
from megaflow.job.launcher.process_starter import ProcessStarter, check_crowd
from megaflow.job.launcher.resumption import Resumption, open_store, resume
from megaflow.job.launcher.run_summary import RunSummary
from megaflow.job.launcher.store_keeper import StoreKeeper
from megaflow.job.launcher.supervision import Supervision, is_loss
from megaflow.job.launcher.wakeups import Signals, watched_signals
from megaflow.job.profile.report import check_profile, profile_folder
from megaflow.job.spec import AppFile, JobSpec, gc_threshold
from megaflow.job.text_encoding import ENCODING_ERRORS, is_streamed
from megaflow.spark.query_spec import UNORDERED
from megaflow.timely.communication.secret import given_secret

C = TypeVar("C", Supervision, OutputQueue, StoreKeeper)

JOIN_SECONDS_MAX = 86_400
FILES = 16  # that the launcher has open beside those of its children, and some to spare
FILES_PER_PROCESS = 5  # a listener, two pipes, a connection, and what its signs of life are written to


def launch(
    spec: JobSpec,
    lines: Any,
    open_output: Callable[[], Writer],
    *,
    rows: Any = None,
    items: Any = None,
    resume_output: Callable[[], Writer] | None = None,
    report: Callable[[str], None] = lambda text: None,
    started: Callable[[Job], None] = lambda job: None,
    signals: bool | Signals = False,
) -> RunSummary:
    """Run a job to its end; return what it came to.

    `lines`, `rows` and `items` are as `find_input` takes them. Outputs go to what `open_output` returns
    (`resume_output`, where a store says what the output has already); it is called once everything else is checked, and
    closed here. `report` gets what a user should be told while the job runs, `started` the job once others can steer
    it. With `signals`, the first Ctrl-C, SIGTERM or SIGHUP drains and stops the job; the second raises
    KeyboardInterrupt. Another thread ends the start by the Signals that it gave. With `spec.state`, raises StateKept.
    """
    check_spec(spec)
    began = time.monotonic()
    job_input = input_of(spec, lines, rows, items, report)
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(watched_signals(signals))
        stack.enter_context(profile_folder(spec.profile, report))  # left when no child lives any more
        secret = given_secret() or secrets.token_hex(32)
        place = stack.enter_context(open_place(spec, job_input, secret.encode(), report, received))
        children = stack.enter_context(Children(place, spec.state is not None))
        keeper = None
        if spec.state is not None:
            keeper = stack.enter_context(closing(open_store(spec, job_input), received))
            open_output = open_output if keeper.is_new else resume_output or open_output
        with received.interruptible():
            output, begun = begin_writing(writer := open_output(), keeper, spec, job_input, report)
            stack.enter_context(closing(output, received))
        served = writer.served(secret.encode(), output.fail, report)
        if begun.is_over:
            with received.interruptible(), served:
                report("all lines were read before and there are no new ones, so there is nothing to do")
                await_read(output, received)
            return RunSummary(seconds=time.monotonic() - began)
        starter = ProcessStarter(spec, secret.encode(), place, children, received, output.forms)
        with received.interruptible():
            addresses = starter.find_seats(begun)
            stack.enter_context(served)
        job = stack.enter_context(published(spec, *addresses[0], secret, replaced_pid(keeper)))
        starter.name = job.name
        early_end = EarlyEnd(job.secret.encode(), children)
        lives = Supervision(spec, children, starter, begun, output, received, report, job, early_end, keeper=keeper)
        stack.enter_context(door_keeper(job, children, early_end, keeper, writer, report))
        lives.begin(addresses)
        started(job)
        stack.enter_context(closing(lives, received))
        try:
            with received.interruptible():
                summary = lives.run()
                await_read(output, received)
                summary.replaced += replaced_here(job_input)
        except BaseException as error:
            children.kill(children.all)  # before anything that takes time
            if isinstance(error, KeyboardInterrupt | StoreFenced):
                output.drop()
            if keeper is not None and isinstance(error, KeyboardInterrupt | PeerFailed):
                report(kept_text(keeper, error))
            if keeper is None or early_end.has_come or not is_loss(error):
                raise
            raise StateKept(f"{error}; its state is kept in {keeper.path}: run the same command again") from error
    summary.seconds, summary.interrupted = time.monotonic() - began, received.interrupted
    return summary


def replaced_here(job_input: JobInput) -> Counter[str]:
    """Return how many sequences of bytes the launcher itself has replaced, by input."""
    sources = ((name, source) for name, source in job_input.pushed.items() if isinstance(source, FileLines))
    return Counter({name: sum(source.replaced.counts.values()) for name, source in sources})


def await_read(output: OutputQueue, received: Signals) -> None:
    """Wait until all that was put out is read; nobody is there to steer any more."""
    received.is_through = True
    output.await_read(received.pause)


def find_followed(lines: Any) -> JobInput:
    """Return what files are that grow, and more of them that come: a specification, or a dict of such by name.

    Nothing needs to be there yet. Raises UsageError for what is no file.
    """
    named = lines if isinstance(lines, Mapping) else {"": lines}
    found = {}
    for name, each in named.items():
        if name and (not isinstance(name, str) or not name.isidentifier()):
            raise UsageError(f"lines: {name!r:.80} must be a name, as in flow.lines('orders').")
        spec = os.fspath(each) if isinstance(each, str | os.PathLike) else ""
        if not spec or spec == "-" or spec.startswith("spark:"):
            raise UsageError(f"--follow: lines must name a file, folder or glob whose files grow, not {each!r:.80}.")
        path, options = split_options(spec)
        if options.order:
            why = "reads each file in order" if options.order == UNORDERED else "reads files as they come"
            raise UsageError(f"--follow {why}: leave ?{options.order} out of --lines {spec}.")
        if options.encoding and is_streamed(options.encoding):
            raise UsageError(
                f"--follow: Cannot follow files in {options.encoding.upper()}, whose lines do not end at single "
                "bytes. Write them in UTF-8, or leave --follow out."
            )
        if has_suffix(path):
            raise UsageError(f"--follow: {path!r} is compressed, so it does not grow. Leave out --follow or that file.")
        pattern = os.path.abspath(path if os.path.exists(path) else os.path.expanduser(path))
        found[name] = pattern, options.encoding
    followed = tuple((name, *each) for name, each in sorted(found.items()))
    return JobInput(lines=tuple(sorted(filter(None, found))), followed=followed)


def input_of(spec: JobSpec, lines: Any, rows: Any, items: Any, report: Callable[[str], None]) -> JobInput:
    """Return what a job reads; `report` is told which files that it is to follow are not there yet. Raises UsageError.

    `lines`, `rows` and `items` are as `find_input` takes them.
    """
    if not spec.follow:
        found = find_input(lines, spec.processes * spec.workers, spec.encoding_errors, rows, items)
        for source in found.pushed.values():
            if isinstance(source, FileLines):
                source.replaced.tell = lambda about, text: report(text)
        return found
    if rows is not None or items is not None or spec.on is not None:
        raise UsageError(
            "--follow reads lines from files of this machine. Leave it out, or leave out rows, items and --on."
        )
    job_input = find_followed(lines)
    for _, pattern, _ in job_input.followed:
        if not matching(pattern):
            report(f"waiting for a file {pattern!r} to follow: there is none yet")
    return job_input


def door_keeper(
    job: Job, children: Children, early_end: EarlyEnd, keeper: StoreKeeper | None, writer: Writer,
    report: Callable[[str], None],
) -> DoorKeeper:  # fmt: skip
    """Return who answers at the side door."""
    handlers: dict[type, Callable[[Any], object]] = {
        WhoIsBusy: lambda request: replace(who_is_busy(children), output=writer.waits_text()),
        EndNow: early_end.end_now,
    }
    handlers |= {} if keeper is None else {DropName: keeper.drop_name}
    return DoorKeeper(job, handlers, BusyWords(children, report, writer.waits_text).look)


def open_place(
    spec: JobSpec, job_input: JobInput, secret: bytes, report: Callable[[str], None], received: Signals
) -> AbstractContextManager[Here | OnSpark]:
    """Return where the processes are to run. Raises UsageError."""
    if spec.on is None:
        return Here(spec.listen, spec.processes, spec.state is not None)
    files = [split.path for split in job_input.splits]
    return OnSpark(spec, secret, job_input.spark is not None or spec.results, files, report, received.pause)


def kept_text(keeper: StoreKeeper, error: BaseException) -> str:
    """Say what a job has kept that a second signal has ended, or a fault of its program, whose traceback comes last."""
    if isinstance(error, KeyboardInterrupt):
        return f"what was committed is kept in {keeper.path}; run the same command to resume"
    failed = f"the program has failed; {keeper.path} has"
    if not (checkpoint := keeper.latest.checkpoint):
        return f"{failed} no checkpoint yet: fix the program, and the same command starts with the first line"
    return f"{failed} its state as of checkpoint {checkpoint}: fix the program, and the same command resumes from there"


def begin_writing(
    writer: Writer, keeper: StoreKeeper | None, spec: JobSpec, job_input: JobInput, report: Callable[[str], None]
) -> tuple[OutputQueue, Resumption]:
    """Return the output's queue, and what the job begins with. The writer is closed if this raises.

    Raises CommandRefused if another job has the name of this one, and as `resume`.
    """
    try:
        if spec.name is not None:
            check_free(spec.name, replaced_pid(keeper))  # before anything changes; `published` makes sure
        if keeper is None:
            writer.hold()
            begun = Resumption(job_input)
        else:
            begun = resume(keeper, spec, writer, job_input, report)
    except BaseException:
        writer.close()
        raise
    return OutputQueue(writer, report), begun


def check_spec(spec: JobSpec) -> None:
    """Raise UsageError for a spec with values that make no sense."""
    for name, value in (("processes", spec.processes), ("workers", spec.workers)):
        if value < 1:
            raise UsageError(f"--{name} must be at least 1, not {value}.")
    if spec.rate is not None and not 0 < spec.rate < float("inf"):
        raise UsageError(f"--rate must be a number of lines per second above 0, not {spec.rate:g}.")
    if not 0 < spec.join_timeout_seconds <= JOIN_SECONDS_MAX:
        asked = f"--join-timeout {spec.join_timeout_seconds:g}"
        raise UsageError(f"{asked}: must be more than 0 seconds and at most {JOIN_SECONDS_MAX}.")
    if spec.encoding_errors not in ENCODING_ERRORS:
        raise UsageError(f"--encoding-errors must be {' or '.join(ENCODING_ERRORS)}, not {spec.encoding_errors!r}.")
    if spec.drain_timeout is not None and not 0 < spec.drain_timeout < float("inf"):
        raise UsageError(f"--drain-timeout must be a number of seconds above 0, not {spec.drain_timeout:g}.")
    if spec.allow_loss and not spec.follow:
        raise UsageError("--allow-loss applies to followed files: add --follow.")
    if spec.close_windows and spec.follow:
        raise UsageError(
            "--close-windows closes windows when the lines end, but followed lines never end. Leave out "
            "--close-windows or --follow."
        )
    if not 0 < spec.checkpoint_every < float("inf"):
        raise UsageError(f"--checkpoint-every must be a number of seconds above 0, not {spec.checkpoint_every:g}.")
    if not 0 < spec.idle_timeout < float("inf"):
        raise UsageError(f"--idle-timeout must be a number of seconds above 0, not {spec.idle_timeout:g}.")
    if spec.restarts < 0:
        raise UsageError(f"--restarts must be at least 0, not {spec.restarts}.")
    if spec.shrink and spec.state is None:
        raise UsageError("--shrink is only for jobs that save their state. Add --state DIR.")
    if spec.shrink and not spec.restarts:
        raise UsageError(
            "--shrink resumes a job with fewer processes, but --restarts 0 never resumes it. Leave out one of them."
        )
    if spec.checkpoints_kept < 1:
        raise UsageError(f"--checkpoints-kept must be at least 1, not {spec.checkpoints_kept}.")
    if spec.name is not None:
        check_name(spec.name)
    check_profile(spec.profile, spec.workers)
    gc_threshold()
    if spec.on is None:
        check_crowd("--processes", spec.processes, spec)
        check_crowd("--workers", spec.workers, spec)
    if not 0 < spec.start_timeout_seconds <= JOIN_SECONDS_MAX:
        asked = f"--start-timeout {spec.start_timeout_seconds:g}"
        raise UsageError(f"{asked}: must be more than 0 seconds and at most {JOIN_SECONDS_MAX}.")
    have, need = resource.getrlimit(resource.RLIMIT_NOFILE)[0], FILES + FILES_PER_PROCESS * spec.processes
    if have != resource.RLIM_INFINITY and have < need:
        raise MegaflowError(
            f"Too few file descriptors: --processes {spec.processes} needs {need}, and a process here may open "
            f"{have}. Raise the limit: ulimit -n {max(1024, 2 * need)}"
        )


def replaced_pid(keeper: StoreKeeper | None) -> int | None:
    """Return the launcher of this machine in whose place a job goes on."""
    other = None if keeper is None else keeper.taken_from
    return other.pid if other is not None and other.host == socket.gethostname() else None


@contextlib.contextmanager
def published(spec: JobSpec, host: str, port: int, secret: str, replaced: int | None = None) -> Iterator[Job]:
    """Give the job; its file exists during the block, in place of that of the launcher with the id `replaced`."""
    stem = os.path.splitext(os.path.basename(spec.app.path))[0] if isinstance(spec.app, AppFile) else "job"
    name = "".join(char if char.isascii() and char.isalnum() else "_" for char in stem)[:50] or "job"
    pid = os.getpid()
    life = 1 if spec.state is not None and spec.restarts else 0
    job = Job(spec.name or name, pid, process_start(pid), host, port, secret, process_namespace(), life, spec.state)
    job, path = publish_numbered(job, replaced) if spec.name is None else (job, publish(job, replaced))
    try:
        yield job
    finally:
        withdraw(job, path)


@contextlib.contextmanager
def closing(thing: C, received: Signals) -> Iterator[C]:
    """Give what is to be closed after the block; a signal that comes meanwhile ends the wait for that."""
    try:
        yield thing
    finally:
        with received.interruptible(anew=True):
            thing.close()
