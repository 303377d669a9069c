"""A standalone cluster of two machines for tests: a master, and two Workers that can be lost and restored.

The machines are network namespaces with addresses of their own, where the system permits these. Elsewhere they are two
loopback addresses, and the test's output says so.
"""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.cluster.processes import ROOT, Process, wait_until
from tests.ports import free_ports
from tests.spark.test_spark_crashes import command_of
from tests.spark.test_workers_on_executors import WAIT_SECONDS, has_worker

NET = f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}"
LOOPBACK = "TEST_MEGAFLOW_LOOPBACK"  # if set, no namespaces are used


@dataclass(frozen=True)
class Machine:
    """A machine on which a Worker of Spark runs."""

    address: str
    space: str = ""  # the network namespace; "": none
    link: str = ""  # from the namespace to the others

    def command(self, *words: str) -> list[str]:
        """Return a command that runs there."""
        return ["ip", "netns", "exec", self.space, *words] if self.space else [*words]

    def connect(self, is_connected: bool) -> None:
        """Connect or disconnect its network."""
        if self.space:
            ip("-n", self.space, "link", "set", self.link, "up" if is_connected else "down")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=180)


def namespaces(stack: ExitStack) -> list[Machine]:
    """Make a bridge, as the launcher's machine, and two namespaces on it. Raises the error that prevents this."""
    if os.environ.get(LOOPBACK):
        raise OSError(f"{LOOPBACK} is set")
    name = f"mf{os.getpid() % 100_000}"
    ip("link", "add", f"{name}b", "type", "bridge")
    stack.callback(ip, "link", "del", f"{name}b")
    ip("addr", "add", f"{NET}.1/24", "dev", f"{name}b")
    ip("link", "set", f"{name}b", "up")
    machines = [Machine(f"{NET}.1")]
    for number in (2, 3):
        space, near, far = (f"{name}{kind}{number}" for kind in "nva")
        ip("netns", "add", space)
        stack.callback(ip, "netns", "del", space)
        ip("link", "add", near, "type", "veth", "peer", "name", far)
        ip("link", "set", near, "master", f"{name}b", "up")
        ip("link", "set", far, "netns", space)
        ip("-n", space, "addr", "add", f"{NET}.{number}/24", "dev", far)
        ip("-n", space, "link", "set", far, "up")
        ip("-n", space, "link", "set", "lo", "up")
        machines.append(Machine(f"{NET}.{number}", space, far))
    return machines


class Standalone:
    """The cluster. Each Worker has two slots."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        made = stack.enter_context(ExitStack())
        try:
            machines = namespaces(made)
        except (OSError, subprocess.SubprocessError) as error:
            made.close()
            print(f"no network namespaces here ({error}): two loopback addresses instead")
            machines = [Machine("127.0.0.1"), Machine("127.0.0.2"), Machine("127.0.0.3")]
        self.folder = folder
        self.here, *self.machines = machines
        self.workers: dict[Machine, Process] = {}
        self._stack = stack
        port, page = free_ports(2)
        self.url = f"spark://{self.here.address}:{port}"
        self._page = f"http://{self.here.address}:{page}/json/"
        self._start(self.here, "master.Master", "--host", self.here.address, "--port", str(port),
                    "--webui-port", str(page))  # fmt: skip
        self.mend()

    def mend(self) -> None:
        """Restore what is gone, and wait until all slots are there and free."""
        wait_until(lambda: bool(self.state()), WAIT_SECONDS)
        self.restore()
        wait_until(lambda: self.state() == (len(self.machines), 0), WAIT_SECONDS)

    def restore(self) -> None:
        """Connect each machine, and start its Worker if it is gone."""
        for machine in self.machines:
            machine.connect(True)
            if machine not in self.workers or self.workers[machine].poll() is not None:
                work = self.folder / f"work{machine.address}"
                self.workers[machine] = self._start(
                    machine, "worker.Worker", "--host", machine.address, "--cores", "2", "--memory", "1g",
                    "--webui-port", "0", "--work-dir", str(work), self.url,
                )  # fmt: skip

    def state(self) -> tuple[int, int] | None:
        """Return the number of Workers that the master has and of slots taken; None if it does not answer."""
        with suppress(OSError, ValueError), urllib.request.urlopen(self._page, timeout=10) as page:
            record = json.load(page)
            return record["aliveworkers"], record["coresused"]
        return None

    def machine_of(self, pid: int) -> Machine:
        """Return the machine of an executor."""
        return next(machine for machine in self.machines if f"work{machine.address}/" in folder_of(pid))

    def executors(self) -> list[int]:
        """Return the executors in which a worker process runs. Each works in a folder below that of its Worker."""
        below = processes_below(self.folder)
        return [pid for pid in below if "CoarseGrainedExecutorBackend" in command_of(pid) and has_worker(pid)]

    def worker_processes(self) -> list[int]:
        """Return all worker processes of megaflow."""
        return [pid for pid in processes_below(self.folder) if "megaflow.job.worker" in command_of(pid)]

    def _start(self, machine: Machine, name: str, *words: str) -> Process:
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": machine.address, "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
        }  # fmt: skip
        command = machine.command(str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *words)
        process = Process(command, env=environment, cwd=self.folder)
        self._stack.callback(process.finish)
        return process


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    """A cluster, for the block."""
    with ExitStack() as stack:
        yield Standalone(folder, stack)


def processes_below(folder: Path) -> list[int]:
    """Return the processes that work in a folder below this one."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if f"{folder}/work" in folder_of(entry.name)]


def folder_of(pid: int | str) -> str:
    with suppress(OSError):  # the process has ended
        return os.readlink(f"/proc/{pid}/cwd")
    return ""
