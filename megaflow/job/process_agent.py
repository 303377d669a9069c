"""Beside a worker process that runs elsewhere: starts it, and stands for it in the eyes of the launcher.

It runs in a Python process that belongs to another system (a task of Spark's), which is forked, used again, bounded and
killed as that likes. So the worker is a process of its own, and this only relays.

1. Whatever ends the agent ends the worker: the kernel kills it when the thread that started it ends, and the pipe that
   is its lifeline is closed. Whatever ends the connection to the launcher ends both, and the launcher sees the end of
   the worker by `Over`, or by the end of the connection.
2. An attempt begins a process only when the launcher says so, which it says once for each number. What is known to fail
   again (`Unfit`) is said, not raised: what is raised is tried again by Spark.
3. Nothing here waits without bound for the launcher but where it has said that this attempt is to wait: the kernel
   notices within 30 s that a host is gone. What the worker prints waits in its pipe while the launcher takes nothing.
4. The worker's port is bound before the launcher is told of it, so who connects there before the worker runs waits.
   What others try first (`Probe`) is another port, at which nobody answers: the kernel lets them in, which will do. Of
   one that joins that is asked while a worker runs; for some seconds, if nobody can connect, nothing is relayed.
5. The address under which others reach the worker is found: see `megaflow.job.reachable`.
"""

import contextlib
import os
import pickle
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from megaflow.errors import MegaflowError, PeerLost
from megaflow.job.agent_messages import (
    AGENT_ROLE,
    TO_AGENT,
    AgentHello,
    AgentTask,
    Begin,
    Born,
    Dismiss,
    Kill,
    Over,
    Printed,
    Probe,
    Probed,
    Signed,
    Unfit,
    check_word,
)
from megaflow.job.exit_report import ReportPipe
from megaflow.job.reachable import listen_toward, probe
from megaflow.job.sign_of_life import READ_BYTES as SIGN_BYTES
from megaflow.job.sign_of_life import SignFile
from megaflow.job.spec import AppFile, ChildSpec, Founder, JoiningProcess
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.tcp import address_text

CONNECT_SECONDS = 10.0  # to each of the launcher's addresses
PROBE_SECONDS = 3.0
SIGN_SECONDS = 0.5  # as often as the worker signs
LAST_SECONDS = 5.0  # for the launcher to take the last words
POLL_SECONDS = 0.01
PRINTED_BYTES = 64 * 1024
SIOCGIFADDR = 0x8915  # of <linux/sockios.h>: an interface's address
BOOT = (
    "import sys, typing; lib, deps = sys.argv[1:]; del sys.argv[1:]; sys.path.insert(0, lib); sys.path.append(deps); "
    "import megaflow; del sys.path[0]; from megaflow.job.worker.child import main; sys.exit(main())"
)
NOT_INHERITED = ("SPARK_", "PYTHON_WORKER_", "_PYSPARK_", "PYTHONHASHSEED")
DONE = "done"
SHARED = "but the launcher has it: name a path under which all machines see the same files"


@dataclass(frozen=True, slots=True)
class TaskSeat:
    """What an agent finds where it runs."""

    attempt: int
    executor: str
    host: str
    log_url: str
    shipped: str  # the folder with what the launcher has sent: lib, deps, app
    command: tuple[str, ...] = ()  # what is run as the worker; (): a worker


def run_agent(task: AgentTask, seat: TaskSeat) -> str:
    """Be the agent of a process, to the end of that; return what the driver is to know, DONE if nothing.

    Blocks. Raises nothing that another attempt would raise again.
    """
    try:
        client, own = greet_launcher(task, seat)
    except (MegaflowError, OSError) as error:
        return f"executor {seat.executor}{seat.host and f' on {seat.host}'} cannot reach the launcher: {error}"
    with client, own[0], own[1], contextlib.suppress(PeerLost, TimeoutError):
        if (reason := missing(task.witnesses)) is not None:
            client.send(Unfit(reason))
            client.receive(LAST_SECONDS)
            return DONE
        ProcessAgent(task, seat, client, *own).run()
    return DONE


def greet_launcher(task: AgentTask, seat: TaskSeat) -> tuple[Client, list[socket.socket]]:
    """Return a connection to the launcher, at the first address where it is; sockets for the process and for probes.

    Raises PeerLost with all troubles.
    """
    troubles: list[str] = []
    for place in task.launchers:
        try:
            hosts, listeners = listen_toward(place, seat.host)
        except OSError as error:
            troubles.append(f"{address_text(place)}: {error.strerror or error}")
            continue
        port, probe_port = (listener.getsockname()[1] for listener in listeners)
        hello = AgentHello(
            task.number, seat.attempt, seat.executor, seat.host, seat.log_url, hosts, port, probe_port, os.getpid()
        )
        record = asdict(hello) | {"hosts": list(hosts)}
        try:
            return Client.connect(*place, task.secret, AGENT_ROLE, record, CONNECT_SECONDS), listeners
        except (MegaflowError, OSError) as error:
            for listener in listeners:
                listener.close()
            troubles.append(f"{address_text(place)}: {error}")
    raise PeerLost("; ".join(troubles))


def missing(witnesses: Sequence[tuple[str, bytes | int]]) -> str | None:
    """Return what is wrong with files that the launcher sees: not there, or others; None if they are the same."""
    for path, wanted in witnesses:
        try:
            is_same = os.path.getsize(path) >= wanted if isinstance(wanted, int) else Path(path).read_bytes() == wanted
        except OSError as error:
            return f"{path} cannot be read on an executor ({error.strerror}), {SHARED}"
        if not is_same:
            return f"{path} is a different file on an executor, {SHARED}"
    return None


class ProcessAgent:
    """The agent, once it is connected. One thread."""

    def __init__(
        self, task: AgentTask, seat: TaskSeat, client: Client, listener: socket.socket, probed: socket.socket
    ) -> None:
        self.listener = listener
        self._probed = probed
        self._task = task
        self._seat = seat
        self._client = client

    def run(self) -> None:
        """Wait for the launcher's word, and do what it says. Raises PeerLost when the launcher is gone."""
        while True:
            match check_word(self._client.receive(), TO_AGENT):
                case Probe(targets):
                    self._client.send(Probed(tuple(probe([place for each in targets for place in each]))))
                case Begin() as word:
                    self._probed.close()
                    self._run_process(word)
                    return
                case Dismiss() | Kill():
                    return

    def _run_process(self, word: Begin) -> None:
        pipe, sign = ReportPipe(), SignFile(time.monotonic())
        try:
            spec = self._spec(word, pipe, sign)
            files = (self.listener.fileno(), pipe.writing, sign.file)
            process = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=files, env=self._environment(),
            )  # fmt: skip
            pipe.close_writing()
            self.listener.close()  # so that a dead worker refuses connections
            try:
                self._client.post(Born(process.pid))
                data = pickle.dumps(spec)
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(len(data).to_bytes(8, "big") + data)
                    process.stdin.flush()
                Relay(self._client, process, pipe, sign).run()
            finally:
                process.kill()
                process.wait()
        finally:
            pipe.close()
            sign.close()

    def _spec(self, word: Begin, pipe: ReportPipe, sign: SignFile) -> ChildSpec:
        part: Founder | JoiningProcess
        if word.process is not None:
            part = Founder(word.process, word.addresses)
        else:
            part = replace(self._task.draft.part, contact=word.addresses[0])  # type: ignore[arg-type]
        job, address = self._task.draft.job, (word.host, self.listener.getsockname()[1])
        if isinstance(job.app, AppFile):
            job = replace(job, app=replace(job.app, path=find_app_here(job.app, self._seat.shipped)))
        else:
            sent = os.path.join(self._seat.shipped, "app")
            job = replace(job, app=replace(job.app, path=(sent,), elsewhere=True))
        return replace(
            self._task.draft, job=job, name=word.name, part=part, address=address, secret=self._task.secret,
            listener_fd=self.listener.fileno(), report_fd=pipe.writing, sign_fd=sign.file,
        )  # fmt: skip

    def _command(self) -> tuple[str, ...]:
        folder = self._seat.shipped
        shipped = (os.path.join(folder, "lib"), os.path.join(folder, "deps"))
        return self._seat.command or (sys.executable, "-P", "-c", BOOT, *shipped)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        given = dict(self._task.environment)
        path = os.pathsep.join(filter(None, [kept.get("PYTHONPATH", ""), given.get("PYTHONPATH", "")]))
        return {**kept, **given, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def find_app_here(app: AppFile, shipped: str) -> str:
    """Return where an app's file is: where the launcher has it, if it is the same here, else as it was sent."""
    sent, root = Path(shipped, "app"), Path(app.root)
    as_sent = str(sent / Path(app.path).relative_to(root))
    for file in sent.rglob("*.py"):
        try:
            if (root / file.relative_to(sent)).read_bytes() != file.read_bytes():
                return as_sent
        except OSError:
            return as_sent
    return app.path


class Relay:
    """Between a worker process and the launcher, until that process has ended."""

    def __init__(
        self, client: Client, process: "subprocess.Popen[bytes]", pipe: ReportPipe, sign: SignFile
    ) -> None:
        assert process.stdout is not None
        self._client = client
        self._process = process
        self._pipe = pipe
        self._sign = sign
        self._told = b""  # the last sign that was sent
        self._out = process.stdout.fileno()
        self._is_silent = False  # the worker has closed what it prints to
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Relay; blocks. Raises PeerLost when the launcher is gone."""
        os.set_blocking(self._out, False)
        with contextlib.closing(self._selector):
            self._selector.register(self._client, selectors.EVENT_READ)
            self._selector.register(self._pipe, selectors.EVENT_READ)
            self._selector.register(self._out, selectors.EVENT_READ)
            due = time.monotonic()
            while True:
                self._watch()
                ready = {key.fd for key, _ in self._selector.select(SIGN_SECONDS)}
                if self._out in ready:
                    self._print()
                if self._client.fileno() in ready:
                    self._obey()
                if self._pipe.fileno() in ready and self._pipe.read():
                    break
                if time.monotonic() >= due:
                    self._client.check_heard()
                    self._tell_sign()
                    due = time.monotonic() + SIGN_SECONDS
            self._end()

    def _end(self) -> None:
        """Say how the worker, which has closed its pipe, has ended."""
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        while not self._is_silent and self._print():
            self._drain()
        self._client.post(Over(self._process.returncode, self._pipe.data))
        self._drain()
        with contextlib.suppress(PeerLost, TimeoutError):
            self._client.receive(LAST_SECONDS)  # the launcher closes when it has it all

    def _watch(self) -> None:
        """Take more of what the worker prints only when the launcher has taken what came before."""
        unsent = self._client.has_unsent
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if unsent else 0)
        if self._selector.get_key(self._client).events != events:
            self._selector.modify(self._client, events)
        wanted = not (unsent or self._is_silent)
        if wanted and self._out not in self._selector.get_map():
            self._selector.register(self._out, selectors.EVENT_READ)
        elif not wanted and self._out in self._selector.get_map():
            self._selector.unregister(self._out)

    def _print(self) -> bool:
        """Send what the worker has printed; return whether there was some."""
        try:
            data = os.read(self._out, PRINTED_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._client.post(Printed(data))
        else:
            self._is_silent = True
        return bool(data)

    def _obey(self) -> None:
        self._client.flush()
        for value in self._client.receive_available():
            match check_word(value, TO_AGENT):
                case Kill():
                    self._process.kill()
                case Probe(targets):
                    self._client.post(Probed(tuple(probe([place for each in targets for place in each]))))

    def _tell_sign(self) -> None:
        data = os.pread(self._sign.file, SIGN_BYTES, 0)
        if data != self._told and not self._client.has_unsent:
            self._told = data
            self._client.post(Signed(time.monotonic(), data))

    def _drain(self) -> None:
        """Wait until the launcher has taken all, but not for long."""
        deadline = time.monotonic() + LAST_SECONDS
        while self._client.has_unsent and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._client.flush()


def run_task(task: AgentTask, attempt: int, executor: str, host: str, log_url: str, shipped: str) -> str:
    """Be the agent of a process in a task of Spark's."""
    return run_agent(task, TaskSeat(attempt, executor, host, log_url, shipped))
