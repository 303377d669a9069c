"""A page without a job for tests: its news come from a queue, its view counts them. Plain HTTP over real sockets."""

import contextlib
import json
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from megaflow.control.job_events import JobEvent
from megaflow.control.reports import Explanation, JobStatus
from megaflow.web.access import Access
from megaflow.web.hub import Hub
from megaflow.web.patches import merge
from megaflow.web.server import LIMITS, Door, Limits, PageServer, Steer

SECONDS = 90.0  # for anything to come, on a busy machine
TOKEN = "a-token-of-the-tests"


def status(state: str = "running") -> JobStatus:
    return JobStatus("job", state, 1, 1, (), ())


class News:
    """A job that tells what the test puts here. It ends with None."""

    def __init__(self) -> None:
        self.coming: queue.SimpleQueue[JobEvent | JobStatus | None] = queue.SimpleQueue()
        self.stop = threading.Event()
        self.watched = 0  # how often a hub began to watch
        self.idle = threading.Semaphore(0)  # released each time that a hub has stopped

    def watch(self) -> Iterator[JobEvent | JobStatus]:
        """Yield what comes until the hub stops; a status at once, as a job gives one."""
        self.watched += 1
        try:
            yield status()
            while not self.stop.is_set():
                with contextlib.suppress(queue.Empty):
                    if (news := self.coming.get(timeout=0.05)) is None:
                        return
                    yield news
        finally:
            self.idle.release()


@dataclass
class CountingView:
    """A view that shows how many news it has taken, and each of them. A snapshot may be padded to many bytes."""

    padding: int = 0
    shown: dict[str, Any] = field(default_factory=lambda: {"count": 0, "states": [], "ended": False})
    sent: str = ""
    why: Explanation | None = None

    def take(self, news: JobEvent | JobStatus | Explanation, now: float) -> None:
        self.shown["count"] += 1
        if isinstance(news, JobStatus):
            self.shown["states"].append(news.state)

    def wants_explanation(self, now: float) -> bool:
        return self.shown["states"][-1:] == ["stands still"]

    def end(self, now: float) -> None:
        self.shown["ended"] = True

    def snapshot(self) -> dict[str, Any]:
        return {**self.shown, "padding": "x" * self.padding}

    def changes(self) -> dict[str, Any] | None:
        now = json.dumps(self.shown)
        if now == self.sent:
            return None
        self.sent = now
        return self.snapshot()


class CountingMetrics:
    """Metrics that show how many news they have taken."""

    def __init__(self) -> None:
        self.count = 0

    def take(self, news: JobEvent | JobStatus) -> None:
        self.count += 1

    def text(self, accept: str) -> tuple[bytes, str]:
        return b"news_total %d\n" % self.count, "text/plain; version=0.0.4"


@dataclass(frozen=True)
class Visitor:
    """A visitor of a page, which has its token."""

    host: str
    port: int
    token: str = TOKEN

    @property
    def cookie_name(self) -> str:
        return f"megaflow-{self.port}"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=SECONDS)

    def raw(self, request: bytes) -> bytes:
        """Send bytes; return all that comes until the server closes the connection."""
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(request)
            return read_all(connection)

    def request(
        self, path: str = "/", method: str = "GET", headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> "Answer":
        """Return the answer to a request with these headers; its Host is right unless they have one."""
        named = {"Host": f"127.0.0.1:{self.port}", "Connection": "close", **(headers or {})}
        if body:
            named["Content-Length"] = str(len(body))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in named.items() if value)]
        return parsed(self.raw("\r\n".join(lines).encode() + b"\r\n\r\n" + body))

    def steer(self, body: bytes, **changed: str) -> "Answer":
        """Return the answer to a command as the page sends it, with some headers changed."""
        headers = {
            "Origin": f"http://127.0.0.1:{self.port}",
            "X-Megaflow": "1",
            "Cookie": f"{self.cookie_name}={self.token}",
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in changed.items()},
        }
        return self.request("/control", "POST", headers, body)

    def command(self, name: str, /, **given: object) -> tuple[int, Any]:
        """Return status and record of the answer to a command of the page."""
        answer = self.steer(json.dumps({"command": name, "arguments": given}).encode())
        return answer.status, json.loads(answer.body)

    @contextlib.contextmanager
    def viewer(self, last: str = "") -> "Iterator[Viewer]":
        """Yield a viewer that has connected."""
        with self.connect() as connection:
            again = f"Last-Event-ID: {last}\r\n" if last else ""
            connection.sendall(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n{again}\r\n".encode())
            with connection.makefile("rb") as stream:
                yield Viewer(stream)


def visitor_of(url: str) -> Visitor:
    """Return a visitor of the page at a printed address."""
    found = re.fullmatch(r"http://([\d.]+):(\d+)/(?:\?token=(.+))?", url)
    assert found, url
    return Visitor(found[1], int(found[2]), found[3] or "")


@dataclass(frozen=True)
class Page(Visitor):
    """A served page, and a visitor of it."""

    news: News = field(kw_only=True)
    server: PageServer = field(kw_only=True)
    hub: Hub = field(kw_only=True)
    waits: list[str] = field(kw_only=True)  # the last one is why the job is not ready


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP; status 0: the server has closed the connection without one."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: str


def read_all(connection: socket.socket) -> bytes:
    chunks = []
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            chunks.append(chunk)
    return b"".join(chunks)


def parsed(data: bytes) -> Answer:
    head, _, body = data.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    found = re.fullmatch(r"HTTP/1\.[01] (\d{3}) .*", first)
    named = (line.partition(": ") for line in lines)
    return Answer(int(found[1]) if found else 0, {name.lower(): value for name, _, value in named}, body)


@dataclass(frozen=True)
class Message:
    """A server-sent event."""

    event: str
    id: str
    data: Any


class Viewer:
    """A connection to /events."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.document: dict[str, Any] = {}
        self.first = self._stream.readline().decode().strip()
        while self._stream.readline().strip():
            pass

    def next(self) -> Message | None:
        """Return the next message, without comments and `retry`; None at the end."""
        fields: dict[str, str] = {}
        while True:
            chunk = self._chunk_line()
            if chunk is None:
                return None
            line = chunk.rstrip("\n")
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
            elif "event" in fields:
                return Message(fields["event"], fields["id"], json.loads(fields["data"]))
            else:
                fields = {}

    def until(self, wanted: Callable[[Message], bool]) -> Message:
        """Return the first message that is wanted."""
        while (message := self.next()) is not None:
            if wanted(message):
                return message
        raise AssertionError("the stream ended before")

    def state(self, state: str) -> Message:
        """Return the first message whose last state is this one."""
        return self.until(lambda message: message.data["states"][-1:] == [state])

    def shows(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Apply snapshots and changes as the page does, until the document is as wanted; return it."""
        while not wanted(self.document):
            if (message := self.next()) is None:
                raise AssertionError(f"the stream ended before, with {self.document}")
            if message.event == "snapshot":
                self.document = message.data
            elif message.event == "changes":
                self.document = merge(self.document, message.data)
        return self.document

    _rest = b""

    def _chunk_line(self) -> str | None:
        """Return the next line of the body, which comes in chunks."""
        while b"\n" not in self._rest:
            size = self._stream.readline()
            if not size or int(size, 16) == 0:
                return None
            self._rest += self._stream.read(int(size, 16))
            self._stream.readline()
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()


@contextlib.contextmanager
def served(
    *,
    host: str = "127.0.0.1",
    bound: str = "",
    may_steer: bool = False,
    steer: Steer | None = None,
    limits: Limits = LIMITS,
    has_page: bool = True,
    padding: int = 0,
    explain: Callable[[], Explanation | None] = lambda: None,
    news: News | None = None,
    in_launcher: bool = False,
) -> Iterator[Page]:
    """Yield a page at a free port. `bound` is where the port seems to be, for its access."""
    news, waits = news or News(), [""]
    listener = socket.create_server((host, 0))
    access = Access(bound or host, listener.getsockname()[1], TOKEN, may_steer, "machine")
    hub = Hub(news.watch, explain, news.stop, CountingView(padding), CountingMetrics(), in_launcher=in_launcher)
    server = PageServer([Door(listener, access, has_page)], hub, lambda: waits[-1], steer, limits)
    server.start()
    try:
        yield Page(host, access.port, news=news, server=server, hub=hub, waits=waits)
    finally:
        server.close("The job has ended.")
        assert not any(thread.name == "megaflow-page" for thread in threading.enumerate())
