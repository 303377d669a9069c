"""Records of the user's own types between two real processes."""

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, Flag
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import megaflow
from megaflow.program import Worker
from tests.cluster.processes import programs, run_processes

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


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
    """As a newcomer writes it."""

    def __init__(self, user: str) -> None:
        self.user, self.clicks = user, OrderedDict(home=Path("/"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Session) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Polynomial:
    """A class that megaflow knows nothing of."""

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
        assert arrived == [(1 - index, record) for record in RECORDS]
        assert [type(record) for _, record in arrived] == [type(record) for record in RECORDS]
        tree = arrived[4][1]
        assert (type(tree.leaves[0]), type(tree.leaves[0].at)) == (Leaf, Point)


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
        assert started.succeed() == "3 locks taken 3\n" * 2


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
    for each in ended:  # the one that tried and the one that was told
        assert "a value of type __main__.Job cannot travel because of its field 'lock'" in each.errors
        assert "a value of type _thread.lock cannot travel between processes" in each.errors
        assert "use a plain Python value, a dataclass, a NamedTuple or an enum" in each.errors
        assert "or call megaflow.register(lock, encode, decode)" in each.errors
        assert f"in operator '{operator}' ({program}:" in each.errors


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
    assert "ProtocolError: process 0 at 127.0.0.1:" in ended[1].errors
    for each in ended:  # the one that could not read it and the one that sent it
        assert "class __main__.Secret arrived, but this process has imported no such class" in each.errors
        assert "every process must import its module" in each.errors
