"""A job's size changes neither too early nor too often, never during another change, and only if it helps."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from megaflow.control.client.ds2 import TOLERANCE, Goal
from megaflow.control.client.hysteresis import FUTILE_REST, GROW_SAMPLES, SHRINK_SAMPLES, Autoscaler, Decision
from tests.control.client.paper_job import PaperJob

EVERY = 10.0
COOL_DOWN = 30.0


class Life:
    """A paper job and its autoscaler."""

    def __init__(self, job: PaperJob, goal: Goal | None = None, cool_down: float = COOL_DOWN) -> None:
        self.job = job
        self.scaler = Autoscaler(goal or Goal(max=50), cool_down)
        self.now = 1000.0
        self.changes: list[tuple[float, int]] = []  # (moment, new number of processes)
        self.said: list[Decision] = []

    def look(self, **more: Any) -> Decision:
        """Let some time pass, and carry out the decision."""
        first = self.job.status()
        self.job.go_on(EVERY)
        self.now += EVERY
        decision = self.scaler.judge(first, self.job.status(**more), self.now)
        self.said.append(decision)
        if decision.action in ("grow", "shrink"):
            self.now += 3.0  # it takes a while
            self.job.processes = decision.processes
            self.changes.append((self.now, decision.processes))
            self.scaler.changed(decision, self.now)
        return decision

    def looks(self, count: int) -> list[str]:
        return [self.look().action for _ in range(count)]


def test_it_grows_when_two_looks_agree_and_shrinks_when_three_do() -> None:
    life = Life(PaperJob(rate=300.0, costs={"count": 0.01}))
    assert life.looks(GROW_SAMPLES) == ["wait", "grow"] and life.job.processes == 4
    life.looks(10)
    assert len(life.changes) == 1
    life.job.rate = 50.0
    assert life.looks(SHRINK_SAMPLES)[-1] == "shrink" and life.job.processes == 1
    assert [decision.action for decision in life.said[-SHRINK_SAMPLES:-1]] == ["wait", "wait"]


def test_one_look_that_differs_changes_nothing() -> None:
    life = Life(PaperJob(rate=65.0, costs={"count": 0.01}))
    for _ in range(5):
        life.looks(2)
        life.job.rate = 300.0
        life.look()
        life.job.rate = 65.0
        life.job.lines = life.job.done  # the backlog was a burst
    assert life.changes == []


def test_after_a_change_it_rests_for_the_cool_down_and_judges_by_nothing_older() -> None:
    life = Life(PaperJob(rate=300.0, costs={"count": 0.01}))
    life.looks(GROW_SAMPLES)
    life.job.rate = 900.0  # at once
    rest = life.looks(7)
    grown = rest.index("grow")
    samples_began = life.now - (7 - grown - 1 + GROW_SAMPLES) * EVERY
    assert samples_began >= life.changes[0][0] + COOL_DOWN - 3.0  # the change took three of them
    assert rest[:grown] == ["wait"] * grown and "cooling down" in life.said[GROW_SAMPLES].why


JOINING = {"change": "add-workers", "processes": 1, "done": 0, "steps": 2, "waiting": False}


@pytest.mark.parametrize(
    "disturbance", [{"changes": [JOINING]}, {"pending": [{"epoch": 3, "bins": 1}]}, {"state": "stopping"}]
)
def test_nothing_is_begun_during_another_change_and_what_was_seen_before_it_is_forgotten(disturbance: Any) -> None:
    life = Life(PaperJob(rate=300.0, costs={"count": 0.01}))
    for _ in range(10):
        assert life.look().action == "wait"  # one look is not enough
        assert "sample ignored" in life.look(**disturbance).why
    assert life.changes == []
    assert life.looks(GROW_SAMPLES) == ["wait", "grow"]


@given(
    rate=st.floats(1.0, 1000.0), cost=st.floats(1e-3, 2e-2), processes=st.integers(1, 20), each=st.integers(1, 2),
    noise=st.lists(st.floats(1 - TOLERANCE * 0.45, 1 + TOLERANCE * 0.45), min_size=60, max_size=60),
    slowdown=st.floats(0.0, 0.005),
)  # fmt: skip
def test_a_constant_rate_is_reached_in_three_changes_and_then_let_be(
    rate: float, cost: float, processes: int, each: int, noise: list[float], slowdown: float
) -> None:
    assume(rate * cost * 1.3 < 10)
    life = Life(PaperJob(rate, {"count": cost}, processes, each, slowdown=slowdown))
    for factor in noise:
        life.job.rate = rate * factor
        life.look()
    sizes = [processes, *(size for _, size in life.changes)]
    assert len(life.changes) <= 3, sizes
    assert sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True), f"it turned round: {sizes}"
    times = [when for when, _ in life.changes]
    assert all(later - earlier >= COOL_DOWN for earlier, later in pairwise(times))
    life.job.rate = rate
    assert life.job.load <= 1.0, "and it keeps up"


def test_growing_that_does_not_help_is_not_repeated_until_a_while_later_or_the_lines_change() -> None:
    life = Life(PaperJob(rate=500.0, costs={"count": 0.01}), Goal(max=8), cool_down=10.0)
    life.looks(GROW_SAMPLES)
    assert life.job.processes == 7
    life.job.slowdown = 1.0  # one processor: each worker takes its time from the others
    said = [life.look() for _ in range(8)]
    assert {decision.action for decision in said} == {"wait", "stay"} and life.job.processes == 7
    assert "more processes do not help" in said[-1].why
    life.looks(2 * FUTILE_REST)
    assert len(life.changes) == 2, "it tries again later"
    life.job.processes, life.changes = 7, []
    life.job.rate = 700.0
    life.looks(10)
    assert life.changes, "more lines are another matter"


def test_limits_that_a_job_is_beyond_are_kept_without_need() -> None:
    small = Life(PaperJob(rate=1.0, costs={"count": 0.01}), Goal(min=2, max=3))
    small.looks(3)
    assert small.job.processes == 2
    large = Life(PaperJob(rate=450.0, costs={"count": 0.01}, processes=6), Goal(max=4))
    large.looks(4)
    assert large.job.processes == 4
