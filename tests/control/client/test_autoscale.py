"""Autoscale decisions become commands: which process is added or leaves, where bins go, what a refusal leads to."""

from dataclasses import replace
from typing import Any

import pytest

from megaflow.cli.scaling import outcome_text, scaling_record
from megaflow.control.client.autoscale import ScalingOutcome, autoscale, carry_out
from megaflow.control.client.ds2 import Goal
from megaflow.control.client.hysteresis import Autoscaler, Decision
from megaflow.control.messages import AddProcesses, BeginPlan, KeptPlan, Reconfigure, RemoveWorker, StatusQuery, TryBins
from megaflow.control.reports import JobStatus, JoinedProcess, JoinReport, RemovalReport, StepReport
from megaflow.errors import CommandRefused, MegaflowError, PeerLost
from tests.control.client.paper_job import PaperJob

BINS = 32


class Cluster:
    """A conversation with a paper job whose bins have owners. It ends after a number of looks."""

    def __init__(self, job: PaperJob, looks: int = 1000) -> None:
        self.job = job
        self.left = looks
        self.table = [bin % job.workers for bin in range(BINS)]
        self.asked: list[Any] = []  # all requests except looks
        self.refusals: dict[type, Exception] = {}  # request type -> error to raise once
        self.failing = 0  # requested processes that do not start
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.job.go_on(seconds)

    def ask(self, body: Any, show: Any = None) -> Any:
        if isinstance(body, StatusQuery):
            return self._status()
        if isinstance(body, BeginPlan):
            return KeptPlan(1, body.target, body.strategy, body.batch, body.gap_seconds, 0, body.runner)
        if not isinstance(body, TryBins):
            self.asked.append(body)
        if error := self.refusals.pop(type(body), None):
            raise error
        match body:
            case AddProcesses(count):
                return self._add(count)
            case RemoveWorker(worker, ask_only):
                assert worker == self.job.workers - self.job.each, "the newest process leaves first"
                if not ask_only:
                    assert max(self.table) < worker, "its bins are elsewhere"
                    self.job.processes -= 1
                    return RemovalReport((worker,), 0.5)
            case Reconfigure(commands):
                for move in commands:
                    self.table[move.bin] = move.worker
                return StepReport(9, len(commands), 100, 10, 0.25)
        return None

    def _status(self) -> JobStatus:
        self.left -= 1
        if self.left < 0:
            raise PeerLost("gone")
        status = self.job.status()
        workers = (
            replace(each, bins=self.table.count(each.id), keys=10, waiting=round(each.waiting or 0))
            for each in status.workers
        )
        operators = (replace(each, table=tuple(self.table)) for each in status.operators)
        return replace(status, workers=tuple(workers), operators=tuple(operators))

    def _add(self, count: int) -> JoinReport:
        started = count - self.failing
        new = range(self.job.processes, self.job.processes + started)
        self.job.processes += started
        seconds = {"start": 0.5, "routing": 0.125}
        joins = tuple(JoinedProcess((id,), seconds, 900, 0.0) for id in new)
        return JoinReport(joins, ("no more memory",) * self.failing)


def steered(cluster: Cluster, goal: Goal | None = None) -> list[Decision | ScalingOutcome]:
    """Run autoscale to the job's end."""
    scaler = Autoscaler(goal or Goal(max=20), cool_down=10.0)
    return list(autoscale(cluster, scaler, 5.0, lambda: cluster.now, cluster.sleep))  # type: ignore[arg-type]


def commanded(cluster: Cluster, action: Any, processes: int) -> ScalingOutcome:
    return carry_out(cluster, Decision(action, processes, "because"), cluster.sleep)  # type: ignore[arg-type]


def test_a_job_that_cannot_keep_up_grows_to_what_comes_and_its_bins_move_in_a_few_steps() -> None:
    cluster = Cluster(PaperJob(rate=200.0, costs={"count": 0.01}), looks=12)
    news = steered(cluster)
    [change] = [each for each in news if isinstance(each, ScalingOutcome)]
    assert cluster.job.processes == 3 and cluster.asked[0] == AddProcesses(2)
    assert sorted(cluster.table.count(worker) for worker in range(3)) == [10, 11, 11]
    assert [len(step.commands) for step in cluster.asked[1:]] == [6, 6, 6, 3]
    assert [join.workers for join in change.joins] == [(1,), (2,)] and change.moved is not None
    assert change.moved.bins == 21 and change.failed == ()


def test_a_job_that_can_keep_up_gives_its_bins_one_by_one() -> None:
    cluster = Cluster(PaperJob(rate=95.0, costs={"count": 0.01}), looks=12)
    steered(cluster)
    assert cluster.asked[0] == AddProcesses(1) and [len(step.commands) for step in cluster.asked[1:]] == [1] * 16


def test_a_job_shrinks_one_process_after_another_each_after_its_bins() -> None:
    cluster = Cluster(PaperJob(rate=10.0, costs={"count": 0.01}, processes=3), looks=14)
    news = steered(cluster)
    [change] = [each for each in news if isinstance(each, ScalingOutcome)]
    assert cluster.job.processes == 1 and cluster.table == [0] * BINS
    removed = [each.worker for each in cluster.asked if isinstance(each, RemoveWorker) and not each.ask_only]
    assert removed == [2, 1] == [left.workers[0] for left in change.left]


def test_a_job_without_bins_grows_without_moving_any() -> None:
    cluster = Cluster(PaperJob(rate=200.0, costs={}, elsewhere=0.01), looks=12)
    steered(cluster)
    assert cluster.job.processes == 3 and cluster.asked == [AddProcesses(2)]


def test_each_process_brings_all_its_workers() -> None:
    cluster = Cluster(PaperJob(rate=10.0, costs={"count": 0.01}, processes=2, each=2))
    change = commanded(cluster, "shrink", 1)
    assert cluster.asked[0] == RemoveWorker(2, True) and set(cluster.table) == {0, 1}
    assert change.failed == ()


def test_a_refusal_is_an_outcome_and_the_next_look_decides_anew() -> None:
    cluster = Cluster(PaperJob(rate=200.0, costs={"count": 0.01}), looks=24)
    cluster.refusals[AddProcesses] = CommandRefused("somebody is quicker")
    refused, done = [each for each in steered(cluster) if isinstance(each, ScalingOutcome)]
    assert refused == ScalingOutcome(failed=("somebody is quicker",)) and len(done.joins) == 2
    assert outcome_text(refused) == "not done: somebody is quicker"


def test_a_refusal_on_the_way_tells_also_what_was_done() -> None:
    cluster = Cluster(PaperJob(rate=10.0, costs={"count": 0.01}, processes=3))
    ask = cluster.ask

    def fickle(body: Any, show: Any = None) -> Any:
        if body == RemoveWorker(1, True):
            raise CommandRefused("no")
        return ask(body, show)

    cluster.ask = fickle  # type: ignore[method-assign]
    change = commanded(cluster, "shrink", 1)
    assert [left.workers for left in change.left] == [(2,)] and change.failed == ("no",)
    assert change.moved is not None and change.moved.bins > 0


def test_processes_that_do_not_start_are_told_once() -> None:
    cluster = Cluster(PaperJob(rate=10.0, costs={"count": 0.01}))
    cluster.failing = 2
    change = commanded(cluster, "grow", 4)
    assert len(change.joins) == 1 and change.failed == ("no more memory",)
    assert sorted(cluster.table.count(worker) for worker in range(2)) == [16, 16]
    assert scaling_record(change)["failed"] == ["no more memory"]


def test_what_somebody_else_has_done_meanwhile_is_not_done_again() -> None:
    cluster = Cluster(PaperJob(rate=10.0, costs={"count": 0.01}, processes=3))
    assert "another command" in commanded(cluster, "grow", 3).failed[0]
    assert commanded(cluster, "shrink", 3).left == () and cluster.asked == []


def test_no_answer_in_time_is_an_outcome_but_the_end_of_the_job_ends_it() -> None:
    cluster = Cluster(PaperJob(rate=200.0, costs={"count": 0.01}))
    cluster.refusals[AddProcesses] = MegaflowError("nothing was heard within 60 s")
    assert commanded(cluster, "grow", 3).failed == ("nothing was heard within 60 s",)
    cluster.refusals[AddProcesses] = PeerLost("gone")
    with pytest.raises(PeerLost):
        commanded(cluster, "grow", 3)
    cluster.refusals[AddProcesses] = PeerLost("gone")
    assert isinstance(steered(cluster)[-1], Decision)


def test_decisions_have_a_record_with_the_whole_reasoning() -> None:
    cluster = Cluster(PaperJob(rate=200.0, costs={"count": 0.01}), looks=5)
    grow = next(each for each in steered(cluster) if isinstance(each, Decision) and each.action == "grow")
    record = scaling_record(grow)
    assert record["processes"] == 3 and record["recommendation"]["workers"]["needed"] == pytest.approx(2.0)
    assert record["recommendation"]["reasons"][-1] == record["why"] == grow.why
