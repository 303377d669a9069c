"""The life of a job in the launcher: `launch` starts the worker processes, runs the job to its end, and ends them.

1. The spec, the input, the store and the output are checked before any child starts.
2. After these checks the children start. They start before slow work (a Spark feed, reading input), so both happen at
   the same time. More children may start while the job runs.
3. However `launch` ends, no child survives it, and the job's file is removed.
"""

from __future__ import annotations

import contextlib
import glob
import os
import resource
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from megaflow.control.messages import InputNames
from megaflow.control.wording import Notice
from megaflow.durable.incarnation import PARTIAL_CHOICES
from megaflow.errors import (
    ClusterError,
    KeepsFailing,
    MegaflowError,
    Outage,
    PeerFailed,
    StateKept,
    StoreFenced,
    UsageError,
)
from megaflow.job.files.file_position import matching
from megaflow.job.files.splits import broken_links, has_second_names, no_regular_file
from megaflow.job.formats.compression import has_suffix
from megaflow.job.formats.text_encoding import ENCODING_ERRORS, is_streamed
from megaflow.job.formats.text_lines import BLOCK_BYTES
from megaflow.job.job_file import Job, check_free, check_name
from megaflow.job.launcher import processes, store
from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.launcher.inputs.launcher_input import JobInput, Resumption, check_names, find_input
from megaflow.job.launcher.inputs.line_options import UNORDERED, split_options
from megaflow.job.launcher.inputs.own_folders import check_own_folders
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.outputs.writer import NothingWriter, Writer
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.drain_limit import DrainLimit
from megaflow.job.launcher.processes.provisioner import LocalProvisioner
from megaflow.job.launcher.processes.wakeups import Signals, watched_signals
from megaflow.job.launcher.run.door_keeper import keep_door
from megaflow.job.launcher.run.machine import JobParts, Machine
from megaflow.job.launcher.run.process_starter import ProcessStarter, check_crowd
from megaflow.job.launcher.run.published_job import published, replaced_by
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.launcher.run.supervision import Supervision, is_loss
from megaflow.job.limits import telling_limits, telling_passing_faults
from megaflow.job.memory_limit import size_text
from megaflow.job.profile.report import check_profile, profile_folder
from megaflow.job.spec import JobSpec, gc_threshold
from megaflow.quick_dataclass import dataclass
from megaflow.spark import launching as spark
from megaflow.timely.communication.secret import given_secret
from megaflow.timely.communication.wire import MAX_MESSAGE_BYTES

LINE_BYTES_BOUND: Final = MAX_MESSAGE_BYTES // 4
"""The limit of `--line-size-max`: a message has text in UTF-8, where a character has up to four bytes."""
C = TypeVar("C", Supervision, OutputQueue, "store.StoreKeeper")

JOIN_SECONDS_MAX = 86_400
FILES = 16  # that the launcher has open besides those for its children, and some to spare
FILES_OF_PAGE = 112  # its connections, ports and event loop
FILES_OF_STORE = 8  # folder, lock, the file being written; a duplicate of each listener is extra
FILES_PER_PROCESS = 7  # a listener, three pipes, a connection, and the files for its heartbeats and dropped lines


class Page(AbstractContextManager[Any], Protocol):
    """The page of a job, see `megaflow.job.launcher.run.live_page`. `megaflow run` without one does not load that."""

    url: str | None  # to open in a browser; None: there is none yet, or only metrics

    def begin(self, job: Job, spec: JobSpec, waits: Callable[[], str], report: Callable[[str], None]) -> None:
        """Begin to show the job; `waits` returns at once why it is not ready, "" if it is. Any thread may call it."""


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """A job with its input and its outputs. `lines`, `rows` and `items` are as for `find_input`."""

    spec: JobSpec
    lines: Any = None
    open_output: Callable[[], Writer] = NothingWriter  # returns the writer of the outputs
    resume_output: Callable[[], Writer] | None = None  # does so if a store records what the output already contains
    rows: Any = None
    items: Any = None
    page: Page | None = None  # shows the job while it runs


@telling_limits()
def launch(
    options: LaunchOptions,
    report: Callable[[str], None] = lambda text: None,
    started: Callable[[Job], None] = lambda job: None,
    signals: bool | Signals = False,
) -> RunSummary:
    """Run a job to its end; return its summary. Blocks until then.

    The output is opened once everything else is checked, and closed at the end. `report` receives messages for the user
    while the job runs. `started` receives the job once others can steer it. With `signals`, the first Ctrl-C, SIGTERM
    or SIGHUP drains and stops the job, and the second raises KeyboardInterrupt. If `signals` is a Signals, another
    thread can end the start by it. With `spec.state`, raises StateKept if the job fails and the same command resumes
    it.
    """
    spec, open_output = options.spec, options.open_output
    check_spec(spec, 0 if options.page is None else FILES_OF_PAGE)
    began = time.monotonic()
    job_input = input_of(options, report)
    check_own_folders(spec, options.lines, job_input)
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(watched_signals(signals))
        open_page(options, stack)
        stack.enter_context(profile_folder(spec.profile, report))  # exits when no child lives any more
        secret = given_secret() or secrets.token_hex(32)
        place = stack.enter_context(open_place(spec, job_input, secret.encode(), report))
        children = stack.enter_context(Children(place, spec.state is not None))
        keeper = None
        if spec.state is not None:
            keeper = stack.enter_context(closing(open_store(spec, job_input), received))
            open_output = open_output if keeper.is_new else options.resume_output or open_output
        with received.interruptible(), telling_passing_faults(spec.state):
            output, begun = begin_writing(writer := open_output(), keeper, spec, job_input, report)
            stack.enter_context(closing(output, received))
        served = writer.served(secret.encode(), output.fail)
        if begun.is_over:
            with received.interruptible(), served:
                report(Notice("all lines were read before and there are no new ones, so there is nothing to do"))
                await_read(output, received)
            return with_own_counts(RunSummary(seconds=time.monotonic() - began), job_input, keeper)
        starter = ProcessStarter(spec, secret.encode(), place, children, received, lambda: output.forms)
        with received.interruptible():
            addresses = starter.find_slots(begun)
            stack.enter_context(served)
        job = (file := stack.enter_context(published(spec, *addresses[0], secret, keeper, report))).job
        starter.name = job.name
        drain_limit = DrainLimit(job.secret.encode(), children)
        parts = JobParts(children, output, received, report, drain_limit, keeper, Machine(publish=file.publish))
        attempts = Supervision(spec, parts, starter, begun, job)
        waits = [*(part.waits_text for part in writer.parts.values()), place.waits_text]
        stack.enter_context(keep_door(file, parts, writer, waits, attempts.waits_text))
        attempts.begin(addresses)
        started(job)
        if options.page is not None:
            options.page.begin(job, spec, partial(waits_text, parts), report)
        stack.enter_context(closing(attempts, received))
        try:
            with received.interruptible():
                summary = attempts.run()
                await_read(output, received)
                summary = with_own_counts(summary, job_input, keeper)
        except BaseException as error:
            children.kill(children.all)  # before slower steps
            if isinstance(error, KeyboardInterrupt | StoreFenced):
                output.drop()
            if keeper is not None:
                tell_kept(error, keeper, parts)
            raise
    summary.seconds, summary.interrupted = time.monotonic() - began, received.interrupted
    return summary


def waits_text(parts: JobParts) -> str:
    """Return why a job is not ready, "" if it is."""
    return "" if parts.drain_limit.is_served else "The job starts, or resumes after a loss."


def with_own_counts(summary: RunSummary, job_input: JobInput, keeper: store.StoreKeeper | None) -> RunSummary:
    """Add what the launcher itself has counted, by input: replaced byte sequences, and records of files that are gone.
    """
    sources = ((name, source) for name, source in job_input.pushed.items() if isinstance(source, FileLines))
    summary.replaced += Counter({name: sum(source.replaced.counts.values()) for name, source in sources})
    summary.skipped += Counter() if keeper is None else keeper.input.skipped
    return summary


def await_read(output: OutputQueue, received: Signals) -> None:
    """Wait until the readers of the output have everything; from now on nothing can be steered."""
    received.is_through = True
    output.await_read(received.pause)


def find_followed(lines: Any) -> JobInput:
    """Return the input of followed files: `lines` is a specification, or a dict of specifications by name.

    The files need not exist yet. Raises UsageError for inputs that cannot be followed.
    """
    found = {}
    if isinstance(lines, Mapping):
        check_names("lines", lines, "orders")
    for name, each in lines.items() if isinstance(lines, Mapping) else (("", lines),):
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
        found_at = path if os.path.exists(path) else os.path.expanduser(path)
        if os.path.exists(found_at) and not (os.path.isfile(found_at) or os.path.isdir(found_at)):
            raise UsageError(f"--follow: Cannot follow {found_at!r}: {no_regular_file(found_at)}, without --follow.")
        if has_suffix(path):
            raise UsageError(f"--follow: {path!r} is compressed, so it does not grow. Leave out --follow or that file.")
        found[name] = pattern_of(path), options.encoding
    followed = tuple((name, *each) for name, each in sorted(found.items()))
    return JobInput(names=InputNames(lines=tuple(sorted(filter(None, found))), followed=followed))


def pattern_of(path: str) -> str:
    """Return an absolute glob for followed files. A file or folder that exists now keeps its name, even a glob's.

    Otherwise its name would become a glob while it is missing, for example between two steps of a rotation.
    """
    if not os.path.exists(path):
        return os.path.abspath(os.path.expanduser(path))
    path = os.path.abspath(path)
    if not glob.has_magic(path):
        return path
    return os.path.join(glob.escape(path), "*") if os.path.isdir(path) else glob.escape(path)


def input_of(options: LaunchOptions, report: Callable[[str], None]) -> JobInput:
    """Return the input of a job; report broken links, second names of a file, and followed patterns without files.

    Raises as `find_input`.
    """
    spec, rows, items = options.spec, options.rows, options.items
    for lines in options.lines.values() if isinstance(options.lines, Mapping) else [options.lines]:
        for link in broken_links(split_options(os.fspath(lines))[0]) if isinstance(lines, str | os.PathLike) else ():
            report(f"{link!r} is left out: it is a link to {os.readlink(link)!r}, which does not exist")
    if not spec.follow:
        found = find_input(options.lines, spec.processes * spec.workers, spec.encoding_errors, rows, items)
        if spec.state is None and has_second_names(found.splits):  # `store.resume` compares the names with the store's
            found = replace(found, splits=store.read_once(found.splits, report))
        for source in found.pushed.values():
            if isinstance(source, FileLines):
                source.replaced.tell = lambda about, text: report(text)
                source.bytes_max = spec.line_size_max
        return found
    if rows is not None or items is not None or spec.on is not None:
        raise UsageError(
            "--follow reads lines from files of this machine. Leave it out, or leave out rows, items and --on."
        )
    job_input = find_followed(options.lines)
    for _, pattern, _ in job_input.names.followed:
        if not matching(pattern):
            report(f"waiting for a file {pattern!r} to follow: there is none yet")
    return job_input


def open_page(options: LaunchOptions, stack: contextlib.ExitStack) -> None:
    """Open the ports of the job's page until `stack` closes. Raises UsageError, or StateKept if one is not free."""
    if options.page is not None:
        with telling_passing_faults(options.spec.state):
            stack.enter_context(options.page)


def open_place(
    spec: JobSpec, job_input: JobInput, secret: bytes, report: Callable[[str], None]
) -> AbstractContextManager[LocalProvisioner | processes.SparkProvisioner]:
    """Return the provisioner of the processes.

    Raises UsageError, SourceError if Spark cannot start here, or StateKept if an address is not free.
    """
    for source in job_input.spark_specs:
        spark.check_spark(source)
    if spec.on is None:
        with telling_passing_faults(spec.state):
            return LocalProvisioner(spec.listen, spec.processes, spec.state is not None)
    files = [split.path for split in job_input.splits]
    return processes.SparkProvisioner(spec, secret, job_input.spark is not None or spec.results, files, report)


def open_store(spec: JobSpec, job_input: JobInput) -> store.StoreKeeper:
    """Open the store of a job as `store.open_store` does. Raises StateKept if its disk is full or at fault."""
    with telling_passing_faults(spec.state):
        return store.open_store(spec, job_input)


def tell_kept(error: BaseException, keeper: store.StoreKeeper, parts: JobParts) -> None:
    """Report the state that a failed job keeps. Raises StateKept if the same command resumes the job from it."""
    if isinstance(error, KeyboardInterrupt | PeerFailed):
        parts.report(kept_text(keeper, error))
    if isinstance(error, KeepsFailing):
        remedy = "remove the cause, and the same command resumes from there"
        parts.report(f"the job would fail again in the same way; {keeper.path} has its state: {remedy}")
    if parts.drain_limit.has_come or not is_loss(error):
        return
    why = str(error).rstrip(".")
    is_ending = bool(parts.signals.received) and not parts.children.blamed_elsewhere
    if is_ending and isinstance(error, ClusterError | Outage):  # a signal had asked for a stop
        parts.report(f"{why}; its state is kept in {keeper.path}: run the same command to resume")
        raise parts.signals.ended() from error
    if isinstance(error, Outage):
        text = f"{why}; the job's state is kept in {keeper.path}: then run the same command again"
        raise StateKept(text) from error
    raise StateKept(f"{why}; its state is kept in {keeper.path}: run the same command again") from error


def kept_text(keeper: store.StoreKeeper, error: BaseException) -> str:
    """Return the text about what a job keeps after a second signal or an error of its program has ended it.

    The traceback of the program comes after this text.
    """
    if isinstance(error, KeyboardInterrupt):
        return f"what was committed is kept in {keeper.path}; run the same command to resume"
    failed, mend = f"the job has failed; {keeper.path} has", "mend what the error names, and the same command"
    if not (checkpoint := keeper.latest.checkpoint):
        return f"{failed} no checkpoint yet: {mend} starts with the first line"
    return f"{failed} its state as of checkpoint {checkpoint}: {mend} resumes from there"


def begin_writing(
    writer: Writer, keeper: store.StoreKeeper | None, spec: JobSpec, job_input: JobInput, report: Callable[[str], None]
) -> tuple[OutputQueue, Resumption]:
    """Return the output's queue, and the state from which the job begins. Closes the writer if it raises.

    Raises CommandRefused if another job has the same name, and the errors of `resume`.
    """
    try:
        if spec.name is not None:
            check_free(spec.name, replaced_by(keeper))  # before anything changes; `published` checks again
        if keeper is None:
            writer.hold()
            begun = Resumption(job_input)
        else:
            begun = store.resume(keeper, spec, writer, job_input, report)
    except BaseException:
        writer.close()
        raise
    return OutputQueue(writer, report), begun


def check_spec(spec: JobSpec, more_files: int = 0) -> None:
    """Raise UsageError for invalid values in a spec, and MegaflowError if too few file descriptors are allowed.

    The launcher needs `more_files` for other purposes.
    """
    for name, value in (
        ("processes", spec.processes), ("workers", spec.workers), ("checkpoints-kept", spec.checkpoints_kept)
    ):  # fmt: skip
        if value < 1:
            raise UsageError(f"--{name} must be at least 1, not {value}.")
    for name, seconds in (
        ("drain-timeout", spec.drain_timeout), ("checkpoint-every", spec.checkpoint_every),
        ("idle-timeout", spec.idle_timeout), ("max-skew", spec.max_skew),
    ):  # fmt: skip
        if seconds is not None and not 0 < seconds < float("inf"):
            raise UsageError(f"--{name} must be a number of seconds above 0, not {seconds:g}.")
    for name, seconds in (
        ("join-timeout", spec.join_timeout_seconds), ("start-timeout", spec.start_timeout_seconds)
    ):  # fmt: skip
        if not 0 < seconds <= JOIN_SECONDS_MAX:
            raise UsageError(f"--{name} {seconds:g}: must be more than 0 seconds and at most {JOIN_SECONDS_MAX}.")
    for is_wrong, text in (
        (spec.rate is not None and not 0 < spec.rate < float("inf"),
         f"--rate must be a number of lines per second above 0, not {spec.rate or 0:g}."),
        (spec.encoding_errors not in ENCODING_ERRORS,
         f"--encoding-errors must be {' or '.join(ENCODING_ERRORS)}, not {spec.encoding_errors!r}."),
        (type(spec.line_size_max) is not int or not BLOCK_BYTES <= spec.line_size_max <= LINE_BYTES_BOUND,
         f"--line-size-max must be from {BLOCK_BYTES} to {LINE_BYTES_BOUND} bytes ({size_text(LINE_BYTES_BOUND)}), not "
         f"{spec.line_size_max!r:.80}: a message between processes must hold a line."),
        (spec.partial_windows not in PARTIAL_CHOICES,
         f"--partial-windows must be {' or '.join(PARTIAL_CHOICES)}, not {spec.partial_windows!r}."),
        (spec.allow_loss and not spec.follow, "--allow-loss applies to followed files: add --follow."),
        (spec.forget_missing and spec.follow,
         "--forget-missing applies to files that are not followed. For --follow, use --allow-loss."),
        (spec.same_files and spec.follow,
         "--same-file applies to files that are not followed. For --follow, use --relocate."),
        (spec.close_windows and spec.follow,
         "--close-windows closes windows when the lines end, but followed lines never end. Leave out "
         "--close-windows or --follow."),
        (spec.restarts < 0, f"--restarts must be at least 0, not {spec.restarts}."),
        (spec.shrink and spec.state is None, "--shrink is only for jobs that save their state. Add --state DIR."),
        (spec.shrink and not spec.restarts,
         "--shrink resumes a job with fewer processes, but --restarts 0 never resumes it. Leave out one of them."),
    ):  # fmt: skip
        if is_wrong:
            raise UsageError(text)
    if spec.name is not None:
        check_name(spec.name)
    check_profile(spec.profile, spec.workers)
    gc_threshold()
    if spec.on is None:
        check_crowd("--processes", spec.processes, spec)
        check_crowd("--workers", spec.workers, spec)
    have, need = resource.getrlimit(resource.RLIMIT_NOFILE)[0], FILES + FILES_PER_PROCESS * spec.processes + more_files
    if spec.state is not None:
        need += FILES_OF_STORE + spec.processes
    if have != resource.RLIM_INFINITY and have < need:
        raise MegaflowError(
            f"Too few file descriptors: --processes {spec.processes} needs {need}, and a process here may open "
            f"{have}. Raise the limit: ulimit -n {max(1024, 2 * need)}"
        )


@contextlib.contextmanager
def closing(thing: C, received: Signals) -> Iterator[C]:
    """Yield a part that is closed after the block; a signal that comes during the close interrupts it."""
    try:
        yield thing
    finally:
        with received.interruptible(anew=True):
            thing.close()
