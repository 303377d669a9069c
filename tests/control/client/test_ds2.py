"""The DS2 model on jobs with known costs: it finds the right size in at most three steps, and gives its reason."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from megaflow.control.client.ds2 import ELSEWHERE, TOLERANCE, Goal, Recommendation, recommend
from megaflow.control.client.rate_sample import sample
from megaflow.errors import UsageError
from tests.control.client.paper_job import PaperJob

GOAL = Goal()


def advice(job: PaperJob, goal: Goal = GOAL, seconds: float = 10.0) -> Recommendation:
    return recommend(sample(*job.sample(seconds)), goal)


def steps_to_rest(job: PaperJob, goal: Goal = GOAL) -> list[int]:
    """Follow the policy until it wants no change; return the sizes on the way, including the first."""
    sizes = [job.processes]
    while (wanted := advice(job, goal).processes) != job.processes:
        job.processes = wanted
        sizes.append(wanted)
        job.go_on(1000.0)  # process the backlog
        assert len(sizes) < 20, sizes
    return sizes


def is_right(job: PaperJob, goal: Goal, spare: int = 0) -> bool:
    """Whether the job is large enough, and has no process beyond those that keep it below the target."""
    low, high = goal.utilization * (1 - TOLERANCE), goal.utilization * (1 + TOLERANCE)
    smaller = replace(job, processes=max(1, job.processes - 1 - spare), busy={}, useful={})
    return job.load <= high + 1e-9 and (job.processes <= 1 + spare or smaller.load > low - 1e-9)


costs = st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(1e-5, 1e-2), max_size=3)
linear_jobs = st.builds(
    PaperJob, rate=st.floats(1.0, 3000.0), costs=costs, processes=st.integers(1, 30), each=st.integers(1, 3),
    elsewhere=st.floats(1e-5, 1e-2), selectivity=st.floats(0.1, 50.0),
)  # fmt: skip


@given(job=linear_jobs, utilization=st.floats(0.3, 1.0))
def test_where_work_grows_linearly_one_step_is_enough(job: PaperJob, utilization: float) -> None:
    goal = Goal(utilization)
    assume(job.rate * job.cost < 100)
    assert len(steps_to_rest(job, goal)) <= 2
    if utilization * (1 + TOLERANCE) <= 1:
        assert is_right(job, goal)


@given(job=linear_jobs, slowdown=st.floats(0.0, 0.01), overhead=st.floats(0.0, 0.1))
def test_three_steps_are_enough_where_each_worker_slows_down_the_others(
    job: PaperJob, slowdown: float, overhead: float
) -> None:
    job.slowdown, job.overhead = slowdown, overhead
    assume(job.rate * job.cost < 10 and job.rate * (sum(job.costs.values()) + job.elsewhere) < 15)
    sizes = steps_to_rest(job)
    assert len(sizes) <= 4, sizes
    assert is_right(job, GOAL, spare=1), sizes


@given(job=linear_jobs, slowdown=st.floats(0.0, 0.01))
def test_it_grows_and_shrinks_towards_the_right_size_and_never_past_it(job: PaperJob, slowdown: float) -> None:
    job.slowdown = slowdown
    assume(job.rate * job.cost < 10 and job.rate * (sum(job.costs.values()) + job.elsewhere) < 15)
    sizes = steps_to_rest(job)
    assert sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True)


@given(job=linear_jobs, wavering=st.lists(st.floats(0.955, 1.045), min_size=10, max_size=10))
def test_a_rate_that_wavers_by_less_than_a_tenth_in_all_is_not_followed_up_and_down(
    job: PaperJob, wavering: list[float]
) -> None:
    assume(job.rate * job.cost < 100)
    rate = job.rate
    steps_to_rest(job)
    sizes = [job.processes]
    for factor in wavering:
        job.rate = rate * factor
        job.processes = advice(job).processes
        sizes.append(job.processes)
        job.go_on(1000.0)
    assert sizes == sorted(sizes) or sizes == sorted(sizes, reverse=True), sizes


@given(job=linear_jobs)
def test_the_same_sample_gives_the_same_answer_and_needs_add_up_to_what_is_needed(job: PaperJob) -> None:
    seen = sample(*job.sample())
    first = recommend(seen, GOAL)
    assert first == recommend(seen, GOAL)
    assert [need.operator for need in first.needs] == [*job.costs, ELSEWHERE]
    assert sum(need.workers for need in first.needs) == pytest.approx(job.rate * job.cost, rel=1e-6)


def test_the_true_rate_is_that_of_useful_time_however_idle_the_workers_are() -> None:
    for rate in (1.0, 40.0, 500.0):  # idle, busy, far too much
        job = PaperJob(rate=rate, costs={"count": 0.01}, processes=2, selectivity=4.0)
        (count, rest) = advice(job).needs
        assert count.true_rate == pytest.approx(400.0) and count.offered == pytest.approx(4 * rate)
        assert count.workers == pytest.approx(rate * 0.01) and rest.workers == pytest.approx(0.0, abs=1e-6)


def test_a_wanted_rate_is_what_the_job_is_sized_for_whatever_comes() -> None:
    job = PaperJob(rate=10.0, costs={"count": 0.01})
    wanted = advice(job, Goal(rate=600.0))
    assert wanted.workers == pytest.approx(6.0) and wanted.processes == 8
    assert wanted.facts[0] == "The target is 600 lines per second; 10 per second are processed."


def test_limits_are_kept_and_said() -> None:
    job = PaperJob(rate=600.0, costs={"count": 0.01})
    most = advice(job, Goal(max=3))
    assert most.processes == 3 and most.verdict.endswith("8 processes at 75% utilization. --max limits it to 3.")
    few = PaperJob(rate=1.0, costs={"count": 0.01}, processes=5)
    assert advice(few, Goal(min=2)).processes == 2
    assert advice(PaperJob(rate=360.0, costs={"count": 0.01}, processes=5), Goal(max=3)).processes == 3


def test_workers_come_by_processes() -> None:
    job = PaperJob(rate=600.0, costs={"count": 0.01}, each=3)
    wanted = advice(job)
    assert wanted.processes == 3 and wanted.verdict.endswith("3 processes with 3 workers each at 75% utilization.")


def test_a_job_that_nothing_comes_to_needs_one_process() -> None:
    job = PaperJob(rate=0.0, costs={"count": 0.01}, processes=4, overhead=0.02)
    idle = advice(job)
    assert idle.processes == 1 and idle.needs[0].true_rate is None


def test_where_nobody_knows_how_many_lines_come_it_grows_while_they_wait_and_never_shrinks() -> None:
    job = PaperJob(rate=100.0, costs={"count": 0.02}, bounded=False)
    job.go_on(1.0)
    more = advice(job)
    assert more.processes == 2 and more.rate is None and more.is_overloaded
    assert "--target-rate" in more.facts[0] and "at least 2 processes" in more.verdict
    seen = sample(*replace(job, processes=4).sample())
    held = recommend(replace(seen, unbounded=True, work={}, busy=dict.fromkeys(range(4), 0.2)), GOAL)
    assert held.processes == 4 and "an unknown number of lines" in held.verdict


def test_without_a_line_worked_off_there_is_nothing_to_judge_by() -> None:
    first, second = PaperJob(rate=100.0, costs={"count": 0.02}, processes=2).sample()
    second = replace(second, workers=tuple(replace(worker, done=0) for worker in second.workers))
    stuck = recommend(sample(first, second), GOAL)
    assert stuck.workers is None and stuck.processes == 2 and "explain" in stuck.verdict


def test_the_busiest_worker_and_lines_that_wait_keep_a_job_from_shrinking() -> None:
    seen = sample(*PaperJob(rate=40.0, costs={"count": 0.01}, processes=4).sample())
    assert recommend(seen, GOAL).processes == 1
    hot = recommend(replace(seen, busy={0: 0.05, 1: 0.95, 2: 0.05, 3: 0.05}), GOAL)
    assert hot.processes == 4 and "worker 1 is 95% busy" in hot.verdict and "hottest bins" in hot.remarks[0]
    behind = recommend(replace(seen, waiting=200), GOAL)
    assert behind.processes == 4 and "200 lines wait" in behind.verdict
    assert recommend(replace(seen, waiting=20), GOAL).processes == 1


def test_lines_that_wait_for_something_else_than_workers_are_remarked_on() -> None:
    seen = sample(*PaperJob(rate=10.0, costs={"count": 0.01}, processes=2).sample())
    slow_output = recommend(replace(seen, offered=40.0, waiting=300), GOAL)
    assert "no worker is busy" in slow_output.remarks[0]


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (Goal(0.0), "--target-utilization 0:"),
        (Goal(1.5), "--target-utilization 1.5:"),
        (Goal(float("nan")), "--target-utilization nan:"),
        (Goal(rate=0.0), "--target-rate 0:"),
        (Goal(rate=float("nan")), "--target-rate nan:"),
        (Goal(min=3, max=2), "--min 3 and --max 2:"),
    ],
)
def test_what_cannot_be_wanted_is_refused(goal: Goal, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        goal.check()
