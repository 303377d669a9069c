"""The engine's first program in real processes: its output, and every way to fail."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.cluster.processes import ROOT, STOP_SECONDS, Cluster, Process
from tests.results import check_equal

pytestmark = pytest.mark.cluster

HELLO = ROOT / "apps" / "hello.py"

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


def ends_of(cluster: Cluster) -> list[tuple[int, list[str], str]]:
    """Wait for all; return exit code, lines of output and standard error of each."""
    return [(each.code, each.output.splitlines(), each.errors) for each in cluster.end()]


def seen(worker: int, numbers: range) -> list[str]:
    return [f"worker {worker}: seen {number}" for number in numbers]


def check(cluster: Cluster, *outputs: list[str]) -> None:
    """Wait for all; check that each succeeded without a message, and its output."""
    ends = ends_of(cluster)
    assert [(code, errors) for code, _, errors in ends] == [(0, "")] * len(outputs)
    check_equal([output for _, output, _ in ends], [*outputs])


# What it prints -----------------------------------------------------------------------------


def test_one_worker_sees_ten_numbers_in_order(cluster: Cluster) -> None:
    cluster.run(HELLO)
    check(cluster, seen(0, range(10)))


def test_two_workers_in_one_process_take_turns(cluster: Cluster) -> None:  # engine case 2
    cluster.run(HELLO, "-w2")
    check(cluster, [f"worker {number % 2}: seen {number}" for number in range(10)])


def test_of_two_processes_one_prints_the_even_numbers_one_the_odd(cluster: Cluster) -> None:  # engine case 2
    cluster.start(HELLO, ["20", "1"], ["20", "1"])
    check(cluster, seen(0, range(0, 20, 2)), seen(1, range(1, 20, 2)))


def test_two_processes_of_two_workers_are_four_workers(cluster: Cluster) -> None:
    cluster.start(HELLO, ["-w2"], ["-w2"])
    [(first, even, _), (second, odd, _)] = ends_of(cluster)
    assert (first, second) == (0, 0)
    check_equal(even, [f"worker {number % 4}: seen {number}" for number in range(10) if number % 4 < 2])
    check_equal(odd, [f"worker {number % 4}: seen {number}" for number in range(10) if number % 4 >= 2])


# Failures at the start ----------------------------------------------------------------------


def last_line(errors: str) -> str:
    return errors.rstrip("\n").splitlines()[-1]


def test_unequal_numbers_of_workers_are_a_clear_error_on_both_sides(cluster: Cluster) -> None:  # engine case 49
    cluster.start(HELLO, ["-w1"], ["-w2"])
    for code, output, errors in ends_of(cluster):
        assert code == 1 and output == []
        assert errors.startswith("hello.py: ") and "worker" in last_line(errors), errors


def test_different_graphs_name_the_first_operator_that_differs(cluster: Cluster) -> None:  # engine case 49
    program = cluster.script(PREAMBLE + """
def main(worker):
    with worker.dataflow("words") as scope:
        stream = scope.to_stream([1]).map(abs)
        stream = stream.filter(bool) if worker.index else stream.inspect(abs)
        stream.exchange(abs)

execute_from_args(main)
""")
    cluster.start(program, [], [])
    ends = ends_of(cluster)
    assert all(code == 1 for code, _, _ in ends)
    for _, _, errors in ends:
        assert "GraphMismatch: dataflow 0 ('words') differs between workers: operator 2 is " in errors, errors
        assert "Filter" in errors and "Inspect" in errors


def test_a_dataflow_that_only_one_process_builds_is_an_error_not_a_hang(cluster: Cluster) -> None:
    program = cluster.script(PREAMBLE + """
def main(worker):
    with worker.dataflow("both") as scope:
        scope.to_stream([1]).exchange(abs)
    if worker.index == 0:
        with worker.dataflow("more") as scope:
            scope.to_stream([1]).exchange(abs)

execute_from_args(main)
""")
    cluster.start(program, [], [])
    for code, _, errors in ends_of(cluster):
        assert code == 1
        assert "GraphMismatch: dataflow 1 ('more') was built on worker 0 but not on worker 1" in errors, errors


def test_a_peer_that_never_comes_is_reported_with_its_address(cluster: Cluster) -> None:
    cluster.give_addresses(2)
    begin = time.monotonic()
    cluster.run(HELLO, "-n2", "-p0", "-h", str(cluster.hosts), "--connect-timeout", "0.5")
    [(code, output, errors)] = ends_of(cluster)
    assert time.monotonic() - begin < 0.5 + STOP_SECONDS
    assert code == 1 and output == []
    assert "waited 0.5 s" in last_line(errors) and cluster.addresses[1] in last_line(errors), errors


def test_reports_of_connections_come_when_asked_for(cluster: Cluster) -> None:
    cluster.start(HELLO, ["-r"], [])
    [(_, _, reported), (_, _, silent)] = ends_of(cluster)
    assert "connected to" in reported and cluster.addresses[1] in reported
    assert silent == ""


def test_an_unknown_option_is_an_error(cluster: Cluster) -> None:
    cluster.run(HELLO, "--fast")
    [(code, output, errors)] = ends_of(cluster)
    assert code != 0 and output == [] and "--fast" in last_line(errors)


# Failures while it runs ---------------------------------------------------------------------

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
    cluster.start(cluster.script(PREAMBLE + RAISING), [], [])
    for index in (0, 1):
        cluster.processes[index].await_line(f"ready {index}")
    begin = time.monotonic()
    [(first, _, other), (second, _, guilty)] = ends_of(cluster)
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


@pytest.mark.slow
def test_an_exception_in_one_of_several_threads_stops_all_processes(cluster: Cluster) -> None:  # engine case 47
    program = cluster.script(PREAMBLE + RAISING.replace("lambda x: 1)", "lambda x: 3)"))
    begin = time.monotonic()
    cluster.start(program, ["-w2"], ["-w2"])
    [(first, _, other), (second, _, guilty)] = ends_of(cluster)
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


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_ends_the_others_with_its_name_and_address(cluster: Cluster, victim: int) -> None:  # case 48
    cluster.start(cluster.script(PREAMBLE + WAITING), ["park"], ["park"])
    for index in (0, 1):
        cluster.processes[index].await_line(f"ready {index}")
    cluster.processes[victim].kill()
    begin = time.monotonic()
    ends = ends_of(cluster)
    assert time.monotonic() - begin < STOP_SECONDS
    code, _, errors = ends[1 - victim]
    assert ends[victim][0] == -signal.SIGKILL and code == 1
    assert f"PeerLost: lost process {victim}" in last_line(errors) and cluster.addresses[victim] in errors, errors


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_ctrl_c_on_one_process_stops_both(cluster: Cluster, workers: int) -> None:
    cluster.start(cluster.script(PREAMBLE + WAITING), ["park", f"-w{workers}"], ["park", f"-w{workers}"])
    for index in (0, 1):
        cluster.processes[index].await_line(f"ready {index * workers}")
    cluster.processes[0].send_signal(signal.SIGINT)
    begin = time.monotonic()
    [(first, _, errors), (second, _, other)] = ends_of(cluster)
    assert time.monotonic() - begin < STOP_SECONDS
    assert first in (-signal.SIGINT, 130) and "KeyboardInterrupt" in errors
    assert second == 1 and "PeerFailed: worker 0 at" in other and "KeyboardInterrupt" in other


# Idle processes ------------------------------------------------------------------------------


def cpu_seconds(process: Process) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rest(processes: list[Process]) -> None:
    """Wait until they have done their initial work and use no processor time."""
    spent, used = -1.0, 0.0
    while used != spent:
        time.sleep(0.1)  # between two looks; a busy process would spend ten ticks of the clock
        spent, used = used, sum(map(cpu_seconds, processes))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["park", pytest.param("while", marks=pytest.mark.slow)])
def test_an_idle_cluster_of_two_processes_uses_under_2_percent_of_a_core(cluster: Cluster, how: str) -> None:
    cluster.start(cluster.script(PREAMBLE + WAITING), [how], [how])
    for index in (0, 1):
        cluster.processes[index].await_line(f"ready {index}")
    rest(cluster.processes)
    before, begin = [cpu_seconds(process) for process in cluster.processes], time.monotonic()
    time.sleep(5.0)  # the time to measure
    used = sum(cpu_seconds(process) for process in cluster.processes) - sum(before)
    assert used / (time.monotonic() - begin) < 0.02
    assert all(process.poll() is None for process in cluster.processes)
