"""The server of the page: one thread with an event loop of its own, in the process of the launcher or of a command.

    GET  /           the page; with `?token=…` it exchanges the token for a cookie
    GET  /static/…   its files
    GET  /events     server-sent events, see `megaflow.web.hub`
    GET  /metrics    for Prometheus
    GET  /livez      200 while the server runs
    GET  /readyz     200 while the job runs, 503 with the reason while it starts, recovers or has ended
    GET  /control    {"steers": whether this browser may give commands}
    POST /control    {"command": name, "arguments": {…}}: 200 with {"result": …}, or an error with {"error": text}

`--metrics` opens a port with /metrics, /livez and /readyz alone. For the rights of visitors see `megaflow.web.access`.

1. The job never waits for the server. Its thread shares no lock with the launcher's loop. It asks the job as any other
   client does, see `megaflow.job.watching`.
2. The files of the page are read once, when the server starts. A path of a request is a key of a dict and never a path
   of the file system.
3. Every connection is bounded, see `Limits`. If there are too many, a new one ends the oldest that has no request
   under way. A connection without a request under way ends after a while, however slowly the next request comes. From
   the end of one request to the end of the next, at most REQUEST_BYTES are read: a visitor that sends more is cut off,
   unless the library stops reading earlier. A viewer that does not read for a while is cut off. A peer that does not
   acknowledge anything for PEER_SECONDS is gone.
4. Commands run on threads of their own, at most COMMANDS_MAX at a time: a move may take minutes, and a stop must be
   able to follow it.

The library is aiohttp. Its documented interface has the protocol of a connection, so rule 3 needs no private attribute,
and its `write` waits for slow readers. Starlette with uvicorn has fewer dependencies. But uvicorn has no time limit for
the head of a request, documents no access to a connection, and looks ten times a second whether it should end.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError

from megaflow.errors import MegaflowError, UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.web.access import HEADERS, LINK_TOKEN, STEERS, Access, Refused, Visit
from megaflow.web.hub import RETRY_MS, Hub

STATIC: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Content types by suffix. Python's table depends on files of the machine, and programs may change it. A browser would
not run a script with another type."""
VERSION: Final = importlib.metadata.version("megaflow")

LINE_BYTES_MAX: Final = 4096  # of a request's first line
FIELD_BYTES_MAX: Final = 8192  # of a header
FIELDS_MAX: Final = 64
BODY_BYTES_MAX: Final = 16_384
REQUEST_BYTES: Final = LINE_BYTES_MAX + 65_536 + BODY_BYTES_MAX
WRITE_BYTES: Final = 262_144  # that the kernel keeps for one connection
PEER_SECONDS: Final = 60.0
COMMANDS_MAX: Final = 4
END_SECONDS: Final = 5.0  # from `close` to the end of the thread

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Steer: TypeAlias = Callable[[str, dict[str, Any]], object]
"""Carries out a command, and returns its report as JSON values. Raises MegaflowError; blocks; any thread calls it."""

log = logging.getLogger("megaflow.web")
library_log = logging.getLogger("megaflow.web.http")


def is_failure(record: logging.LogRecord) -> bool:
    """Return whether the library logs a failure: it also logs each request that is not HTTP, with a traceback."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


library_log.addFilter(is_failure)


@dataclass(frozen=True, slots=True)
class Limits:
    """What other sides may use (rule 3)."""

    connections: int = 96
    idle_seconds: float = 20.0  # without a request under way
    slow_seconds: float = 20.0  # for a viewer to read, or a body to come


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Door:
    """An open port."""

    listener: socket.socket
    access: Access
    has_page: bool  # False: only metrics and probes


class Guard(asyncio.Protocol):
    """A connection within its limits (rule 3), around the protocol of the library."""

    def __init__(self, inner: asyncio.Protocol, guards: "dict[Guard, None]", limits: Limits) -> None:
        """`guards` are all connections, in the order in which they came."""
        self._inner, self._guards, self._limits = inner, guards, limits
        self._bytes = 0  # received since a request ended
        self._is_busy = False  # a request is under way
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit a connection, perhaps in place of an idle one."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._guards) >= self._limits.connections:
            next((each for each in self._guards if not each._is_busy), self).abort()
        self._guards[self] = None
        connection = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(PEER_SECONDS * 1000))
        self._inner.connection_made(transport)
        self.set_busy(False)

    def set_busy(self, is_busy: bool) -> None:
        """Note that a request is under way, or no longer."""
        self._is_busy = is_busy
        if not is_busy:
            self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
        loop, seconds = asyncio.get_running_loop(), self._limits.idle_seconds
        self._timer = None if is_busy or self not in self._guards else loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        """End the connection at once, also if the other side does not read."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass data on, within the limit."""
        self._bytes += len(data)
        if self._bytes > REQUEST_BYTES:
            self.abort()
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the other side's data on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Have the library wait for a slow reader."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Have the library go on."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._guards.pop(self, None)
        self.set_busy(True)  # no timer
        self._inner.connection_lost(exc)


class PageServer:
    """The thread. The methods are for the thread that starts and ends the job."""

    def __init__(
        self,
        doors: Sequence[Door],
        hub: Hub,
        waits: Callable[[], str],
        steer: Steer | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """`waits` returns at once why the job is not ready, "" if it is; any thread may call it."""
        self._doors, self._hub, self._waits, self._steer, self._limits = doors, hub, waits, steer, limits
        self._guards: dict[Guard, None] = {}
        self._files = read_files(STATIC)
        self._commands = 0  # under way
        self._last = "", True  # what `close` got
        self._begun = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="megaflow-page", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        self._begun.wait()
        if self._failure is not None:
            raise self._failure

    def close(self, why: str, has_ended: bool = True) -> None:
        """Send the last state to the viewers and end. `why` tells them how the job has ended, or the page alone."""
        self._last = why, has_ended
        with contextlib.suppress(RuntimeError):  # the loop has ended by an error
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join(END_SECONDS)

    # The thread -----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:
            self._failure = error
            if self._begun.is_set():
                log.exception("The page's server has failed; the job goes on.")
        self._begun.set()

    async def _run(self) -> None:
        """Serve until `close`."""
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._hub.open()
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(self._open(door)) for door in self._doors]
            self._begun.set()
            await self._closing.wait()
            for server in servers:
                server.close()
            await self._hub.close(*self._last)
            for guard in list(self._guards):
                guard.abort()

    @contextlib.asynccontextmanager
    async def _open(self, door: Door) -> AsyncIterator[asyncio.AbstractServer]:
        """Serve at a door."""
        app = self._app(door)
        runner = web.AppRunner(
            app, handle_signals=False, access_log=None, logger=library_log, handler_cancellation=True,
            shutdown_timeout=0.0, max_line_size=LINE_BYTES_MAX, max_field_size=FIELD_BYTES_MAX, max_headers=FIELDS_MAX,
        )  # fmt: skip
        await runner.setup()
        try:
            library = runner.server
            assert library is not None, "it is set up"
            door.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WRITE_BYTES)

            def guarded() -> Guard:
                return Guard(library(), self._guards, self._limits)

            yield await self._loop.create_server(guarded, sock=door.listener)
        finally:
            await runner.cleanup()

    def _app(self, door: Door) -> web.Application:
        """Return the paths of a door, and their checks."""
        access = door.access

        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            guard = None if request.transport is None else request.transport.get_protocol()
            if not isinstance(guard, Guard):
                raise ConnectionResetError("the visitor has left")
            guard.set_busy(True)
            try:
                return await self._answer(access, request, handler)
            finally:
                guard.set_busy(False)

        async def harden(request: web.Request, response: web.StreamResponse) -> None:
            response.headers.update(HEADERS)

        async def control(request: web.Request) -> web.StreamResponse:
            return await self._control(access, request)

        app = web.Application(middlewares=[check], client_max_size=BODY_BYTES_MAX)
        app.on_response_prepare.append(harden)
        routes = [
            web.get("/livez", self._livez), web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics, allow_head=False),
        ]  # fmt: skip
        if door.has_page:
            routes += [
                web.get("/", self._file), web.get("/static/{name:.+}", self._file),
                web.get("/events", self._events, allow_head=False),
                web.get("/control", control, allow_head=False), web.post("/control", control),
            ]  # fmt: skip
        app.add_routes(routes)
        return app

    async def _answer(self, access: Access, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the answer to a request: the refusal, the exchange of the token, or what the handler returns."""
        if not request.raw_path.startswith("/"):  # for a proxy, and perhaps for another host
            return refusal(Refused(HTTPStatus.BAD_REQUEST, "The request is for a proxy, which this is not."))
        visit = visit_of(request, access.cookie_name)
        token = request.query.get(LINK_TOKEN)
        if visit.path == "/" and token is not None:
            return refusal(why) if (why := access.judge_link(visit, token)) else exchange(access)
        judge = access.judge_steering if request.method == hdrs.METH_POST else access.judge_reading
        if why := judge(visit):
            return refusal(why)
        try:
            return await handler(request)
        except web.HTTPException as error:
            headers = {hdrs.ALLOW: error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else None
            return web.Response(status=error.status, text=f"{error.reason}\n", headers=headers)

    async def _livez(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.StreamResponse:
        why = self._hub.why or self._waits()
        return web.Response(text=f"{why or 'ok'}\n", status=503 if why else 200)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        body, content_type = await self._hub.scrape(request.headers.get(hdrs.ACCEPT, ""))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        if (found := self._files.get(request.match_info.get("name", INDEX))) is None:
            raise web.HTTPNotFound
        body, content_type = found
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send a viewer what the hub has for it, until one of them ends it or the viewer does not read."""
        if self._hub.is_full:
            return web.Response(status=503, text="Too many viewers watch this job. Close other pages of it.\n")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        viewer = self._hub.join(request.headers.get("Last-Event-ID", ""))
        try:
            await response.write(b"retry: %d\n\n" % RETRY_MS)
            while not viewer.is_over:
                message = await viewer.next()
                async with asyncio.timeout(self._limits.slow_seconds):
                    await response.write(message)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionResetError:
            pass  # the viewer has left
        finally:
            self._hub.leave(viewer)
        return response

    async def _control(self, access: Access, request: web.Request) -> web.StreamResponse:
        """Carry out a command, or tell whether this visitor may give one."""
        if request.method != hdrs.METH_POST:
            may = self._steer is not None and access.may_steer
            return web.json_response({"steers": may and access.is_token(request.cookies.get(access.cookie_name, ""))})
        try:
            async with asyncio.timeout(self._limits.slow_seconds):
                command, arguments = parse_command(request.content_type, await request.read())
        except UsageError as error:
            return web.json_response({"error": str(error)}, status=400)
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        if self._commands >= COMMANDS_MAX or self._steer is None:
            return web.json_response({"error": f"{self._commands} commands are under way."}, status=503)
        log.info("command from the page: %s %r", command, arguments)
        self._commands += 1
        try:
            return web.json_response({"result": await on_thread(self._steer, command, arguments)})
        except MegaflowError as error:
            return web.json_response({"error": str(error)}, status=400 if isinstance(error, UsageError) else 409)
        finally:
            self._commands -= 1


def read_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Return the files of a folder, by path within it, with their content types."""
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            kind = TYPES.get(path.suffix, "application/octet-stream")
            files[path.relative_to(folder).as_posix()] = path.read_bytes(), kind
    return files


def visit_of(request: web.Request, cookie_name: str) -> Visit:
    """Return what a request tells about its sender. Its path is that of the route that answers it."""
    resource = request.match_info.route.resource
    return Visit(
        "" if resource is None else resource.canonical,
        request.headers.getall(hdrs.HOST, ()),
        request.headers.getall(hdrs.ORIGIN, ()),
        request.headers.get("Sec-Fetch-Site", ""),
        request.headers.get("Sec-Fetch-Mode", ""),
        request.cookies.get(cookie_name, ""),
        request.headers.getall(hdrs.AUTHORIZATION, ()),
        STEERS in request.headers,
    )


def refusal(why: Refused) -> web.Response:
    """Return the answer to a request that may not do what it asks for."""
    headers = {hdrs.WWW_AUTHENTICATE: "Bearer"} if why.status == HTTPStatus.UNAUTHORIZED else None
    return web.Response(status=why.status, text=f"{why.text}\n", headers=headers)


def exchange(access: Access) -> web.Response:
    """Return the answer to a valid link: the cookie, and a way to the page without the token in its address.

    It is not a redirection. After a link from another site, a browser would not send the new cookie along with one.
    The way is relative, because a proxy may serve the page below a path of its own.
    """
    page = '<!doctype html><meta http-equiv="refresh" content="0; url=./"><title>megaflow</title><a href="./">Open</a>'
    response = web.Response(text=page, content_type="text/html")
    response.set_cookie(access.cookie_name, access.token, httponly=True, samesite="Strict", path="/")
    return response


def parse_command(content_type: str, body: bytes) -> tuple[str, dict[str, Any]]:
    """Return name and arguments of a command. Raises UsageError.

    >>> parse_command("application/json", b'{"command": "add", "arguments": {"count": 1}}')
    ('add', {'count': 1})
    """
    try:
        value = json.loads(body) if content_type == "application/json" else None
    except (ValueError, RecursionError):
        value = None
    match value:
        case {"command": str(command), **rest} if rest.keys() <= {"arguments"}:
            arguments = rest.get("arguments", {})
            if isinstance(arguments, dict):
                return command, arguments
    raise UsageError('A command is application/json of the form {"command": NAME, "arguments": {…}}.')


async def on_thread(function: Callable[..., object], *arguments: object) -> object:
    """Return what a function returns that a thread of its own calls. The end of the process does not wait for it."""
    done = Future[object]()
    done.set_running_or_notify_cancel()  # nothing cancels the call: its visitor may leave, or the server end, before it
    threading.Thread(target=settle, args=(done, function, arguments), name="megaflow-command", daemon=True).start()
    try:
        return await asyncio.wrap_future(done)
    finally:
        del done  # as in `settle`


def settle(done: Future[object], function: Callable[..., object], arguments: tuple[object, ...]) -> None:
    """Give `done` what a function returns or raises.

    An error's traceback holds its frames, and these may hold the status of a large job. So no frame may keep the
    error. Otherwise only the garbage collector would free them, which runs rarely in the launcher.
    """
    try:
        done.set_result(function(*arguments))
    except Exception as error:
        done.set_exception(error)
    finally:
        del done
