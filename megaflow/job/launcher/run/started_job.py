"""A job that runs beside the program that started it: a handle to watch it, steer it and wait for its end.

1. The launcher, with its loop, is a thread of this process. Signals stay with the main thread: the program decides what
   Ctrl-C does.
2. A start blocks until the processes are started. So the call that starts the job raises an error of the start.
   KeyboardInterrupt during that time ends the start; the launcher keeps checking for it (`Signals.end`).
3. Commands take the path of `megaflow control`, through the job's file (see `job_control`).
4. Python waits for the thread when it exits. So the job's resources here and on other machines are always released. If
   the main thread ends before the job, the job is ended by force, because no thread could wait for it. The log reports
   that. With `state` the same program resumes the job.
5. An uncaught error of the job is shown as `megaflow run` shows it: only the traceback of the user's code, last. For
   this, a function of this module replaces `sys.excepthook`, if that is Python's own, while a job runs or has failed.
6. A stop first ends the inputs that the program itself feeds (`Signals.end_input`), and waits until the job has taken
   in all items that were pulled. So the outputs are those of all items that the program has handed out. Other inputs,
   which do not delay this (see `megaflow.job.worker.reading.line_queue`), are stopped after that.
7. The job logs what `megaflow run` prints on standard error: warnings, which are printed unless the program has set
   up logging otherwise, and notices (`Notice`) with level INFO. It logs its failure at once, unless a call of the
   program raises it at that moment, or the program has ended the job.
8. A fork has a copy of the handle, but neither the launcher's thread nor its files (`megaflow.own_files`). There a stop
   does nothing, because cleaning up at the end of a fork, such as of a `multiprocessing` pool, must not affect the job.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Final, Self

from megaflow.control.wording import Notice
from megaflow.environment import warn_of_unknown
from megaflow.errors import ClusterError, JobNotFound, MegaflowError, NoAnswer, PeerFailed, PeerLost, UsageError
from megaflow.job.admin_socket import end_by_force
from megaflow.job.contact import conversation, stop
from megaflow.job.job_file import Job, find
from megaflow.job.launcher.outputs.program_output import Outputs, ProgramWriter, check_process
from megaflow.job.launcher.processes.wakeups import Signals, wait_in_slices
from megaflow.job.launcher.program.typed_failure import typed
from megaflow.job.launcher.run.job_control import TIMEOUT_SECONDS, JobControl
from megaflow.job.launcher.run.launch import LaunchOptions, launch
from megaflow.job.launcher.run.published_job import started_text
from megaflow.job.launcher.run.run_summary import RunSummary, report_end
from megaflow.job.script_logging import print_own_lines

LOOK_SECONDS: Final = 0.2  # delay after which the program's end is noticed
ENDING_SECONDS: Final = 10.0  # for a job to end whose processes no longer answer, on a busy machine

log = logging.getLogger("megaflow.job")


class JobHandle(JobControl):
    """A running job that this program started. It has the commands of `megaflow control`.

    It is a context manager. Leaving the block drains and stops the job, if it has not ended, and waits for its end. An
    error that leaves the block ends the job at once. If the job has already failed, its failure is raised instead.
    Ctrl-C drains and stops a job whose outputs the program reads; `outputs` then has all records up to that point.
    """

    def __init__(
        self, options: LaunchOptions, output: ProgramWriter | None = None, wording: Callable[[str], str] = str
    ) -> None:
        """Start the job, see `launch`. Blocks until its processes are started; raises the reason if they cannot start.

        `output`: the writer that `options` open, if the program reads it by `outputs`. `wording` changes logged texts.
        """
        warn_of_unknown()
        print_own_lines("megaflow")
        self._process = os.getpid()
        self._signals = Signals()
        self._output = output
        self._page = options.page
        self._job: Job | None = None  # as published; the launcher's thread writes it before it sets `_settled`
        self._summary: RunSummary | None = None  # likewise, before `_ended`
        self._error: BaseException | None = None  # likewise
        self._settled, self._ended = threading.Event(), threading.Event()
        self._awaited: list[bool] = []  # for each call that waits for the end, whether it raises the error; any thread
        self._is_made = False  # the constructor no longer raises the error
        self._is_ended_here = False  # the program has called `end`
        self.is_stopping = False  # `stop` was called, and did not fail

        def report(text: str) -> None:
            log.log(logging.INFO if isinstance(text, Notice) else logging.WARNING, "%s", wording(text))

        def started(job: Job) -> None:
            report(started_text(job, options.spec.processes * options.spec.workers))
            self._job = job
            self._settled.set()

        def work() -> None:
            try:
                self._summary = launch(options, report, started, self._signals)
                noun, is_kept = "line" if options.rows is None else "row", options.spec.state is not None
                report_end(self._summary, noun, is_kept, report)
            except BaseException as error:
                self._error = typed(error)
            is_raised = any(self._awaited) or (output is not None and output.is_awaited)
            self._signals.close()  # if the start failed early, nothing has closed them
            self._ended.set()
            self._settled.set()
            if self._error is not None and self._is_made and not (is_raised or self._is_ended_here):
                bug = None if isinstance(self._error, MegaflowError) else self._error
                log.error("the job %r has failed: %s", self.name, wording(str(self._error)), exc_info=bug)
            if output is not None:
                output.close()

        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(work,), name="megaflow-launcher")
        self._thread.start()
        threading.Thread(target=self._end_with_program, name="megaflow-program", daemon=True).start()
        try:
            wait_in_slices(self._settled.wait)
        except BaseException:  # Ctrl-C
            self.end()
            raise
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = show_failure
        self._is_made = True
        if not self.is_running:
            self.wait()

    @property
    def name(self) -> str:
        """Name of the job, also for `megaflow control --job`."""
        return "" if self._job is None else self._job.name

    @property
    def web_url(self) -> str | None:
        """Address of the job's page, with the token if the page needs it. None if the job was started without `web`."""
        return None if self._page is None else self._page.url

    @property
    def is_running(self) -> bool:
        """Whether the job has not ended."""
        return not self._ended.is_set()

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits for the job's end."""
        return bool(self._awaited)

    @property
    def is_in_fork(self) -> bool:
        """Whether this is a copy of the handle, in a fork of the process that started the job."""
        return os.getpid() != self._process

    def __repr__(self) -> str:
        state = "runs" if self.is_running else "has ended" if self._error is None else "has failed"
        return f"<job {self.name!r}, which {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.is_in_fork:
            return
        if self._output is not None and isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            self.stop_or_end()
            return
        if error is not None:
            with self._awaiting(raises=True):  # a query of its results fails while the job is still ending
                has_ended = self._ended.wait(LOOK_SECONDS)
            if has_ended:
                self.wait()
            self.end()
            return
        with self._awaiting(raises=True):
            with contextlib.suppress(JobNotFound):
                self.stop()
            self.wait()

    def outputs(self) -> Outputs:
        """Return the output records as they come, epoch by epoch: `for record in job.outputs()`, or `async for`.

        If the job fails, its error is raised after the records of all earlier epochs. A second call continues with the
        records that were not yet returned. Up to about 4 MB of unread records are kept. Beyond that the job waits for
        the reader, even if it never reads. While the program waits in `wait` or `stop`, all further records are kept.
        With `state` a record comes once a checkpoint contains it, and therefore exactly once even if processes are
        lost.
        """
        check_process(self._process)
        if self._output is None:
            raise UsageError(
                "This job's outputs are not returned here: read them where output= sends them, or from run.results. "
                "Call wait() to wait for the end of the job."
            )
        return Outputs(self._output, self)

    def stop(self, drain: bool = True) -> None:
        """Stop reading, process what was read, and end the job. Blocks until it has ended; `wait` returns the summary.

        A job without a store closes its windows and fires its timers, unless `drain=False`. Does nothing if the job has
        ended. With a store the job leaves a checkpoint, from which the same call resumes. The job processes all items
        that it has pulled from iterables and queues, and all that it has read of files. A blocked iterable is
        abandoned, and its later items are lost. Does nothing in a fork of the process that started the job.
        """
        if self.is_in_fork:
            return
        self.is_stopping = True
        with self._keeping():
            self._signals.end_input()
            while not (self._signals.input_ended.wait(LOOK_SECONDS) or self._ended.is_set()):
                pass
            try:
                with self._telling_end() as job:
                    stop(job, None, TIMEOUT_SECONDS, drain=drain)
            except MegaflowError as error:  # it may have failed, and `wait` raises that
                may_end = isinstance(error, ClusterError | NoAnswer | JobNotFound)
                if error is not self._error and not (may_end and self._is_ending()):
                    self.is_stopping = False
                    raise
        with self._awaiting(raises=False):
            wait_in_slices(self._ended.wait)

    def end(self) -> None:
        """End the job at once, whatever its workers are doing. Blocks until it has ended; `wait` then raises.

        Does nothing in a fork of the process that started the job.
        """
        if self.is_in_fork:
            return
        self._is_ended_here = True
        self._signals.end()  # ends a job that is still starting
        while not self._ended.wait(0.0 if self._job is None else LOOK_SECONDS):
            if self._job is None:
                self._settled.wait(LOOK_SECONDS)
                continue
            if self._job.folder is None:  # it cannot be asked
                self._signals.wake()
                continue
            with contextlib.suppress(MegaflowError):
                end_by_force(find(self._job.name), TIMEOUT_SECONDS)
        self._thread.join()

    def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until the job has ended; return its summary.

        It has `lines`, `records`, `seconds` and `restarts`. `skipped` counts the faults that were left out, by input.
        `late` counts the records that operators with windows have left out, by operator. A warning reports both.

        Raises the error that made the job fail: PeerFailed with the traceback if the program raised, which is also an
        error of the class that it raised; StateKept if the same call can resume it. Raises TimeoutError if it has not
        ended within `timeout` seconds.
        """
        check_process(self._process)
        with self._awaiting(raises=True):
            is_over = wait_in_slices(self._ended.wait, timeout)
        if not is_over:
            raise TimeoutError(f"The job {self.name!r} has not ended within {timeout:g} s.")
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._summary is not None, "a job that has not failed has a summary"
        return self._summary

    def failure_text(self) -> str | None:
        """Wait until the job has ended; return the text of its failure, None if it has not failed."""
        wait_in_slices(self._ended.wait)
        return None if self._error is None else str(self._error)

    def _keeping(self) -> contextlib.AbstractContextManager[None]:
        """Keep the outputs during the block, because this thread waits and cannot read them."""
        return contextlib.nullcontext() if self._output is None else self._output.awaited()

    def stop_or_end(self) -> None:
        """Stop the job. Ctrl-C during the stop ends the job at once and is raised."""
        try:
            self.stop()
        except KeyboardInterrupt:
            self.end()
            raise
        except MegaflowError:  # the job has failed meanwhile, and `wait` raises the error
            self.end()

    @contextlib.contextmanager
    def _awaiting(self, raises: bool) -> Iterator[None]:
        """Note that a call waits for the end during the block, and whether it then raises the job's error."""
        self._awaited.append(raises)
        try:
            with self._keeping():
                yield
        finally:
            self._awaited.remove(raises)

    @contextlib.contextmanager
    def _conversation(self, back_seconds: float | None = None) -> Iterator[Any]:
        """Yield a conversation with the job. Raises as `_check_running` if the job has ended or ends meanwhile."""
        with self._telling_end() as job, conversation(job, None, TIMEOUT_SECONDS, back_seconds=back_seconds) as talk:
            yield talk

    @contextlib.contextmanager
    def _telling_end(self) -> Iterator[str | Job]:
        """Yield the job's name, or the job if it has no file. Raises as `_check_running` if it ends meanwhile."""
        self._check_running()
        assert self._job is not None
        try:
            yield self._job if self._job.folder is None else self._job.name
        except JobNotFound:  # no process of the job answers, so it is probably ending
            if self._is_ending():
                self._check_running()
            raise
        except PeerLost:
            self._ended.wait(LOOK_SECONDS)
            self._check_running()
            raise

    def _check_running(self) -> None:
        """Raise the job's error if it has failed, and JobNotFound if it has ended or has nothing left to do."""
        if not self.is_running and self._error is not None:
            raise self._error
        if self._job is None or not self.is_running:
            raise JobNotFound(f"The job {self.name!r} has ended.")
        if self._signals.is_through:
            raise JobNotFound(f"The job {self.name!r} has finished its work and ends when its output is read.")

    def _is_ending(self) -> bool:
        """Return whether the job has nothing left to do. Wait some seconds for that."""
        until = time.monotonic() + ENDING_SECONDS
        while not (self._ended.wait(LOOK_SECONDS) or self._signals.is_through):
            if time.monotonic() > until:
                return False
        return True

    def _pause(self, seconds: float) -> None:
        """Sleep, but not beyond the job's end."""
        self._ended.wait(seconds)

    def _end_with_program(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            if not threading.main_thread().is_alive():
                log.warning(
                    "the program exits before its job %r, so the job is ended: call wait() or stop() first", self.name
                )
                self.end()


def show_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an uncaught error; one of a job is shown without the frames that lead to it."""
    if isinstance(error, PeerFailed):
        sys.stderr.write(str(error).rstrip("\n") + "\n")
    else:
        sys.__excepthook__(kind, error, trace)
