"""Records of user types between two real processes."""

import logging
import re
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import megaflow
from megaflow.megaphone.base.bins import stable_hash
from megaflow.program import Worker
from tests.cluster.processes import Run, programs, run_processes
from tests.results import check_equal

pytestmark = pytest.mark.cluster


class Color(Enum):
    RED = "r"
    GREEN = "g"


class Access(Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True, slots=True)
class Leaf:
    name: str
    at: Point


@dataclass
class Tree:
    leaves: list[Leaf]
    color: Color
    parts: dict[Point, set[Color]] = field(default_factory=dict)


class Session:
    """A class as a beginner writes it."""

    def __init__(self, user: str) -> None:
        self.user, self.clicks = user, OrderedDict(home=Path("/"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Polynomial:
    """A class unknown to megaflow."""

    def __init__(self, *factors: int) -> None:
        self.factors = factors

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self.factors == other.factors

    __hash__ = None  # type: ignore[assignment]


megaflow.register(Polynomial, lambda value: list(value.factors), lambda factors: Polynomial(*factors))
megaflow.register(logging.Filter)  # a class of a library, by its fields
megaflow.register(Fraction, lambda value: (value.numerator, value.denominator), lambda pair: Fraction(*pair))

LEAF = Leaf("leaf", Point(1, 2.5))
RECORDS: list[Any] = [
    Color.GREEN,
    Access.READ | Access.WRITE,
    Point(3, 4.0),
    LEAF,
    Tree([LEAF, LEAF], Color.RED, {Point(0, 0.5): {Color.RED, Color.GREEN}}),
    Polynomial(1, 2, 3),
    [Fraction(1, 3), (Polynomial(), Color.RED)],
    Session("ada"),
    {"words": re.compile("a|b", re.I), "pages": range(3)},
]


def to_the_other(worker: Worker) -> list[Any]:
    arrived: list[Any] = []
    with worker.dataflow() as scope:
        own = scope.to_stream([(worker.index, record) for record in RECORDS])
        probe = own.exchange(lambda pair: pair[0] + 1).inspect(arrived.append).probe()
    worker.step_while(lambda: not probe.done())
    return arrived


def test_dataclasses_named_tuples_enums_and_registered_types_arrive_as_they_were() -> None:
    for index, arrived in enumerate(run_processes(to_the_other)):
        check_equal(arrived, [(1 - index, record) for record in RECORDS])
        check_equal([type(record) for _, record in arrived], [type(record) for record in RECORDS])
        tree = arrived[4][1]
        check_equal((type(tree.leaves[0]), type(tree.leaves[0].at)), (Leaf, Point))


LOCK = '''
import threading
from megaflow.timely import Broadcast, Pipeline, execute_from_args

class Job:
    def __init__(self):
        self.lock = threading.Lock()

def forward(capability, info):
    capability.release()
    def logic(input, output):
        for time, batch in input:
            output.session(time).give_batch(batch)
    return logic

def main(worker):
    seen = []
    with worker.dataflow() as scope:
        jobs = scope.to_stream([Job() for _ in range(3)]).unary(Pipeline(), "Forward", forward)
        jobs = jobs.filter(lambda job: job.lock.acquire(blocking=False))
        if worker.args == ["exchange"]:
            jobs = jobs.exchange(lambda job: worker.index + 1)
        if worker.args == ["broadcast"]:
            jobs = jobs.unary(Broadcast(), "Everyone", forward)
        jobs.inspect(seen.append)
    return seen

[seen] = execute_from_args(main)
print(len(seen), "locks taken", sum(job.lock.locked() for job in seen))
'''


def test_objects_that_hold_a_lock_pass_from_operator_to_operator(tmp_path: Path) -> None:
    """Case 54."""
    program = tmp_path / "lock_program.py"
    program.write_text(LOCK)
    with programs(tmp_path, program, "stay") as started:
        check_equal(started.succeed(), "3 locks taken 3\n" * 2)


@pytest.mark.parametrize(("how", "operator"), [("exchange", "Exchange"), ("broadcast", "Everyone")])
def test_objects_that_hold_a_lock_are_refused_between_processes_by_type_operator_and_remedy(
    how: str, operator: str, tmp_path: Path
) -> None:
    """Case 54."""
    program = tmp_path / "lock_program.py"
    program.write_text(LOCK)
    with programs(tmp_path, program, how) as started:
        ended = started.end()
    assert [each.code for each in ended] == [1, 1]
    for each in ended:  # the failing process and the notified one
        assert "a value of type __main__.Job cannot travel because of its field 'lock'" in each.errors
        assert "a value of type _thread.lock cannot travel between processes" in each.errors
        assert "use a plain Python value, a dataclass, a NamedTuple or an enum" in each.errors
        assert "or call megaflow.register(lock, encode, decode)" in each.errors
        assert f"in operator '{operator}' ({program}:" in each.errors


STATES = '''
import threading
import megaflow

class Held:
    def __init__(self):
        self.lock = threading.Lock()

class Bag:
    def __init__(self):
        self.seen = {}

def count(key, word, state):
    n = (state[0] if state else 0) + 1
    if word == "late":
        import late_module
        return (n, late_module.Late()), [(key, n)]
    return (n, {"plain": None, "bag": Bag(), "held": Held()}[word]), [(key, n)]

def dataflow(flow):
    if "register" in flow.args:
        megaflow.register(Held, lambda held: None, lambda nothing: Held())
    return flow.lines().map(lambda line: tuple(line.split())).stateful_state_machine(count, bins=2)
'''


@pytest.mark.slow
def test_a_move_of_a_state_that_cannot_travel_is_refused_and_the_job_goes_on(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app = tmp_path / "states.py"
    app.write_text(STATES)
    (tmp_path / "late_module.py").write_text("class Late:\n    pass\n")
    here, there = (next(key for key in "abcdefgh" if stable_hash(key) >> 63 == bin) for bin in (0, 1))
    words = [str(app), "--lines", "-", "--processes", "2"]

    def close(run: Run) -> None:
        assert run.process.stdin is not None
        run.process.stdin.close()

    def say(run: Run, key: str, word: str, count: int) -> None:
        run.process.write_line(f"{key} {word}")
        run.process.await_line(f"('{key}', {count})")

    run = start(*words, stdin=subprocess.PIPE)
    say(run, here, "plain", 1)
    say(run, there, "bag", 1)
    say(run, here, "held", 2)
    for way in (["--bins", "0", "--to", "1"], ["--drain", "0", "--strategy", "all-at-once"]):
        refused = run.control("move-bins", *way)
        assert refused.returncode == 1, refused.stdout
        for words_of_it in (f"count: the state of key '{here}'", "states.Held", "megaflow.register(", "no bin was"):
            assert words_of_it in refused.stderr, refused.stderr
    assert run.control("remove-workers", "--id", "1").returncode == 0  # the other bin can move, and its worker leave
    assert run.control("add-workers", "1").returncode == 0
    say(run, here, "late", 3)
    unknown = run.control("move-bins", "--bins", "0", "--to", "2")
    assert unknown.returncode == 1
    assert "worker 2 reports: this process has imported no late_module Late" in unknown.stderr
    say(run, here, "plain", 4)
    moved = run.control("move-bins", "--drain", "0")
    assert moved.returncode == 0, moved.stderr
    say(run, here, "bag", 5)
    say(run, there, "plain", 2)
    close(run)
    assert run.end()[0] == 0

    run = start(*words, "--", "register", stdin=subprocess.PIPE)
    say(run, here, "held", 1)
    moved = run.control("move-bins", "--drain", "0")
    assert moved.returncode == 0, moved.stderr
    say(run, here, "plain", 2)
    close(run)
    assert run.end()[0] == 0


ABSENT = '''
import sys
from dataclasses import dataclass
from megaflow.timely import execute_from_args

if "-p0" in sys.argv:
    @dataclass
    class Secret:
        value: int

def main(worker):
    with worker.dataflow() as scope:
        records = [Secret(1)] if worker.index == 0 else []
        scope.to_stream(records).exchange(lambda record: 1).inspect(print)

execute_from_args(main)
'''


def test_a_class_that_the_receiver_has_not_imported_is_named(tmp_path: Path) -> None:
    program = tmp_path / "absent_program.py"
    program.write_text(ABSENT)
    with programs(tmp_path, program) as started:
        ended = started.end()
    assert [each.code for each in ended] == [1, 1]
    # If the value arrives before this process has begun the program, there is one line without ProtocolError.
    assert re.search(r"(Error|absent_program\.py): process 0 at 127\.0\.0\.1:\d+ broke the protocol: ", ended[1].errors)
    for each in ended:  # the process that could not read it, and its sender
        assert "class __main__.Secret arrived, but this process has imported no such class" in each.errors
        assert "every process must import its module" in each.errors
