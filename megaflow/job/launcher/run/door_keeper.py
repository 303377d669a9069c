"""Answers at the launcher's admin socket (see `megaflow.job.admin_socket`), given by a separate thread.

1. The thread answers even while the launcher waits for unresponsive workers, input, output or Spark. Its `handlers` may
   run on any thread, and must return quickly. The slowest drops a checkpoint's name: at most DROP_SECONDS_MAX.
2. No visitor can block the others. A visitor makes one request, of at most REQUEST_BYTES. The thread closes its
   connection SILENCE_SECONDS after it came, answered or not. If there are VISITORS_MAX visitors when another one comes,
   the first of them must leave. The thread does not wait to send an answer that does not fit into the socket's buffer.
3. Every FILE_SECONDS the thread looks after the job's file, and opens the door again if its socket is gone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from megaflow.control.launcher_messages import BusyReport, DropName, EndNow, StopRestart, WhereResults, WhoIsBusy
from megaflow.control.shapes import conforms
from megaflow.errors import NoPrivateFolder, ProtocolError
from megaflow.job.admin_socket import open_door
from megaflow.job.job_file import Job, door_path, folder_of, is_published
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.launcher.processes.busy_workers import BusyWords, who_is_busy
from megaflow.job.launcher.run.machine import JobParts
from megaflow.job.launcher.run.published_job import JobFile
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.poller import Poller
from megaflow.timely.communication.tcp import Link
from megaflow.timely.communication.wire import Buffer, Kind, frames

REQUEST_BYTES = 4096
SILENCE_SECONDS = 5.0
VISITORS_MAX = 32
FAREWELL_SECONDS = 1.0  # for the thread to finish the present answer
LOOK_SECONDS = 1.0
FILE_SECONDS = 3.0  # between two looks whether the files of the job are still there
FULL_SECONDS = 0.1  # before the next attempt to accept when no file descriptors are left


class DoorKeeper:
    """The thread; a context manager that ends it. If the door cannot open, the job runs without it."""

    def __init__(
        self, job: Job, handlers: Mapping[type, Callable[[Any], object]], look: Callable[[], None],
        look_after_file: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`handlers` maps each class of requests to the function that answers it; `look` runs every LOOK_SECONDS.

        `look_after_file` runs every FILE_SECONDS, to write the job's file again if it is gone.
        """
        self._job = job
        self._handlers = handlers
        self._look = look
        self._look_after_file = look_after_file
        self._visitors: dict[Link, bool] = {}  # in the order in which they came -> answered; some have left
        self._is_closing = False
        self._poller = Poller()
        self._listener: socket.socket | None = None
        self._open()
        self._thread = threading.Thread(target=self._run, name="megaflow-door", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing = True
        self._poller.wake()
        self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        try:
            self._look_again()
            self._poller.call_later(FILE_SECONDS, self._look_after_files)
            while not self._is_closing:
                self._poller.poll(None)
        finally:
            self._poller.close()
            if self._listener is not None:
                self._listener.close()

    def _open(self) -> None:
        """Open the door, if the job can have one."""
        with contextlib.suppress(OSError, NoPrivateFolder):
            listener = open_door(self._job)
            if self._listener is not None:
                self._poller.watch(self._listener, 0, self._let_in)
                self._listener.close()
            self._listener = listener
            self._poller.watch(listener, selectors.EVENT_READ, self._let_in)

    def _look_after_files(self) -> None:
        self._look_after_file()
        with contextlib.suppress(NoPrivateFolder):  # the job has no files
            door = door_path(folder_of(self._job), self._job.name)
            if self._listener is not None and not os.path.lexists(door) and is_published(self._job):
                self._open()
        self._poller.call_later(FILE_SECONDS, self._look_after_files)

    def _look_again(self) -> None:
        self._look()
        self._poller.call_later(LOOK_SECONDS, self._look_again)

    def _let_in(self, _mask: int) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # the visitor has already left
        except OSError:
            time.sleep(FULL_SECONDS)
            return
        self._visitors = {link: answered for link, answered in self._visitors.items() if not link.closed}
        if len(self._visitors) >= VISITORS_MAX:
            next(iter(self._visitors)).close()
        link = Link(self._poller, connection, self, "a visitor")
        link.decoder.max_message_bytes = REQUEST_BYTES
        self._visitors[link] = False
        self._poller.call_later(SILENCE_SECONDS, link.close)

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Answer a visitor's first request. Raises ProtocolError if the request is not valid."""
        if self._visitors[link]:
            return
        request = decode(payload) if kind == Kind.VALUE else None
        handler = self._handlers.get(type(request))
        if handler is None or not conforms(request, type(request)):
            raise ProtocolError(f"The launcher does not know the request {type(request).__name__}.")
        link.queue(Kind.DATA, frames(Kind.VALUE, encode(handler(request))))
        link.half_close()
        link.flush()  # at once, because the visitor's time may be up
        self._visitors[link] = True

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Close the connection of a visitor that has left, or is not a client of megaflow."""
        link.close()


def keep_door(
    file: JobFile, parts: JobParts, writer: Writer, waits: Sequence[Callable[[], str]],
    input_waits: Callable[[], str] = str,
) -> DoorKeeper:  # fmt: skip
    """Return the keeper of a job's admin socket, which also reports what the functions `waits` return.

    Each returns what a part of the launcher waits for, other than workers; "" for nothing. Any thread may call it.
    `input_waits` is the same for the input. The keeper reports it only when asked, because Spark always takes some time
    to start.
    """

    def waits_text() -> str:
        return "; ".join(filter(None, (wait() for wait in waits)))

    def answer(request: Any) -> BusyReport:
        return replace(who_is_busy(parts.children), output="; ".join(filter(None, (waits_text(), input_waits()))))

    handlers: dict[type, Callable[[Any], object]] = {
        WhoIsBusy: answer,
        EndNow: parts.drain_limit.end_now,
        StopRestart: parts.drain_limit.stop_restart,
        WhereResults: writer.parts.get("", writer).where,
    }
    handlers |= {} if parts.keeper is None else {DropName: parts.keeper.drop_name}
    return DoorKeeper(file.job, handlers, BusyWords(parts.children, parts.report, waits_text).look, file.look)
