"""Process agent: starts a worker process on another machine, and represents it to the launcher.

The agent runs in a Python process that belongs to another system, a task of Spark, which forks, reuses, limits and
kills it as it likes. So the worker is a separate process, and the agent only relays.

1. If the agent ends for any reason, the worker ends: the kernel kills it when the thread that started it ends, and the
   pipe that is its lifeline closes. If the connection to the launcher ends, both end. The launcher sees the end of the
   worker by `Over`, or by the end of the connection.
2. An attempt starts a process only at the launcher's request. The launcher makes one request for each number. A failure
   that would occur again (`Unfit`) is sent as a message and not raised, because Spark retries after an exception.
3. The agent waits for the launcher without limit only if the launcher has asked this attempt to wait. The kernel
   notices within 30 s that a host is gone. The worker's output waits in its pipe while the launcher reads nothing.
4. The worker's port is bound before the launcher learns of it, so connections wait until the worker runs. To test
   whether they can reach this machine, other agents first connect to a second port (`Probe`). No process answers there:
   the kernel accepts the connections, which is enough. For a joiner, the agent of a running worker gets the `Probe`. If
   it cannot connect, it relays nothing for some seconds.
5. `megaflow.job.reachable` finds the address at which others reach the worker.
"""

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from megaflow.errors import MegaflowError, PeerLost
from megaflow.job import agent_messages as messages
from megaflow.job.dropped_tail import DroppedTail
from megaflow.job.exit_report import ReportPipe
from megaflow.job.heartbeat import READ_BYTES as SIGN_BYTES
from megaflow.job.heartbeat import HeartbeatFile
from megaflow.job.reachable import listen_toward, probe
from megaflow.job.spec import AppFile, ChildSpec, Founder, JoiningProcess, send_spec
from megaflow.python_executable import STARTED
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.address import address_text
from megaflow.timely.communication.client import Client

CONNECT_SECONDS = 10.0  # for each of the launcher's addresses
SIGN_SECONDS = 0.5  # the interval at which the worker signs
LAST_SECONDS = 5.0  # for the launcher to receive the last messages
POLL_SECONDS = 0.01
PRINTED_BYTES = 64 * 1024
BOOT = (
    "import gc, sys, typing; gc.disable(); lib, deps = sys.argv[1:]; del sys.argv[1:]; sys.path.insert(0, lib); "
    "sys.path.append(deps); import megaflow; del sys.path[0]; from megaflow.job.worker.process.child import main; "
    "gc.freeze(); gc.enable(); sys.exit(main())"
)
NOT_INHERITED = ("SPARK_", "PYTHON_WORKER_", "_PYSPARK_", "PYTHONHASHSEED")
DONE = "done"
SHARED = "but the launcher has it: name a path under which all machines see the same files"


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """Facts that an agent finds where it runs."""

    executor: str
    host: str
    log_url: str
    shipped: str  # the folder with the files that the launcher has sent: lib, deps, app
    command: tuple[str, ...] = ()  # the command to run as the worker; (): a worker


def run_agent(task: messages.AgentTask, slot: TaskSlot) -> str:
    """Be the agent of a process until it ends. Return a text for the driver, DONE if there is nothing to report.

    Blocks. Raises no error that another attempt would raise again.
    """
    try:
        client, own = greet_launcher(task, slot)
    except (MegaflowError, OSError) as error:
        return f"executor {slot.executor}{slot.host and f' on {slot.host}'} cannot reach the launcher: {error}"
    with client, own[0], own[1], contextlib.suppress(PeerLost, TimeoutError):
        if (reason := missing(task.witnesses)) is not None:
            client.send(messages.Unfit(reason))
            client.receive(LAST_SECONDS)
            return DONE
        ProcessAgent(task, slot, client, *own).run()
    return DONE


def greet_launcher(task: messages.AgentTask, slot: TaskSlot) -> tuple[Client, list[socket.socket]]:
    """Return a connection to the launcher, at the first address that works, and sockets for the process and for probes.

    Raises PeerLost with the reasons of all failures.
    """
    troubles: list[str] = []
    for place in task.launchers:
        try:
            hosts, listeners = listen_toward(place, slot.host)
        except OSError as error:
            troubles.append(f"{address_text(place)}: {error.strerror or error}")
            continue
        port, probe_port = (listener.getsockname()[1] for listener in listeners)
        hello = messages.AgentHello(task.number, slot.executor, slot.host, slot.log_url, hosts, port, probe_port)
        record = asdict(hello) | {"hosts": list(hosts)}
        try:
            return Client.connect(*place, task.secret, messages.AGENT_ROLE, record, CONNECT_SECONDS), listeners
        except (MegaflowError, OSError) as error:
            for listener in listeners:
                listener.close()
            troubles.append(f"{address_text(place)}: {error}")
    raise PeerLost("; ".join(troubles))


def missing(witnesses: Sequence[tuple[str, bytes | int]]) -> str | None:
    """Return why a file that the launcher sees is missing or different here. None if all files are the same."""
    for path, wanted in witnesses:
        try:
            is_same = os.path.getsize(path) >= wanted if isinstance(wanted, int) else Path(path).read_bytes() == wanted
        except OSError as error:
            return f"{path} cannot be read on an executor ({error.strerror}), {SHARED}"
        if not is_same:
            return f"{path} is a different file on an executor, {SHARED}"
    return None


@dataclass(eq=False, repr=False)  # repr must not show the secret
class ProcessAgent:
    """A connected agent. One thread."""

    task: messages.AgentTask
    slot: TaskSlot
    client: Client
    listener: socket.socket
    probed: socket.socket

    def run(self) -> None:
        """Wait for the launcher's messages and obey them. Raises PeerLost when the launcher is gone."""
        while True:
            match messages.check_word(self.client.receive(), messages.TO_AGENT):
                case messages.Probe(targets):
                    self.client.send(messages.Probed(tuple(probe([place for each in targets for place in each]))))
                case messages.Begin() as word:
                    self.probed.close()
                    self._run_process(word)
                    return
                case messages.Dismiss() | messages.Kill():
                    return

    def _run_process(self, word: messages.Begin) -> None:
        pipe, sign, dropped = ReportPipe(), HeartbeatFile(time.monotonic()), DroppedTail()
        try:
            spec = replace(self._spec(word, pipe, sign), dropped_fd=dropped.file)
            files = (self.listener.fileno(), pipe.writing, sign.file, dropped.file)
            process = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                pass_fds=files, env=self._environment(),
            )  # fmt: skip
            pipe.close_writing()
            self.listener.close()  # so that a dead worker refuses connections
            try:
                self.client.post(messages.Born(process.pid))
                send_spec(process.stdin, spec)
                Relay(self.client, process, pipe, sign, dropped).run()
            finally:
                process.kill()
                process.wait()
        finally:
            pipe.close()
            sign.close()
            dropped.close()

    def _spec(self, word: messages.Begin, pipe: ReportPipe, sign: HeartbeatFile) -> ChildSpec:
        part: Founder | JoiningProcess
        if word.process is not None:
            part = Founder(word.process, word.addresses)
        else:
            part = replace(self.task.draft.part, contact=word.addresses[0])  # type: ignore[arg-type]
        job, address = self.task.draft.job, (word.host, self.listener.getsockname()[1])
        if isinstance(job.app, AppFile):
            job = replace(job, app=replace(job.app, path=find_app_here(job.app, self.slot.shipped)))
        else:
            sent = os.path.join(self.slot.shipped, "app")
            job = replace(job, app=replace(job.app, path=(sent,), elsewhere=True))
        return replace(
            self.task.draft, job=job, name=word.name, part=part, address=address, secret=self.task.secret,
            listener_fd=self.listener.fileno(), report_fd=pipe.writing, sign_fd=sign.file,
        )  # fmt: skip

    def _command(self) -> tuple[str, ...]:
        folder = self.slot.shipped
        shipped = (os.path.join(folder, "lib"), os.path.join(folder, "deps"))
        return self.slot.command or (sys.executable, "-P", "-c", BOOT, *shipped)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
        given = dict(self.task.environment)
        path = os.pathsep.join(filter(None, [kept.get("PYTHONPATH", ""), given.get("PYTHONPATH", "")]))
        return {**kept, **given, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", STARTED: "1"}


def find_app_here(app: AppFile, shipped: str) -> str:
    """Return the path of an app's file: the launcher's path if the file is the same here, else that of the sent copy.
    """
    sent, root = Path(shipped, "app"), Path(app.root)
    as_sent = str(sent / Path(app.path).relative_to(root))
    for file in sent.rglob("*.py"):
        try:
            if (root / file.relative_to(sent)).read_bytes() != file.read_bytes():
                return as_sent
        except OSError:
            return as_sent
    return app.path


@dataclass(eq=False, repr=False)
class Relay:
    """Relay between a worker process and the launcher, until the process has ended."""

    _client: Client
    _process: "subprocess.Popen[bytes]"
    _pipe: ReportPipe
    _sign: HeartbeatFile
    _dropped: DroppedTail

    def __post_init__(self) -> None:
        assert self._process.stdout is not None
        self._told = b""  # the last sign sent
        self._out = self._process.stdout.fileno()
        self._is_silent = False  # the worker has closed its output
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Relay until the worker ends. Blocks. Raises PeerLost when the launcher is gone."""
        os.set_blocking(self._out, False)
        with contextlib.closing(self._selector):
            self._selector.register(self._client, selectors.EVENT_READ)
            self._selector.register(self._pipe, selectors.EVENT_READ)
            self._selector.register(self._out, selectors.EVENT_READ)
            self._obey()  # messages that came together with `Begin`
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
        """Report how the worker ended. It has already closed its pipe."""
        try:
            self._process.wait(LAST_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        while not self._is_silent and self._print():
            self._drain()
        if (data := self._dropped.read()[0]) and not self._client.has_unsent:
            self._client.post(messages.Printed(data))
        self._client.post(messages.Over(self._process.returncode, self._pipe.data))
        self._drain()
        with contextlib.suppress(PeerLost, TimeoutError):
            self._client.receive(LAST_SECONDS)  # the launcher closes the connection when it has everything

    def _watch(self) -> None:
        """Read the worker's output only when the launcher has received all earlier output."""
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
        """Send what the worker has printed. Return whether there was any."""
        try:
            data = os.read(self._out, PRINTED_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._client.post(messages.Printed(data))
        else:
            self._is_silent = True
        return bool(data)

    def _obey(self) -> None:
        self._client.flush()
        for value in self._client.receive_available():
            match messages.check_word(value, messages.TO_AGENT):
                case messages.Kill():
                    self._process.kill()
                case messages.Probe(targets):
                    self._client.post(messages.Probed(tuple(probe([place for each in targets for place in each]))))

    def _tell_sign(self) -> None:
        data = os.pread(self._sign.file, SIGN_BYTES, 0)
        if data != self._told and not self._client.has_unsent:
            self._told = data
            self._client.post(messages.Signed(time.monotonic(), data))

    def _drain(self) -> None:
        """Wait until the launcher has received everything, but not for long."""
        deadline = time.monotonic() + LAST_SECONDS
        while self._client.has_unsent and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            self._client.flush()


def run_task(task: messages.AgentTask, executor: str, host: str, log_url: str, shipped: str) -> str:
    """Be the agent of a process in a task of Spark."""
    return run_agent(task, TaskSlot(executor, host, log_url, shipped))
