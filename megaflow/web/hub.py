"""The hub between a job and its viewers: takes the news of the job, and gives every viewer the same bytes.

1. A thread iterates the watcher, and gives each item to view and metrics. It runs only while there is a viewer, while a
   scrape waits, and some seconds longer. So a page without viewers asks the job for nothing.
2. At most four times a second, the view's changes are encoded, once for all viewers. This happens on a thread, because
   a large change takes longer than other requests should wait. Everything else runs on the server's event loop.
3. Each viewer has a queue of QUEUE_MAX messages. If it is full, the queue is emptied and the viewer gets a snapshot. So
   a slow viewer costs bounded memory, and none of the others notices it.
4. Before a snapshot is made, the changes until then are taken and sent. So a viewer that gets the snapshot and the
   changes after it sees each change once.
5. Messages have numbers, and the last QUEUE_MAX are kept. A viewer that comes back and names its last message gets the
   ones after it, if all of them are kept, and otherwise a snapshot.
6. Events with a number reach view and metrics once, also if the watcher begins again and repeats them.
7. In the launcher, only `close` ends the page: the launcher knows why the job has failed, and the watcher only that it
   is gone. So there the watcher looks for the job until it is stopped.

Server-sent events, each with JSON in `data:` and the message's name in `id:`:

    event: snapshot    all that the page shows, see `megaflow.web.view`
    event: changes     what has changed since the message before
    event: ended       {"text": why}; nothing follows
    : a comment        every KEEP_ALIVE_SECONDS without a message
"""

import asyncio
import contextlib
import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from megaflow.control.job_events import JobEvent
from megaflow.control.reports import Explanation, JobStatus
from megaflow.errors import JobNotFound, MegaflowError, PeerLost, UsageError
from megaflow.web.metrics import Metrics
from megaflow.web.view import View

PERIOD_SECONDS: Final = 0.25  # between two changes
IDLE_SECONDS: Final = 10.0  # from the last viewer until the job is no longer watched
FRESH_SECONDS: Final = 2.0  # the age of a status that a scrape may still use
SCRAPE_SECONDS: Final = 5.0  # for a new one to come; then the scrape uses the old one
AGAIN_SECONDS: Final = 1.0  # until the next attempt to watch a job that has not answered
KEEP_ALIVE_SECONDS: Final = 15.0
FAREWELL_SECONDS: Final = 2.0  # for the thread and the viewers, at the end
RETRY_MS: Final = 1000  # after which a browser connects again
QUEUE_MAX: Final = 32
VIEWERS_MAX: Final = 64

ENDED: Final = "The job has ended."

log = logging.getLogger("megaflow.web")


class Viewer:
    """One viewer. Only the server's event loop uses it."""

    def __init__(self) -> None:
        self.is_behind = True  # it needs a snapshot
        self.is_last = False  # nothing follows what is in the queue
        self._queue: deque[bytes] = deque()
        self._news = asyncio.Event()

    def put(self, message: bytes) -> None:
        """Queue a message. If the queue is full, forget it all: the viewer is behind."""
        if len(self._queue) >= QUEUE_MAX:
            self._queue.clear()
            self.is_behind = True
            return
        self._queue.append(message)
        self._news.set()

    @property
    def is_over(self) -> bool:
        """Whether it has taken the last message."""
        return self.is_last and not self._queue

    async def next(self) -> bytes:
        """Return what is to be sent next: a message, or a comment after some time without one."""
        while not self._queue:
            self._news.clear()
            try:
                async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                return b":\n\n"
        return self._queue.popleft()


class Hub:
    """The hub of one job. Its methods belong to the server's event loop; other threads only wait for `ended`."""

    def __init__(
        self,
        watch: Callable[[], Iterator[JobEvent | JobStatus]],
        explain: Callable[[], Explanation | None],
        stop: threading.Event,
        view: View,
        metrics: Metrics,
        always: bool = False,
        in_launcher: bool = False,
    ) -> None:
        """`watch` yields news until the job has ended, at least once a second; it may pause by `stop.wait`.

        `explain` returns what holds the output back, None if the job does not answer. With `always`, the job is watched
        even if there is no viewer. `in_launcher`: see rule 7.
        """
        self._watch, self._explain, self._stop = watch, explain, stop
        self._view, self._metrics = view, metrics
        self._always, self._in_launcher = always, in_launcher
        self._lock = threading.Lock()  # held to use view or metrics
        self._series = secrets.token_hex(4)  # of the messages' names: another hub begins anew
        self._number = 0  # of the last changes
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=QUEUE_MAX)
        self._viewers: set[Viewer] = set()
        self._thread: threading.Thread | None = None
        self._seen = (-1, 0)  # attempt and number of the last event; one writer: the thread
        self._status_at = float("-inf")  # seconds of time.monotonic(), of the last status; likewise
        self._wanted_until = 0.0  # seconds of time.monotonic(): watch the job until then
        self._is_over = False  # `close` was called
        self.ended = threading.Event()  # no more news comes
        self.why = ""  # then

    def open(self) -> None:
        """Begin, on the event loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._wake, self._heard, self._closing = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._serving = asyncio.create_task(self._serve())
        if self._always:
            self._begin()

    async def close(self, why: str, has_ended: bool) -> None:
        """End: send the last state to all viewers, and wait a while until they have it.

        `has_ended`: the job has, and not only the page.
        """
        until = time.monotonic() + FAREWELL_SECONDS
        self._is_over = True
        self._stop.set()
        while self._thread is not None and time.monotonic() < until:
            await self._hear(until)
        self._end(why, has_ended)
        self._closing.set()
        self._wake.set()
        await self._serving
        while not all(each.is_over for each in self._viewers) and time.monotonic() < until:
            await self._hear(until)

    @property
    def is_full(self) -> bool:
        """Whether there are as many viewers as there may be."""
        return len(self._viewers) >= VIEWERS_MAX

    def join(self, last: str) -> Viewer:
        """Return a new viewer. `last` is the name of the last message that it has seen; "": none."""
        viewer = Viewer()
        series, _, number = last.partition("-")
        if series == self._series and number.isascii() and number.isdigit() and len(number) < 16:
            missed = [message for count, message in self._kept if count > int(number)]
            if len(missed) == self._number - int(number):
                viewer.is_behind = False
                for message in missed:
                    viewer.put(message)
        self._viewers.add(viewer)
        self._begin()
        self._wake.set()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        self._viewers.discard(viewer)
        self._want(IDLE_SECONDS)
        self._note()

    async def scrape(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics, with a status that is new, and their content type."""
        asked = time.monotonic()
        if asked - self._status_at > FRESH_SECONDS:
            self._want(SCRAPE_SECONDS)
            self._begin()
        while not self.ended.is_set() and time.monotonic() < asked + SCRAPE_SECONDS:
            if asked - self._status_at <= FRESH_SECONDS:
                break
            await self._hear(asked + SCRAPE_SECONDS)  # after that: the job is busy, so what is known must do
        return await asyncio.to_thread(self._text, accept)

    # Sending --------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Send what changes, until the hub is closed and has sent the last of it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            is_closing, has_ended = self._closing.is_set(), self.ended.is_set()  # before the last state is encoded
            changes = None
            if self._viewers:
                changes, snapshot = await asyncio.to_thread(self._encode, any(each.is_behind for each in self._viewers))
                self._publish(changes, snapshot, has_ended and changes is None)
            if is_closing and changes is None:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_SECONDS):
                    await self._closing.wait()

    def _publish(self, changes: bytes | None, snapshot: bytes | None, are_last: bool) -> None:
        """Give changes to the viewers that have everything before them, and a snapshot to the others.

        `are_last`: the job has ended, and nothing follows.
        """
        if changes is not None:
            self._wake.set()  # the view may have kept some back
            self._number += 1
            message = self._message("changes", changes)
            self._kept.append((self._number, message))
            for viewer in self._viewers:
                if not viewer.is_behind:
                    viewer.put(message)
        if snapshot is not None:
            message = self._message("snapshot", snapshot)
            for viewer in self._viewers:
                if viewer.is_behind:
                    viewer.is_behind = False
                    viewer.put(message)
        for viewer in self._viewers:
            if are_last and not viewer.is_behind and not viewer.is_last:
                viewer.put(self._message("ended", encoded({"text": self.why})))
                viewer.is_last = not viewer.is_behind
        if any(viewer.is_behind for viewer in self._viewers):
            self._wake.set()

    def _message(self, event: str, data: bytes) -> bytes:
        return b"event: %s\nid: %s-%d\ndata: %s\n\n" % (event.encode(), self._series.encode(), self._number, data)

    def _encode(self, with_snapshot: bool) -> tuple[bytes | None, bytes | None]:
        """Return the changes until now and, if wanted, a snapshot that follows them. Any thread."""
        with self._lock:
            changes = self._view.changes()
            snapshot = self._view.snapshot() if with_snapshot else None
        return (None if changes is None else encoded(changes)), (None if snapshot is None else encoded(snapshot))

    def _text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics. Any thread."""
        with self._lock:
            return self._metrics.text(accept)

    # Watching -------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the thread, unless it runs or the hub or the job has ended."""
        if self._thread is None and not self._is_over and not self.ended.is_set():
            self._stop.clear()
            self._thread = threading.Thread(target=self._work, name="megaflow-hub", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        """Take the news until the job has ended, or `stop` is set. Runs on the hub's thread."""
        why = ""
        try:
            while not why and not self._stop.is_set():
                why = self._follow()
        except Exception as error:
            log.exception("The page has failed; the job goes on.")
            why = f"The page has failed: {error!r}"
        self._call(self._note_end, "" if self._stop.is_set() else why)

    def _follow(self) -> str:
        """Take news until `stop` is set or they end; return why they end, "" if more may come."""
        try:
            for news in self._watch():
                if self._is_new(news):
                    self._take(news)
                if self._stop.is_set():
                    return ""
            why = ENDED
        except UsageError as error:
            return str(error)
        except (PeerLost, JobNotFound) as error:
            why = str(error)
        except MegaflowError as error:
            log.debug("the job does not answer the page: %s", error)
            why = ""
        if why and not self._in_launcher:
            return why
        self._stop.wait(AGAIN_SECONDS)
        return ""

    def _take(self, news: JobEvent | JobStatus) -> None:
        """Give news to view and metrics and, if the view wants it, the answer of `explain` to the view."""
        with self._lock:
            self._view.take(news, time.time())
            self._metrics.take(news)
            wants = self._view.wants_explanation(time.time())
        if isinstance(news, JobStatus):
            self._status_at = time.monotonic()
        self._call(self._note)
        if wants and (why := self._explain()) is not None:
            with self._lock:
                self._view.take(why, time.time())
            self._call(self._note)

    def _is_new(self, news: JobEvent | JobStatus) -> bool:
        if isinstance(news, JobEvent) and news.number:
            if (news.attempt, news.number) <= self._seen:
                return False
            self._seen = news.attempt, news.number
        return True

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop, from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed: there is no viewer left
            self._loop.call_soon_threadsafe(function, *arguments)

    def _note(self) -> None:
        """There is something new for `_serve` and for those that wait in `_hear`."""
        self._wake.set()
        self._heard.set()
        self._heard = asyncio.Event()

    async def _hear(self, until: float) -> None:
        """Wait for the next `_note`, but not beyond `until`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - time.monotonic()):
                await self._heard.wait()

    def _note_end(self, why: str) -> None:
        """The thread has ended. `why` is empty if it was stopped."""
        self._thread = None
        if why:
            self._end(why, True)
        elif self._is_wanted:
            self._begin()
        self._note()

    def _end(self, why: str, has_ended: bool) -> None:
        if self.ended.is_set():
            return
        self.why = why
        if has_ended:
            with self._lock:
                self._view.end(time.time())
        self.ended.set()

    def _want(self, seconds: float) -> None:
        """Watch the job for so long, then stop unless there are viewers."""
        self._wanted_until = max(self._wanted_until, time.monotonic() + seconds)
        self._loop.call_later(seconds + PERIOD_SECONDS, self._perhaps_stop)

    @property
    def _is_wanted(self) -> bool:
        return self._always or bool(self._viewers) or time.monotonic() < self._wanted_until

    def _perhaps_stop(self) -> None:
        if not self._is_wanted:
            self._stop.set()


def encoded(value: object) -> bytes:
    """Return a value as JSON in one line. Raises ValueError for NaN, which is not JSON.

    Characters beyond ASCII stay as they are: escaped, cells of bins would take three times as many bytes. Names may
    have lone surrogates, which no byte stands for.

    >>> encoded({"cell": "é", "name": chr(0xDC80)}).decode()
    '{"cell":"é","name":"?"}'
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")
