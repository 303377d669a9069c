"""The page of a running job: opens its ports, watches the job for it, and carries out its commands.

The launcher has one with `--web` or `--metrics`, and so has `megaflow control web`. To the job, both are clients like
any other: they find it by its file (see `megaflow.job.contact`), also after a restart.

1. The ports are open and the library is loaded before any process starts. So wrong options end the command at once.
2. The server ends after the job, when the job's file is gone. So the viewers get the last state.
3. Without a folder for the job's file, the page reaches the job by address. This needs MEGAFLOW_SECRET.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from megaflow import web
from megaflow.control.client.conversation import Conversation
from megaflow.control.reports import Explanation
from megaflow.control.wording import Notice
from megaflow.errors import MegaflowError, UsageError
from megaflow.job.contact import conversation
from megaflow.job.contact import stop as stop_job
from megaflow.job.job_file import Job
from megaflow.job.launcher.run.job_control import TIMEOUT_SECONDS, OpenControl
from megaflow.job.launcher.run.published_job import naming_options
from megaflow.job.reachable import interfaces
from megaflow.job.spec import JobSpec
from megaflow.job.watching import Wanted, Watcher, Where, explain
from megaflow.own_files import keep_socket
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text

TOKEN_VARIABLE: Final = "MEGAFLOW_WEB_TOKEN"
BACKLOG: Final = 64
REASON_CHARACTERS: Final = 4000
EVERYWHERE: Final = ("0.0.0.0", "::")
REMEDIES: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: " Choose another port, or 0 for any free one.",
    errno.EADDRNOTAVAIL: " Choose an address of this machine, or 0.0.0.0 for all of them.",
    errno.EACCES: " Choose a port from 1024 on.",
}
LIBRARIES: Final = ("aiohttp", "prometheus_client")


@dataclass(eq=False, repr=False)
class LivePage:
    """The page of one job; a context manager, which opens and closes its ports.

    The fields are what `--web`, `--metrics` and `--web-control` say. An address is PORT or HOST:PORT.
    """

    address: str | None = None
    metrics: str | None = None
    may_steer: bool = False

    def __post_init__(self) -> None:
        self._server: web.PageServer | None = None
        self._hub: web.Hub  # from `serve` on
        self.url: str | None = None  # to open in a browser; with the token, if the page needs it
        self.metrics_url: str | None = None

    def __enter__(self) -> Self:
        """Open the ports. Raises UsageError."""
        if self.may_steer and self.address is None:
            raise UsageError("--web-control is only for jobs with a page. Add --web.")
        needed = "--metrics" if self.address is None else "--web"
        try:
            self._parts = web.View, web.Metrics, web.PageServer
        except ModuleNotFoundError as error:
            if error.name not in LIBRARIES:
                raise
            raise UsageError(f"{needed} needs libraries that are not installed: pip install 'megaflow[web]'") from None
        token = web.checked_token(os.environ.get(TOKEN_VARIABLE))
        with contextlib.ExitStack() as stack:
            self._doors = []
            if self.address is not None:
                door, host = open_door(self.address, "--web", token, self.may_steer, has_page=True)
                stack.callback(door.listener.close)
                self._doors.append(door)
                self.url = door.access.link(host)
            if self.metrics is not None:
                door, host = open_door(self.metrics, "--metrics", token, may_steer=False, has_page=False)
                stack.callback(door.listener.close)
                self._doors.append(door)
                self.metrics_url = f"{door.access.url(host)}metrics"
            self._files = stack.pop_all()
        return self

    def begin(self, job: Job, spec: JobSpec, waits: Callable[[], str], report: Callable[[str], None]) -> None:
        """Show a job of this process; report the addresses. `waits`: see `serve`."""
        where: Where = (job.name, None, TIMEOUT_SECONDS)
        if job.folder is None:
            where = None, address_text((job.host, job.port)), TIMEOUT_SECONDS
        program = spec.app.name.partition(":")[0]
        self.serve(where, naming_options(job), {"job": job.name, "program": program}, waits, in_launcher=True)
        for text in self.addresses():
            report(text)

    def addresses(self) -> Iterator[Notice]:
        """Yield the sentences with the addresses. A token that the user has set does not appear in them."""
        hidden = os.environ.get(TOKEN_VARIABLE)
        if self.url is not None:
            shown = self.url if hidden is None else self.url.replace(hidden, f"${TOKEN_VARIABLE}")
            yield Notice(f"watch the job at {shown}")
        if self.metrics_url is not None:
            access = self._doors[-1].access
            needed = "" if access.is_local else f"; their token is {access.token if hidden is None else TOKEN_VARIABLE}"
            yield Notice(f"metrics of the job are at {self.metrics_url}{needed}")

    def serve(
        self, where: Where, target: str, names: Mapping[str, str], waits: Callable[[], str], always: bool = False,
        in_launcher: bool = False,
    ) -> None:  # fmt: skip
        """Serve the job that `where` names.

        `target` are the options that name it in a command, `names` are further texts for the page. `waits` returns at
        once why the job is not ready, "" if it is; any thread may call it. With `always`, the job is watched also
        without viewers. `in_launcher`: only `close` ends the page, with the reason for which the job has ended.
        """
        view, metrics, server = self._parts
        stop, has_page = threading.Event(), self.address is not None
        watcher = Watcher(where, Wanted(tables=has_page, loads=has_page, ledger=False), pause=stop.wait)
        explain = partial(explained, where) if has_page else lambda: None
        shown = view(version=web.VERSION, target=target, control=self.may_steer, **names)
        self._hub = web.Hub(watcher.watch, explain, stop, shown, metrics(time.monotonic), always, in_launcher)
        commands = partial(steer, partial(conversation, *where), partial(stop_job, *where))
        serving = server(self._doors, self._hub, waits, commands)
        serving.start()
        self._server = serving

    def await_end(self, seconds: float) -> str:
        """Wait so long for the watcher to find that the job has ended; return how it has.

        Returns "" if the job goes on, or is not watched.
        """
        return self._hub.why if self._hub.ended.wait(seconds) else ""

    def close(self, why: str, has_ended: bool) -> None:
        """Send the last state to the viewers, and end. `has_ended`: the job has, and not only the page."""
        if self._server is not None:
            self._server.close(why, has_ended)
            self._server = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close, as the job has ended."""
        try:
            self.close(end_text(error), True)
        finally:
            self._files.close()


def explained(where: Where) -> Explanation | None:
    """Return what holds the output back; None if the job does not answer, which the watcher notices also."""
    try:
        return explain(where, lambda silence: None, back_seconds=0.0)
    except MegaflowError:
        return None


def end_text(error: BaseException | None) -> str:
    """Return how a job has ended, for its viewers."""
    if error is None:
        return web.ENDED
    return f"The job has failed: {error}"[:REASON_CHARACTERS] if str(error) else "The job was interrupted."


def open_door(text: str, option: str, token: str, may_steer: bool, has_page: bool) -> tuple[web.Door, str]:
    """Return an open port, and the host by which others reach it. Raises UsageError if it cannot be opened."""
    host, port = web.parse_place(text, option)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = host == "::" and socket.has_dualstack_ipv6()  # the printed link has an IPv4 address
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        keep_socket(listener)
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (while")[0]  # the address is there already
        raise UsageError(f"{option} {text}: {why}.{REMEDIES.get(error.errno or 0, '')}") from error
    access = web.Access(host, listener.getsockname()[1], token, may_steer, socket.gethostname())
    reached = next(iter(interfaces()), socket.gethostname()) if host in EVERYWHERE else host
    return web.Door(listener, access, has_page), reached


# Commands -----------------------------------------------------------------------------

Kinds = dict[str, tuple[type, ...]]

COMMANDS: Final[Mapping[str, Kinds]] = {
    "move": {
        "bins": (str,), "to": (int,), "balance": (bool,), "by": (str,), "map": (str,), "strategy": (str,),
        "batch": (int,), "gap": (int, float),
    },
    "drain": {"worker": (int,), "strategy": (str,), "batch": (int,), "gap": (int, float)},
    "resume": {"gap": (int, float)},
    "add": {"count": (int,), "balance": (bool,)},
    "remove": {"worker": (int,)},
    "checkpoint": {"name": (str,)},
    "stop": {"drain": (bool,)},
}  # command of the page -> the arguments that it may have, with their types
NEEDED: Final = {"drain": "worker", "remove": "worker"}


def steer(
    talk: Callable[[], contextlib.AbstractContextManager[Conversation]], end: Callable[..., None], command: str,
    given: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Carry out a command of the page; return its report. `end` stops the job. Blocks until it has taken effect.

    Raises UsageError if there is no such command or its arguments are wrong, and otherwise as `JobControl`.
    """
    check_command(command, given)
    control = OpenControl(talk)
    if command == "stop":
        end(**given)
        return {}
    carry_out: dict[str, Callable[..., Any]] = {
        "move": control.move_bins, "drain": lambda worker, **more: control.move_bins(drain=worker, **more),
        "resume": control.resume, "add": control.add_workers, "remove": lambda worker: control.remove_workers(worker),
        "checkpoint": control.checkpoint,
    }  # fmt: skip
    return asdict(carry_out[command](**given))


def check_command(command: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError if there is no such command, or an argument is unknown, missing or of the wrong type.

    >>> check_command("add", {"count": True})
    Traceback (most recent call last):
    megaflow.errors.UsageError: add: 'count' cannot be True.
    """
    kinds = COMMANDS.get(command)
    if kinds is None:
        raise UsageError(f"There is no command {command[:80]!r}. Available: {', '.join(COMMANDS)}.")
    for name, value in given.items():
        if name not in kinds:
            raise UsageError(f"{command}: There is no argument {name[:80]!r}. Available: {', '.join(kinds)}.")
        if type(value) not in kinds[name]:
            raise UsageError(f"{command}: {name!r} cannot be {value!r:.80}.")
    if (needed := NEEDED.get(command)) is not None and needed not in given:
        raise UsageError(f"{command}: {needed!r} is missing.")
