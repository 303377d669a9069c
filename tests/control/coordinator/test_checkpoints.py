"""What comes of a checkpoint whose workers go; how others go: the transcripts controller_checkpoint*."""

from typing import Any

import pytest

from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointReady,
    CutWritten,
    DurableOperator,
    PositionsAt,
)
from megaflow.control.coordinator.checkpoints import Checkpoints
from megaflow.control.coordinator.epoch_clock import CommandStream
from megaflow.control.coordinator.events import Asked, Instruction, Reply
from megaflow.control.coordinator.job_state import NO_EVENT_TIME, Durable
from megaflow.control.coordinator.lines_to_read import LinesToRead
from megaflow.control.coordinator.roster import Roster
from megaflow.control.coordinator.spark_commits import Commits
from megaflow.control.coordinator.watermarks import Watermarks
from megaflow.control.messages import CheckpointJob, Refused, Request
from megaflow.timely.membership import founding

TABLE = 0, 1
WRITTEN, POSITIONS = CutWritten(1, (), (), 0.0), PositionsAt(1, ())


class Bench:
    """The checkpoints of a job with two workers, of which one has begun."""

    def __init__(self) -> None:
        roster = Roster(founding([0, 1]), [(0,), (1,)], [])
        durable = Durable((DurableOperator("count", len(TABLE), 1),), 1.0)
        stream = CommandStream()
        lines, commits = LinesToRead(roster, stream, (), False), Commits(0, None)
        watermarks = Watermarks(NO_EVENT_TIME, stream, lines, commits, roster)
        self.all = Checkpoints("job", roster, stream, durable, commits, lines, watermarks)
        self.now = 0.0
        self.all.ask(Asked("client", Request(7, CheckpointJob())))
        assert CheckpointBegun in map(type, self.go_on())

    def go_on(self, frontier: int | None = None) -> list[Instruction]:
        """Do what can be done some seconds later."""
        out: list[Instruction] = []
        self.now += 10.0
        self.all.go_on(True, False, frontier, TABLE, out, self.now)
        self.all._check()
        return out

    def learn(self, worker: int, *reports: Any) -> None:
        for report in reports:
            out: list[Instruction] = []
            self.all.learn(worker, report, out, self.now)
            assert out == []

    def leave(self, worker: int) -> list[Instruction]:
        out: list[Instruction] = []
        self.all.left([worker], out, self.now)
        return out


@pytest.mark.parametrize("reports", [[], [WRITTEN], [POSITIONS]])
def test_a_checkpoint_is_given_up_if_one_has_left_whose_report_it_needs(reports: list[Any]) -> None:
    bench = Bench()
    bench.learn(0, WRITTEN, POSITIONS)
    bench.learn(1, *reports)
    reason = "worker 1 left before it was written"
    why = f"checkpoint 1 failed: {reason}; the last committed checkpoint stays valid"
    assert bench.leave(1) == [CheckpointAbandoned(1, reason), Reply("client", Refused(7, why))]
    status = bench.all.status(bench.now)
    assert status is not None and status.reason == reason and not bench.all.under_way
    [begun] = [each for each in bench.go_on() if isinstance(each, CheckpointBegun)]
    assert (begun.checkpoint, begun.since) == (2, None), "the next one follows what that would have followed"


def test_it_does_not_need_one_that_has_reported() -> None:
    bench = Bench()
    bench.learn(1, WRITTEN, POSITIONS)
    assert bench.leave(1) == [] and bench.all.under_way
    bench.learn(0, WRITTEN, POSITIONS)
    assert [type(each) for each in bench.go_on()] == [CheckpointReady]
