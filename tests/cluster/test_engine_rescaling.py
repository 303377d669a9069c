"""Engine programs whose processes join and leave while they run: their output, and every way in which this can fail."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import pytest

from apps import rescaling_wordcount
from tests.cluster.processes import ROOT, STOP_SECONDS, Cluster, Process
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

HELLO = ROOT / "apps" / "hello.py"
GROWING_COUNT = ROOT / "apps" / "rescaling_wordcount.py"

PHASES = """
import sys
from megaflow.errors import CommandRefused
from megaflow.timely import Exchange, InputHandle, ProbeHandle, execute_from_args

SIZE = 12

def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\\n")  # one write: lines of several threads must not mix
    sys.stdout.flush()

def build(worker):
    numbers, probe, seen = InputHandle(), ProbeHandle(), {}
    with worker.dataflow("phases") as scope:
        (scope.input_from(numbers).exchange(lambda x: x)
              .inspect_time(lambda time, x: seen.setdefault(time, []).append(x)).probe_with(probe))
    return numbers, probe, seen

def member(worker, numbers, probe, seen, counts):
    \"\"\"In each phase wait for so many workers, then worker 0 sends numbers and all wait for their end.\"\"\"
    for phase, count in enumerate(counts):
        if phase >= numbers.time:
            worker.step_while(lambda: worker.peers != count)
            if worker.index == 0:
                numbers.send_batch(list(range(SIZE)))
            numbers.advance_to(phase + 1)
            worker.step_while(lambda: probe.less_than(phase + 1))
            say("worker", worker.index, "phase", phase, sorted(seen.get(phase, [])))

def main(worker):
    numbers, probe, seen = build(worker)
    say("built", worker.index)
    joined = worker.bootstrap()
    say("running", worker.index)
    counts = [int(word) for word in worker.args if word.isdigit()]
    if joined and "leave" in worker.args:
        phase = numbers.time
        member(worker, numbers, probe, seen, counts[: phase + 1])
        worker.retire()
        say("retired", worker.index)
    else:
        member(worker, numbers, probe, seen, counts)

if __name__ == "__main__":
    execute_from_args(main)
"""


class Growing(Cluster):
    """Processes with an address each; the first `founders` of them start together."""

    def __init__(self, folder: Path, founders: int, addresses: int, workers: int = 1) -> None:
        super().__init__(folder)
        self.founders = founders
        self.workers = workers
        self.give_addresses(addresses)

    def found(self, program: Path, *words: object) -> None:
        """Start the founders."""
        for address in range(self.founders):
            self.begin(program, address, *words)

    def join(self, program: Path, address: int, server: int, *words: object) -> Process:
        """Start a process that joins."""
        return self.begin(program, address, *words, "--join", server)

    def begin(self, program: Path, address: int, *words: object) -> Process:
        """Start a process with the address of this number."""
        options = (f"-n{self.founders}", f"-p{address}", f"-w{self.workers}", "-h", str(self.hosts))
        return self.run(program, *map(str, words), *options, "--nn", str(len(self.addresses)), stdin=PIPE)


Clusters = Callable[..., Growing]


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Clusters]:
    with ExitStack() as stack:

        def make(founders: int, addresses: int, workers: int = 1) -> Growing:
            cluster = Growing(tmp_path, founders, addresses, workers)
            stack.callback(cluster.finish)
            return cluster

        yield make


def shares(phase: int, *workers: int) -> set[str]:
    """Return the lines of one phase in which these workers share the numbers."""
    return {
        f"worker {worker} phase {phase} {list(range(place, 12, len(workers)))}" for place, worker in enumerate(workers)
    }


def phases(output: str) -> set[str]:
    return {line for line in output.splitlines() if " phase " in line}


# Joining ------------------------------------------------------------------------------------

ROUNDS, PAUSE_MS = 100, 100


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "server"), [(1, 0), (2, 1)])
def test_a_process_that_joins_hello_sees_its_share_from_then_on(clusters: Clusters, workers: int, server: int) -> None:
    cluster = clusters(2, 3, workers)
    cluster.found(HELLO, ROUNDS, PAUSE_MS)
    cluster.processes[0].await_line("worker 0: seen 0")
    joined = cluster.join(HELLO, 2, server, ROUNDS, PAUSE_MS)
    output = cluster.succeed()
    seen = [(int(words[1][:-1]), int(words[3])) for words in map(str.split, output.splitlines())]
    check_equal(sorted(number for _, number in seen), list(range(ROUNDS)), "each is seen once")
    before, after = 2 * workers, 3 * workers
    newcomers = [number for worker, number in seen if worker >= before]
    assert newcomers, "it was there before the end"
    turning = max(number + 1 for worker, number in seen if worker == number % before and worker != number % after)
    with comparing():
        assert all(worker == number % (before if number < turning else after) for worker, number in seen)
    assert joined.returncode == 0


LITERAL = GROWING_COUNT.read_text(encoding="utf-8")
"""A program that sends a Bootstrap, and one that sends none and moves no bins. The second once hung until it got one.
"""
SILENT = LITERAL.replace("control.send_batch([*(Bootstrap(0, peer) for peer in new), share])", "")


@pytest.mark.parametrize("script", [LITERAL, pytest.param(SILENT, marks=pytest.mark.slow)], ids=["literal", "silent"])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_join_in_the_middle_of_a_round_changes_no_count(clusters: Clusters, workers: int, script: str) -> None:
    cluster = clusters(2, 3, workers)
    program, rounds, wanted = cluster.script(script), 6, 3 * workers
    cluster.found(program, rounds, wanted)
    cluster.begin(program, 2, rounds, wanted, "-j0")
    latest: Counter[str] = Counter()
    seen: set[int] = set()
    for worker, word, total in map(str.split, cluster.succeed().replace("worker ", "").replace(":", "").splitlines()):
        latest[word] = max(latest[word], int(total))
        seen.add(int(worker))
    text = rescaling_wordcount.text(rounds)
    check_equal(latest, Counter(word for lines in text for line in lines for word in line.split()))
    assert seen == set(range(wanted)) if script is LITERAL else seen == set(range(2 * workers)), "who owns bins counts"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_newcomer_may_join_through_one_that_has_just_joined(clusters: Clusters, workers: int) -> None:
    cluster = clusters(2, 4, workers)
    program, before, after = cluster.script(PHASES), 3 * workers, 4 * workers
    cluster.found(program, before, after)
    first = cluster.join(program, 2, 0, before, after)
    first.await_line(f"running {2 * workers}")
    cluster.join(program, 3, 2 * workers, before, after)
    check_equal(phases(cluster.succeed()), shares(0, *range(before)) | shares(1, *range(after)))


@pytest.mark.slow
def test_two_that_join_at_the_same_time_are_served_one_after_the_other(clusters: Clusters) -> None:
    cluster = clusters(2, 4)
    program = cluster.script(PHASES)
    cluster.found(program, 4)
    for process in cluster.processes:
        process.await_line(f"running {cluster.processes.index(process)}")
    cluster.join(program, 2, 0, 4)
    cluster.join(program, 3, 1, 4)
    check_equal(phases(cluster.succeed()), shares(0, 0, 1, 2, 3))


ENDING = """
import sys, threading
from megaflow.timely import execute_from_args

def main(worker):
    if worker.index == 1:
        return
    worker.step_while(lambda: not worker.rescaling.may_end)
    print("ending", flush=True)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    worker.step_while(lambda: not told.is_set())

execute_from_args(main)
"""


@pytest.mark.slow
def test_who_asks_when_a_worker_has_taken_its_leave_is_too_late(clusters: Clusters) -> None:
    cluster = clusters(2, 3)
    program = cluster.script(ENDING)
    cluster.found(program)
    cluster.processes[0].await_line("ending")
    [late] = cluster.end(cluster.join(program, 2, 0, "--connect-timeout", 20))
    assert late.code == 1 and "this process may not join: too late: the cluster is ending" in late.errors
    cluster.processes[0].write_line("end")
    assert [ended.code for ended in cluster.end(*cluster.processes[:2])] == [0, 0]


def test_who_asks_when_all_have_ended_is_told_whom_it_asked(clusters: Clusters) -> None:
    cluster = clusters(2, 3)
    cluster.found(HELLO)
    cluster.succeed()
    [late] = cluster.end(cluster.join(HELLO, 2, 0, "--connect-timeout", 0.5))
    assert late.code == 1 and "this process could not join within 0.5 s: " in late.errors
    assert all(address in late.errors for address in cluster.addresses[:2])


# Leaving ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_cluster_grows_shrinks_and_grows_on_the_same_address(clusters: Clusters, workers: int) -> None:
    cluster = clusters(2, 3, workers)
    program = cluster.script(PHASES)
    few, many = 2 * workers, 3 * workers
    cluster.found(program, many, few, many)
    [left] = cluster.end(cluster.join(program, 2, 0, many, few, many, "leave"))
    assert left.code == 0, left.errors
    assert set(left.output.splitlines()) >= {f"retired {few + number}" for number in range(workers)}
    cluster.processes.pop()
    cluster.join(program, 2, 1, many, few, many)
    found = phases(left.output + cluster.succeed())
    founders, third, fourth = range(few), range(few, many), range(many, many + workers)
    check_equal(found, shares(0, *founders, *third) | shares(1, *founders) | shares(2, *founders, *fourth))


@pytest.mark.slow
def test_the_server_of_an_earlier_bootstrap_leaves(clusters: Clusters) -> None:
    cluster = clusters(2, 4)
    program = cluster.script(PHASES)
    cluster.found(program, 4, 3)
    server = cluster.join(program, 2, 0, 4, 3, "leave")
    server.await_line("running 2")
    cluster.join(program, 3, 2, 4, 3)
    found = phases(cluster.succeed())
    check_equal(found, shares(0, 0, 1, 2, 3) | shares(1, 0, 1, 3))


MOVING = PHASES.replace("if worker.index == 0:", "if worker.index == worker.peer_ids[0]:").replace(
    "    if joined and",
    """    leaves = [int(word.removeprefix("leave-")) for word in worker.args if word.startswith("leave-")]
    if leaves:
        member(worker, numbers, probe, seen, counts[: leaves[0] + 1])
        worker.retire()
        say("retired", worker.index)
    elif joined and""",
)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_process_of_the_coordinator_leaves_and_then_that_of_the_next_one(clusters: Clusters, workers: int) -> None:
    cluster = clusters(2, 3, workers)
    program, counts = cluster.script(MOVING), [3 * workers, 2 * workers, workers]
    cluster.begin(program, 0, *counts, "leave-0")
    cluster.begin(program, 1, *counts, "leave-1")
    cluster.join(program, 2, 1, *counts)
    output = cluster.succeed()
    everybody = range(3 * workers)
    assert set(output.splitlines()) >= {f"retired {worker}" for worker in everybody[: 2 * workers]}
    expected = shares(0, *everybody) | shares(1, *everybody[workers:]) | shares(2, *everybody[2 * workers :])
    check_equal(phases(output), expected)


@pytest.mark.slow
def test_a_cluster_whose_coordinators_have_left_grows_again_on_the_address_of_the_first(clusters: Clusters) -> None:
    cluster = clusters(2, 3)
    program, counts = cluster.script(MOVING), [3, 2, 1, 2]
    cluster.begin(program, 0, *counts, "leave-0")
    cluster.begin(program, 1, *counts, "leave-1")
    last = cluster.join(program, 2, 1, *counts)
    last.await_line(f"worker 2 phase 2 {list(range(12))}")
    cluster.founders = 3  # it asks at the first three addresses; the processes of the first two are gone
    cluster.join(program, 0, 2, *counts)
    check_equal(phases(cluster.succeed()), shares(0, 0, 1, 2) | shares(1, 1, 2) | shares(2, 2) | shares(3, 2, 3))


PINNED = PHASES.replace(".exchange(lambda x: x)", ".unary(Exchange(lambda x: x), 'Remember', remember)").replace(
    "    counts =",
    """    if worker.index == 1:
        try:
            worker.retire()
        except CommandRefused as error:
            say("refused:", error)
    counts =""",
).replace(
    "def member",
    """def remember(capability, info):
    capability.release()

    def logic(source, output):
        for time, batch in source:
            output.session(time).give_batch(batch)
    return logic

def member""",
)


def test_a_process_to_which_records_are_pinned_stays_and_is_told_by_which_operator(clusters: Clusters) -> None:
    cluster = clusters(2, 2)
    cluster.found(cluster.script(PINNED), 2)
    output = cluster.succeed()
    [refused] = [line for line in output.splitlines() if line.startswith("refused:")]
    assert "worker 1 cannot retire: dataflow 'phases' has operators whose records go to its founding" in refused
    assert "workers: Remember" in refused
    check_equal(phases(output), shares(0, 0, 1))


# Death --------------------------------------------------------------------------------------

STUCK = PHASES.replace(
    "    joined = worker.bootstrap()",
    """    if "begin" in worker.args:
        worker.rescaling.joiner.begin()
        worker.allocator.flush()  # no step: it could take all the way in
    say("stuck", worker.index)
    sys.stdin.readline()
    joined = worker.bootstrap()""",
)


@pytest.mark.parametrize("asked", ["built", pytest.param("begin", marks=pytest.mark.slow)])
def test_a_newcomer_that_is_killed_before_it_takes_part_stops_nobody(clusters: Clusters, asked: str) -> None:
    cluster = clusters(2, 3)
    program = cluster.script(PHASES)
    cluster.found(program, 3)
    victim = cluster.join(cluster.script(STUCK, "stuck.py"), 2, 0, 3, asked)
    victim.await_line("stuck 2")
    victim.kill()
    assert cluster.end(victim)[0].code == -signal.SIGKILL
    cluster.processes.pop()
    cluster.join(program, 2, 0, 3)
    check_equal(phases(cluster.succeed()), shares(0, 0, 1, 3), "its id is not used again")


@pytest.mark.parametrize("victim", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_member_that_is_killed_stops_all_others_who_name_it(clusters: Clusters, victim: int) -> None:
    cluster = clusters(2, 3)
    program = cluster.script(PHASES)
    cluster.found(program, 3, 99)
    cluster.join(program, 2, 0, 3, 99)
    for index, process in enumerate(cluster.processes):
        process.await_line(f"worker {index} phase 0 {list(range(index, 12, 3))}")
    cluster.processes[victim].kill()
    began = time.monotonic()
    others = [process for index, process in enumerate(cluster.processes) if index != victim]
    for ended in cluster.end(*others):
        assert ended.code == 1
        assert f"PeerLost: lost process {victim} at {cluster.addresses[victim]} (worker {victim})" in ended.errors
    assert time.monotonic() - began < STOP_SECONDS


@pytest.mark.slow
def test_the_second_coordinator_that_is_killed_stops_all_others_who_name_it(clusters: Clusters) -> None:
    cluster = clusters(2, 3)
    program, counts = cluster.script(MOVING), [3, 2, 99]
    first = cluster.begin(program, 0, *counts, "leave-0")
    second = cluster.begin(program, 1, *counts)
    third = cluster.join(program, 2, 1, *counts)
    assert cluster.end(first)[0].code == 0
    second.await_line(f"worker 1 phase 1 {list(range(0, 12, 2))}")
    second.kill()
    [ended] = cluster.end(third)
    assert ended.code == 1
    assert f"PeerLost: lost process 1 at {cluster.addresses[1]} (worker 1)" in ended.errors
