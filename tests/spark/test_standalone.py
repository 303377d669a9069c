"""A job on a standalone cluster of two machines that Spark feeds: it grows, moves bins and loses an executor, exactly.

The machines are network namespaces with addresses of their own, where this machine lets us make some. Where it does
not they are two loopback addresses, and the test's output says so.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyspark
import pytest

from tests.cluster.processes import ROOT, WORDCOUNT, Process, Run, wait_until
from tests.ports import free_ports
from tests.spark.test_spark_crashes import Fed, command_of
from tests.spark.test_workers_on_executors import WAIT_SECONDS, has_worker

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # five Java processes begin on two cores
    pytest.mark.xdist_group("spark"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on PATH, and Spark needs one"),
]

NET = f"10.{200 + os.getpid() // 250 % 50}.{os.getpid() % 250}"


@dataclass(frozen=True)
class Machine:
    """Where a Worker of Spark's runs."""

    address: str
    prefix: tuple[str, ...] = ()  # of a command that is to run there


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


def namespaces(stack: ExitStack) -> list[Machine]:
    """Make a bridge, which is the launcher's machine, and two namespaces at it. Raises what keeps that from being."""
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
        machines.append(Machine(f"{NET}.{number}", ("ip", "netns", "exec", space)))
    return machines


def listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), 5):
        return True
    return False


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two Workers with two slots each."""
    with ExitStack() as stack:
        made = stack.enter_context(ExitStack())
        try:
            machines = namespaces(made)
        except (OSError, subprocess.SubprocessError) as error:
            made.close()
            print(f"no network namespaces here ({error}): two loopback addresses instead")
            machines = [Machine("127.0.0.1"), Machine("127.0.0.2"), Machine("127.0.0.3")]
        home = Path(pyspark.__file__).parent
        [port] = free_ports(1)
        url = f"spark://{machines[0].address}:{port}"

        def start(machine: Machine, *words: str) -> None:
            environment = {
                **os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": machine.address, "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
            }  # fmt: skip
            command = [*machine.prefix, str(home / "bin" / "spark-class"), *words]
            stack.callback(Process(command, env=environment, cwd=tmp_path).finish)

        start(machines[0], "org.apache.spark.deploy.master.Master", "--host", machines[0].address, "--port", str(port),
              "--webui-port", "0")  # fmt: skip
        wait_until(lambda: listens(machines[0].address, port), WAIT_SECONDS)
        for machine in machines[1:]:
            start(machine, "org.apache.spark.deploy.worker.Worker", "--host", machine.address, "--cores", "2",
                  "--memory", "1g", "--webui-port", "0", "--work-dir", str(tmp_path / f"work{machine.address}"), url,
                  )  # fmt: skip
        yield url


class FedOnExecutors(Fed):
    """A count of words that arrive, on Spark's executors."""

    master = ""

    def run(self) -> Run:
        lines = f"spark:text:{self.input}?maxFilesPerTrigger=3&trigger=0.05"
        return Run(
            self.folder, WORDCOUNT, "--lines", lines, "--output", f"jsonl:{self.out}", "--state", str(self.store),
            "--processes", "2", "--checkpoint-every", "0.3", "--on", f"spark:{self.master}",
            "--conf", "spark.executor.memory=900m", "--start-timeout", "400",
        )  # fmt: skip


def executors(work: Path) -> list[int]:
    """Those in which a worker runs; each works in a folder below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdigit() and str(work) in os.readlink(entry / "cwd"):
                found.append(int(entry.name))
    return [pid for pid in found if "CoarseGrainedExecutorBackend" in command_of(pid) and has_worker(pid)]


def test_a_job_of_two_machines_is_exact_though_it_grows_moves_bins_and_loses_an_executor(
    tmp_path: Path, master: str
) -> None:
    random = Random(1)
    fed = FedOnExecutors(tmp_path, random)
    fed.master = master
    run = fed.run()
    try:
        with fed.arriving():
            wait_until(lambda: fed.newest() > 0 or run.process.poll() is not None, WAIT_SECONDS)
            assert run.process.poll() is None, run.end()
            for words in (("add-workers", "1", "--balance"), ("move-bins", "--bins", "0-127", "--to", "1")):
                done = run.control(*words)
                assert done.returncode == 0, (done, run.said)
            fed.await_more(run)
            os.kill(random.choice(executors(tmp_path)), signal.SIGKILL)
            wait_until(lambda: any("restart 1 of 3" in line for line in run.said), WAIT_SECONDS)
            fed.await_more(run)
            status = run.status_when(lambda record: record["state"] == "running")
            assert len(status["workers"]) == 3, status
        fed.await_all(run)
        run.process.send_signal(signal.SIGINT)
        code, _, said = run.end()
        assert code == 128 + signal.SIGINT and "stopped at checkpoint" in said[-1], said
    finally:
        run.process.finish()
    fed.check()
