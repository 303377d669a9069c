"""A checkpoint is committed once it is complete. Failures are reported, and no job succeeds without its last one."""

import errno
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointReady,
    CommitFailed,
    Committed,
    CutFailed,
    CutWritten,
    DurableOperator,
    LeftOut,
    SinksCommitted,
)
from megaflow.control.launcher_messages import OutputClosed
from megaflow.durable.commits import Commit, OutputLength, SinkToken, token_name
from megaflow.errors import ProtocolError, StoreError
from megaflow.job.launcher.outputs.epoch_merge import Mark
from megaflow.job.launcher.run.checkpointing import Checkpointing
from megaflow.job.launcher.run.machine import Machine
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.launcher.run.supervision import is_loss
from tests.words import says


class Bench:
    """Surroundings of the checkpoints: a store that commits on request with the results that the test gives."""

    def __init__(self) -> None:
        self.wall = 1.5e9  # seconds
        self.marks: list[Mark] = []
        self.told: list[Committed | CommitFailed] = []
        self.reports: list[str] = []
        self.asked: list[Commit] = []  # to be committed
        self._results: list[Committed | CommitFailed] = []
        self.keeper: Any = SimpleNamespace(
            latest=Commit(1, 0, 0, 1), path="kept", length=100, dropped=(),
            commit=lambda task: self.asked.append(task.commit),
            results=self._drain,
        )  # fmt: skip
        self.cut_back: list[int] = []
        self.committed: list[int] = []  # numbers passed to the output
        self._synced: list[tuple[Mark, int]] = []
        output: Any = SimpleNamespace(
            lengths=lambda length: (OutputLength("-", length),), put=self.marks.extend,
            cut_back=self.cut_back.append, committed=self.committed.append,
            synced=lambda: [self._synced.pop() for _ in self._synced[:]],
        )  # fmt: skip
        parts: Any = SimpleNamespace(
            keeper=self.keeper, output=output, report=self.reports.append, machine=Machine(wall=lambda: self.wall)
        )
        self.checkpoints = Checkpointing(parts, lambda mark: [mark], self.told.append)

    def begin(self, number: int, since: int | None = None, **more: bool) -> None:
        self.checkpoints.take(CheckpointBegun(number, 10 * number, since, (), (), 2, **more))

    def ready(self, number: int) -> None:
        self.checkpoints.take(CheckpointReady(number, (), (), ()))

    def sync(self, number: int) -> None:
        self._synced.append((Mark(number, 10 * number), 100))
        self.checkpoints.settle()

    def settle(self, result: Committed | CommitFailed) -> None:
        if isinstance(result, Committed):
            self.keeper.latest = self.asked[-1]
        self._results.append(result)
        self.checkpoints.settle()

    def _drain(self) -> list[Committed | CommitFailed]:
        results, self._results = self._results, []
        return results


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("synced_first", [False, True])
def test_it_is_committed_when_workers_and_output_are_there_in_any_order(bench: Bench, synced_first: bool) -> None:
    bench.begin(1)
    assert bench.marks == [Mark(1, 10)]
    (bench.sync if synced_first else bench.ready)(1)
    assert bench.asked == []
    (bench.ready if synced_first else bench.sync)(1)
    assert [commit.checkpoint for commit in bench.asked] == [1]
    bench.settle(Committed(1))
    assert bench.told == [Committed(1)] and bench.checkpoints.stopped is None and bench.cut_back == []


def test_a_commit_has_the_time_when_its_checkpoint_began(bench: Bench) -> None:
    bench.begin(1)
    bench.wall += 60
    bench.ready(1)
    bench.sync(1)
    [commit] = bench.asked
    assert commit.written_at - commit.begun_at == 60


def test_an_abandoned_one_is_not_committed_though_its_output_is_there(bench: Bench) -> None:
    bench.begin(1)
    bench.checkpoints.take(CheckpointAbandoned(1, "worker 1 has left"))
    bench.begin(2)
    bench.sync(1)
    bench.ready(2)
    assert bench.asked == []
    bench.sync(2)
    assert [commit.checkpoint for commit in bench.asked] == [2]


def test_failures_are_said_once_until_one_succeeds_and_end_the_job_after_a_while(bench: Bench) -> None:
    now = [1000.0]
    bench.checkpoints.parts.machine = Machine(now=lambda: now[0])

    def fail(number: int) -> None:
        bench.begin(number, bench.keeper.latest.checkpoint or None)
        bench.ready(number)
        bench.sync(number)
        bench.settle(CommitFailed(number, "the disk is full"))

    fail(1)
    now[0] += 300
    fail(2)
    assert bench.told == [CommitFailed(1, "the disk is full"), CommitFailed(2, "the disk is full")]
    [report] = bench.reports
    assert says(report, "checkpoint 1 failed: the disk is full", "continues")
    bench.begin(3)
    bench.ready(3)
    bench.sync(3)
    bench.settle(Committed(3))
    now[0] += 5000
    fail(4)
    assert len(bench.reports) == 2
    now[0] += 601
    with pytest.raises(StoreError, match=r"All checkpoints of the last 10 minutes failed: the disk is full"):
        fail(5)


def test_what_a_stop_brings_is_said(bench: Bench) -> None:
    assert says(bench.checkpoints.stopping, "last checkpoint", "a second signal ends the job")
    bench.begin(1)
    bench.checkpoints.take(CheckpointAbandoned(1, "worker 0: No space left on device"))
    assert "checkpoints fail (worker 0: No space left on device); retrying" in bench.checkpoints.stopping


def test_after_the_last_one_the_job_is_stopped(bench: Bench) -> None:
    bench.begin(1, last=True)
    bench.ready(1)
    bench.sync(1)
    assert bench.checkpoints.stopped is None
    bench.settle(Committed(1))
    assert bench.checkpoints.stopped is not None and not bench.checkpoints.is_waiting
    assert bench.cut_back == []  # the workers still produce output
    bench.checkpoints.end()
    assert bench.cut_back == [100]


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_store_forgets_tokens_once_all_are_committed(bench: Bench, is_kept: bool) -> None:
    bench.begin(1, last=True, sinks=("box", "rows"))
    token = SinkToken("rows", 1, b"token", 2)
    bench.checkpoints.take(CheckpointReady(1, (), (), (), tokens=(token,), committers=(2, 3)))
    bench.sync(1)
    bench.settle(Committed(1))
    bench.checkpoints.sinks_committed(SinksCommitted(3, 1))
    assert bench.checkpoints.stopped is None, "worker 2 is still committing"
    bench.checkpoints.sinks_committed(SinksCommitted(2, 1))
    assert bench.checkpoints.stopped is not None and len(bench.asked) == 1
    bench.checkpoints.end()
    assert bench.keeper.latest.tokens == (token,)
    assert bench.keeper.latest.delivered == (("box", 0), ("rows", 0))
    delivered = (("box", 0), ("rows", 1))
    tokens = (("rows", (token_name(b"token"),)),)
    last = replace(bench.keeper.latest, tokens=(), delivered=delivered, delivered_tokens=tokens)
    assert bench.asked == [bench.keeper.latest, last]
    assert bench.checkpoints.is_waiting
    bench.settle(Committed(1) if is_kept else CommitFailed(1, "the disk is full"))
    assert not bench.checkpoints.is_waiting and bench.told == [Committed(1)]
    said = ["the disk is full; the next run delivers the last rows again, and their marks decide"]
    assert bench.reports == ([] if is_kept else said)


def test_the_end_waits_for_the_parts_of_all_workers_and_for_the_output(bench: Bench) -> None:
    bench.checkpoints.ended(None)  # it left the job long ago
    whole = [CutWritten(1, (), (("count", (bin,)),), 0.1) for bin in range(2)]
    bench.checkpoints.ended(whole[0])  # another process coordinates, and reports this over another connection
    bench.checkpoints.take(CheckpointBegun(1, 10, None, (DurableOperator("count", 2),), (), 2, at_end=True))
    assert bench.marks == [Mark(1, float("inf"))]
    bench.checkpoints.ended(whole[1])
    bench.sync(1)
    assert bench.asked == []
    bench.checkpoints.end()
    (commit,) = bench.asked
    assert commit.ended and commit.operators[0].bases == (1, 1) and bench.checkpoints.is_waiting
    bench.settle(Committed(1))
    assert not bench.checkpoints.is_waiting


def test_an_end_that_cannot_be_kept_is_no_success(bench: Bench) -> None:
    bench.begin(1, at_end=True)
    bench.checkpoints.ended(CutFailed(1, "no space left"))
    with pytest.raises(StoreError, match="no space left"):
        bench.checkpoints.end()


@pytest.mark.parametrize(("number", "helps"), [(0, True), (errno.ENOSPC, True), (errno.EFBIG, False)])
def test_the_same_command_helps_unless_a_limit_is_reached(bench: Bench, number: int, helps: bool) -> None:
    bench.begin(1, at_end=True)
    bench.checkpoints.ended(CutFailed(1, "cannot write", number))
    with pytest.raises(StoreError) as raised:
        bench.checkpoints.end()
    assert is_loss(raised.value) is helps


def test_an_end_without_a_checkpoint_is_no_success(bench: Bench) -> None:
    with pytest.raises(StoreError, match="ended without a last checkpoint"):
        bench.checkpoints.end()


def test_what_does_not_belong_to_it_is_refused(bench: Bench) -> None:
    assert not bench.checkpoints.take("something else")
    with pytest.raises(ProtocolError, match="checkpoint 1 is not under way"):
        bench.ready(1)
    bench.begin(1)
    bench.ready(1)
    with pytest.raises(ProtocolError, match="checkpoint 2 begins while another one is under way"):
        bench.begin(2)


def test_after_a_hand_over_the_next_one_may_begin_before_the_word_that_the_last_one_was_abandoned(bench: Bench) -> None:
    bench.begin(1)
    bench.begin(2)
    bench.checkpoints.take(CheckpointAbandoned(1, "worker 1 has left"))
    bench.ready(2)
    bench.sync(2)
    assert [commit.checkpoint for commit in bench.asked] == [2]


def test_after_a_hand_over_all_words_of_one_that_was_abandoned_may_come_late(bench: Bench) -> None:
    bench.begin(2)
    bench.ready(2)
    marks = list(bench.marks)
    bench.begin(1)
    bench.checkpoints.take(CheckpointAbandoned(1, "worker 1: No space left on device"))
    assert bench.marks == marks
    bench.sync(2)
    assert [commit.checkpoint for commit in bench.asked] == [2]


def test_a_stop_counts_what_was_done_before_its_checkpoint(bench: Bench) -> None:
    checkpoints = bench.checkpoints
    checkpoints.counted(OutputClosed(0, 9, ((3, 5), (8, 1))))
    bench.begin(1, last=True)
    checkpoints.counted(OutputClosed(0, 12, ((9, 2), (11, 70))))
    checkpoints.counted(OutputClosed(1, 12, ((9, 4), (10, 70))))
    checkpoints.counted(OutputClosed(2, None, ((9, 30),)))
    checkpoints.ended(None, worker=2)  # its report covers all workers
    checkpoints.take(CheckpointReady(1, (), (), (), lines=12, left_out=LeftOut({"": 2}, late={"sum": 1})))
    bench.sync(1)
    bench.settle(Committed(1))
    summary = RunSummary(lines=100, records=30, skipped=Counter({"": 5}))
    checkpoints.sum_up(summary)
    assert (summary.stopped_at, summary.lines, summary.records) == (1, 112, 42)
    assert (summary.skipped, summary.late) == ({"": 7}, {"sum": 1})
