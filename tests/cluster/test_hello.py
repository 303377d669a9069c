"""The first program of the engine with real processes: what it prints, and every way to fail."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, Reading, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

HELLO = ROOT / "apps" / "hello.py"
STOP_SECONDS = 5.0  # promised: after this, no process of a failed cluster runs any more

PREAMBLE = """
import sys, time
from megaflow.timely import Exchange, InputHandle, Pipeline, ProbeHandle, execute_from_args

def ready(worker):
    sys.stdout.write(f"ready {worker.index}\\n")  # one write: lines of several threads must not mix
    sys.stdout.flush()

def waiting(worker):
    while True:
        worker.step_or_park(None)
"""


class Cluster:
    """Processes of one program, on free ports that a host file tells them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Reading] = []
        self.addresses: list[str] = []
        self.environment = {**os.environ, "MEGAFLOW_SECRET": "of the tests", "PYTHONPATH": str(ROOT)}

    def start(self, program: Path, *words: list[str]) -> None:
        """One process for each list of words; -n, -p and -h are added."""
        self.addresses = free_addresses(len(words))
        hosts = self.folder / "hosts"
        hosts.write_text("\n".join(self.addresses))
        for index, more in enumerate(words):
            self.run(program, f"-n{len(words)}", f"-p{index}", "-h", str(hosts), *more)

    def run(self, program: Path, *words: str) -> Reading:
        process = Reading([sys.executable, str(program), *words], cwd=self.folder, env=self.environment)
        self.processes.append(process)
        return process

    def script(self, text: str) -> Path:
        """A program of the test's own."""
        path = self.folder / "program.py"
        path.write_text(PREAMBLE + text)
        return path

    def await_line(self, process: int, wanted: str) -> None:
        """Wait until a process has printed this line."""
        self.processes[process].await_line(wanted)

    def end(self) -> list[tuple[int, list[str], str]]:
        """Wait for all; exit code, lines of output and standard error of each."""
        ended = [process.end() for process in self.processes]
        return [(each.code, each.output.splitlines(), each.errors) for each in ended]


def free_addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in made.processes:
        process.finish()


def seen(worker: int, numbers: range) -> list[str]:
    return [f"worker {worker}: seen {number}" for number in numbers]


# What it prints -----------------------------------------------------------------------------


def test_one_worker_sees_ten_numbers_in_order(cluster: Cluster) -> None:
    cluster.run(HELLO)
    assert cluster.end() == [(0, seen(0, range(10)), "")]


def test_two_workers_in_one_process_take_turns(cluster: Cluster) -> None:  # engine case 2
    cluster.run(HELLO, "-w2")
    assert cluster.end() == [(0, [f"worker {number % 2}: seen {number}" for number in range(10)], "")]


def test_of_two_processes_one_prints_the_even_numbers_one_the_odd(cluster: Cluster) -> None:  # engine case 2
    cluster.start(HELLO, ["20", "1"], ["20", "1"])
    assert cluster.end() == [(0, seen(0, range(0, 20, 2)), ""), (0, seen(1, range(1, 20, 2)), "")]


def test_two_processes_of_two_workers_are_four_workers(cluster: Cluster) -> None:
    cluster.start(HELLO, ["-w2"], ["-w2"])
    [(first, even, _), (second, odd, _)] = cluster.end()
    assert (first, second) == (0, 0)
    assert even == [f"worker {number % 4}: seen {number}" for number in range(10) if number % 4 < 2]
    assert odd == [f"worker {number % 4}: seen {number}" for number in range(10) if number % 4 >= 2]


# How it fails to start ----------------------------------------------------------------------


def last_line(errors: str) -> str:
    return errors.rstrip("\n").splitlines()[-1]


def test_unequal_numbers_of_workers_are_a_clear_error_on_both_sides(cluster: Cluster) -> None:  # engine case 49
    cluster.start(HELLO, ["-w1"], ["-w2"])
    for code, output, errors in cluster.end():
        assert code == 1 and output == []
        assert "ConfigMismatch: " in last_line(errors) and "worker" in last_line(errors), errors


def test_different_graphs_name_the_first_operator_that_differs(cluster: Cluster) -> None:  # engine case 49
    program = cluster.script("""
def main(worker):
    with worker.dataflow("words") as scope:
        stream = scope.to_stream([1]).map(abs)
        stream = stream.filter(bool) if worker.index else stream.inspect(abs)
        stream.exchange(abs)

execute_from_args(main)
""")
    cluster.start(program, [], [])
    ended = cluster.end()
    assert all(code == 1 for code, _, _ in ended)
    for _, _, errors in ended:
        assert "GraphMismatch: dataflow 0 ('words') differs between workers: operator 2 is " in errors, errors
        assert "Filter" in errors and "Inspect" in errors


def test_a_dataflow_that_only_one_process_builds_is_an_error_not_a_hang(cluster: Cluster) -> None:
    program = cluster.script("""
def main(worker):
    with worker.dataflow("both") as scope:
        scope.to_stream([1]).exchange(abs)
    if worker.index == 0:
        with worker.dataflow("more") as scope:
            scope.to_stream([1]).exchange(abs)

execute_from_args(main)
""")
    cluster.start(program, [], [])
    for code, _, errors in cluster.end():
        assert code == 1
        assert "GraphMismatch: dataflow 1 ('more') was built on worker 0 but not on worker 1" in errors, errors


def test_a_peer_that_never_comes_is_reported_with_its_address(cluster: Cluster) -> None:
    addresses = free_addresses(2)
    hosts = cluster.folder / "hosts"
    hosts.write_text("\n".join(addresses))
    begin = time.monotonic()
    cluster.run(HELLO, "-n2", "-p0", "-h", str(hosts), "--connect-timeout", "0.5")
    [(code, output, errors)] = cluster.end()
    assert time.monotonic() - begin < 0.5 + STOP_SECONDS
    assert code == 1 and output == []
    assert "ConnectTimeout: " in last_line(errors) and addresses[1] in last_line(errors), errors


def test_reports_of_connections_come_when_asked_for(cluster: Cluster) -> None:
    cluster.start(HELLO, ["-r"], [])
    [(_, _, reported), (_, _, silent)] = cluster.end()
    assert "connected to" in reported and cluster.addresses[1] in reported
    assert silent == ""


def test_an_unknown_option_is_an_error(cluster: Cluster) -> None:
    cluster.run(HELLO, "--fast")
    [(code, output, errors)] = cluster.end()
    assert code != 0 and output == [] and "--fast" in last_line(errors)


# How it fails while it runs -----------------------------------------------------------------

RAISING = """
def check(x):
    if x == 3:
        raise ValueError("no such number")
    return x

def main(worker):
    numbers = InputHandle()
    with worker.dataflow() as scope:
        scope.input_from(numbers).exchange(lambda x: 1).map(check)
    ready(worker)
    if worker.index == 0:
        numbers.advance_to(7)
        numbers.send_batch([1, 2, 3])
        numbers.advance_to(8)
    waiting(worker)

execute_from_args(main)
"""


def test_an_exception_in_an_operator_stops_all_and_is_told_where_it_happened(cluster: Cluster) -> None:  # case 47
    cluster.start(cluster.script(RAISING), [], [])
    for index in (0, 1):
        cluster.await_line(index, f"ready {index}")
    begin = time.monotonic()
    [(first, _, other), (second, _, guilty)] = cluster.end()
    assert time.monotonic() - begin < STOP_SECONDS
    assert first == second == 1
    error, note = guilty.rstrip("\n").splitlines()[-2:]
    assert error == "ValueError: no such number"
    assert note.startswith("in operator 'Map' (") and note.endswith("worker 1, time 7, record 3")
    assert guilty.count("Traceback") == 1, "it stands alone"
    assert 'raise ValueError("no such number")' in guilty
    assert f"PeerFailed: worker 1 at {cluster.addresses[1]} failed:" in other
    assert other.count("Traceback") == 2, "its own, and the report of the other"
    assert "ValueError: no such number" in other and "time 7, record 3" in other


def test_an_exception_in_one_of_several_threads_stops_all_processes(cluster: Cluster) -> None:  # engine case 47
    program = cluster.script(RAISING.replace("lambda x: 1)", "lambda x: 3)"))
    begin = time.monotonic()
    cluster.start(program, ["-w2"], ["-w2"])
    [(first, _, other), (second, _, guilty)] = cluster.end()
    assert time.monotonic() - begin < 2 * STOP_SECONDS
    assert first == second == 1
    assert last_line(guilty).endswith("worker 3, time 7, record 3") and guilty.count("Traceback") == 1
    assert "PeerFailed: worker 3 at" in other


WAITING = """
def main(worker):
    numbers = InputHandle()
    with worker.dataflow() as scope:
        probe = scope.input_from(numbers).exchange(lambda x: x).probe()
    ready(worker)
    if worker.args == ["park"]:
        waiting(worker)
    worker.step_while(lambda: not probe.done())

execute_from_args(main)
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_others_with_its_name_and_address(cluster: Cluster, victim: int) -> None:  # case 48
    cluster.start(cluster.script(WAITING), ["park"], ["park"])
    for index in (0, 1):
        cluster.await_line(index, f"ready {index}")
    cluster.processes[victim].kill()
    begin = time.monotonic()
    ended = cluster.end()
    assert time.monotonic() - begin < STOP_SECONDS
    code, _, errors = ended[1 - victim]
    assert ended[victim][0] == -signal.SIGKILL and code == 1
    assert f"PeerLost: lost process {victim}" in last_line(errors) and cluster.addresses[victim] in errors, errors


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_on_one_process_stops_both(cluster: Cluster, workers: int) -> None:
    cluster.start(cluster.script(WAITING), ["park", f"-w{workers}"], ["park", f"-w{workers}"])
    for index in (0, 1):
        cluster.await_line(index, f"ready {index * workers}")
    cluster.processes[0].send_signal(signal.SIGINT)
    begin = time.monotonic()
    [(first, _, errors), (second, _, other)] = cluster.end()
    assert time.monotonic() - begin < STOP_SECONDS
    assert first in (-signal.SIGINT, 130) and "KeyboardInterrupt" in errors
    assert second == 1 and "PeerFailed: worker 0 at" in other and "KeyboardInterrupt" in other


# How little it does when idle ---------------------------------------------------------------


def cpu_seconds(process: Reading) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rest(processes: list[Reading]) -> None:
    """Wait until they use no time any more: what they had to do at first is done."""
    spent, used = -1.0, 0.0
    while used != spent:
        time.sleep(0.1)  # between two looks; a busy process would spend ten ticks of the clock
        spent, used = used, sum(map(cpu_seconds, processes))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["park", "while"])
def test_an_idle_cluster_of_two_processes_uses_under_2_percent_of_a_core(cluster: Cluster, how: str) -> None:
    cluster.start(cluster.script(WAITING), [how], [how])
    for index in (0, 1):
        cluster.await_line(index, f"ready {index}")
    rest(cluster.processes)
    before, begin = [cpu_seconds(process) for process in cluster.processes], time.monotonic()
    time.sleep(5.0)  # what is measured is what happens meanwhile
    used = sum(cpu_seconds(process) for process in cluster.processes) - sum(before)
    assert used / (time.monotonic() - begin) < 0.02
    assert all(process.poll() is None for process in cluster.processes)
