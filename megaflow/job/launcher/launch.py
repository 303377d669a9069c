"""The launcher: starts the worker processes of a job, stays with it, ends them.

Children start first; whatever takes long (Spark, reading input) happens while they do. More may start while the job
runs. However a function here is left, no child survives it, and the job's file is gone.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from megaflow.errors import UsageError
from megaflow.job.app import pickle_app
from megaflow.job.job_file import Job, check_name, process_start, publish, publish_numbered
from megaflow.job.launcher.children import Child, Children, address_of, listening
from megaflow.job.launcher.epoch_merge import ListWriter, Writer
from megaflow.job.launcher.line_spec import Origin, find_origin
from megaflow.job.launcher.loop import Account, Loop
from megaflow.job.launcher.signals import watched_signals
from megaflow.job.profile.report import check_profile, profile_folder, profile_spec
from megaflow.job.spec import Address, AppFile, ChildSpec, Founder, Joiner, PickledFunction, ProfileSpec
from megaflow.job.splits import ENCODING_ERRORS


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run and how."""

    app: AppFile | PickledFunction
    lines: Any = "-"  # a specification, an iterable of str, a streaming DataFrame
    processes: int = 1
    workers: int = 1  # in each process
    args: tuple[str, ...] = ()
    rate: float | None = None  # lines per second
    name: str | None = None  # None: made from the app's
    listen: str = "127.0.0.1"
    encoding_errors: str = "replace"
    debug: bool = False
    connect_timeout_seconds: float = 30.0
    profile: ProfileSpec | None = None


def run(
    dataflow: Callable[[Any], Any],
    *,
    lines: Any,
    processes: int = 1,
    workers: int = 1,
    args: Sequence[str] = (),
    rate: float | None = None,
    name: str | None = None,
    listen: str = "127.0.0.1",
    encoding_errors: str = "replace",
    debug: bool = False,
    profile: str | os.PathLike[str] | None = None,
    profile_calls: bool = False,
) -> list[Any]:
    """Run `dataflow(flow)` on worker processes; return its output records, by epoch. Blocks until the lines end.

    `lines` is a specification as for `--lines`, an iterable of str (pulled as it is needed) or a Spark streaming
    DataFrame; `profile` is a folder for what `megaflow run --profile` writes. Raises PeerFailed with the traceback if
    the dataflow raises, and UsageError for wrong arguments.
    """
    options = RunOptions(
        pickle_app(dataflow), lines, processes, workers, tuple(args), rate, name, listen, encoding_errors, debug,
        profile=profile_spec(profile, profile_calls),
    )  # fmt: skip
    writer = ListWriter()
    launch(options, lambda: writer)
    return writer.records


def launch(
    options: RunOptions,
    open_output: Callable[[], Writer],
    *,
    report: Callable[[str], None] = lambda text: None,
    started: Callable[[Job], None] = lambda job: None,
    signals: bool = False,
) -> Account:
    """Run a job to its end; return the account.

    Outputs go to what `open_output` returns; it is called once everything else is checked, and closed here.
    `report` gets what a user should be told while it runs, `started` the job once others can steer it. With
    `signals`, the first Ctrl-C or SIGTERM drains and stops the job; the second raises KeyboardInterrupt.
    """
    check(options)
    began = time.monotonic()
    origin = find_origin(options.lines, options.processes * options.workers, options.encoding_errors)
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(watched_signals(signals))
        stack.enter_context(profile_folder(options.profile, report))  # left when no child lives any more
        children = stack.enter_context(Children())
        listeners = stack.enter_context(listening(options.listen, options.processes))
        addresses = tuple(address_of(listener) for listener in listeners)
        job = stack.enter_context(published(options, *addresses[0]))
        writer = stack.enter_context(contextlib.closing(open_output()))

        specs = Specs(options, job, origin, writer, addresses)
        children.start(listeners, specs.founder)
        started(job)

        def start(count: int, contact: Address) -> list[Child]:
            with listening(options.listen, count) as more:
                return children.start(more, lambda _, listener, word: specs.joiner(contact, listener, word))

        loop = stack.enter_context(contextlib.closing(Loop(children, start, origin, writer, received, report, job)))
        try:
            account = loop.run(options.connect_timeout_seconds)
        except BaseException:
            children.kill(children.all)  # before anything that takes time
            raise
    account.seconds = time.monotonic() - began
    account.interrupted = received.interrupted
    return account


@dataclass(frozen=True, slots=True)
class Specs:
    """What the processes of one job are told."""

    options: RunOptions
    job: Job
    origin: Origin
    writer: Writer
    founders: tuple[Address, ...]

    def founder(self, process: int, listener: socket.socket, word_fd: int) -> ChildSpec:
        """What a process is told that the job starts with."""
        return self._spec(Founder(process, self.founders), listener, word_fd)

    def joiner(self, contact: Address, listener: socket.socket, word_fd: int) -> ChildSpec:
        """What a process is told that is to join."""
        return self._spec(Joiner(contact), listener, word_fd)

    def _spec(self, part: Founder | Joiner, listener: socket.socket, word_fd: int) -> ChildSpec:
        options, origin = self.options, self.origin
        return ChildSpec(
            job=self.job.name,
            part=part,
            workers=options.workers,
            address=address_of(listener),
            listener_fd=listener.fileno(),
            secret=self.job.secret.encode(),
            app=options.app,
            args=options.args,
            splits=origin.splits if isinstance(part, Founder) else (),
            pushed=origin.pushed is not None,
            spark_queries=0 if origin.spark is None else 1,
            rate=options.rate,
            encoding_errors=options.encoding_errors,
            output=self.writer.form,
            debug=options.debug,
            connect_timeout_seconds=options.connect_timeout_seconds,
            profile=options.profile,
            word_fd=word_fd,
        )


def check(options: RunOptions) -> None:
    """Raise UsageError for options that cannot be."""
    for name, value in (("processes", options.processes), ("workers", options.workers)):
        if value < 1:
            raise UsageError(f"--{name} must be at least 1, not {value}")
    if options.rate is not None and not 0 < options.rate < float("inf"):
        raise UsageError(f"--rate must be a number of lines per second above 0, not {options.rate:g}")
    if options.encoding_errors not in ENCODING_ERRORS:
        raise UsageError(f"--encoding-errors must be {' or '.join(ENCODING_ERRORS)}, not {options.encoding_errors!r}")
    if options.name is not None:
        check_name(options.name)
    check_profile(options.profile, options.workers)


@contextlib.contextmanager
def published(options: RunOptions, host: str, port: int) -> Iterator[Job]:
    """Give the job, whose file is there for the block."""
    stem = os.path.splitext(os.path.basename(options.app.path))[0] if isinstance(options.app, AppFile) else "job"
    name = "".join(char if char.isascii() and char.isalnum() else "_" for char in stem)[:50] or "job"
    secret = os.environ.get("MEGAFLOW_SECRET", "").strip() or secrets.token_hex(32)
    job = Job(options.name or name, os.getpid(), process_start(os.getpid()), host, port, secret)
    if options.name is not None:
        path = publish(job)
    else:
        job, path = publish_numbered(job)
    try:
        yield job
    finally:
        path.unlink(missing_ok=True)
