"""A checkpoint whose workers leave. The transcripts controller_checkpoint* show the others."""

from typing import Any

import pytest

from megaflow.control.checkpoint_messages import (
    CheckpointAbandoned,
    CheckpointBegun,
    CheckpointReady,
    CommitFailed,
    Committed,
    CutWritten,
    DurableOperator,
    PositionsAt,
    TokensAt,
    UnderWayAtJoin,
)
from megaflow.control.coordinator.base.events import Asked, Instruction, Mail, Reply
from megaflow.control.coordinator.base.job_state import NO_EVENT_TIME, Durable
from megaflow.control.coordinator.checkpoints.checkpoints import Checkpoints
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.coordinator.reading.spark_commits import Commits
from megaflow.control.coordinator.reading.watermarks import Watermarks
from megaflow.control.messages import CheckpointJob, Refused, Request, SplitEnd
from megaflow.control.reading_messages import SplitRead
from megaflow.durable.commits import SinkToken
from megaflow.megaphone.base.routing import Checkpoint
from megaflow.timely.communication.codec.encode import encode
from tests.control.coordinator.coordination import Coordination, issued

TABLE = 0, 1
WRITTEN, POSITIONS = CutWritten(1, (), (), 0.0), PositionsAt(1, ())


class Bench(Coordination):
    """The checkpoints of a job with two workers. One checkpoint has begun."""

    def __init__(self, **more: Any) -> None:
        """`more`: of the job's settings."""
        super().__init__()
        roster, stream = self.roster, self.stream
        durable = Durable((DurableOperator("count", len(TABLE), 1),), 1.0, **more)
        self.lines, commits = LinesToRead(roster, stream, (), False), Commits(roster, stream, 0, ())
        watermarks = Watermarks(NO_EVENT_TIME, stream, self.lines, commits, roster)
        self.all = Checkpoints("job", roster, stream, durable, commits, self.lines, watermarks)
        self.all.ask(Asked("client", Request(7, CheckpointJob())))
        self.begun = self.go_on()
        assert CheckpointBegun in map(type, self.begun)

    def go_on(self, frontier: int | None = None) -> list[Instruction]:
        """Act on what is possible some seconds later."""
        self.now += 10.0
        self.all.go_on(True, False, frontier, TABLE, self.now)
        self.all._check()
        return self.taken()

    def learn(self, worker: int, *reports: Any) -> None:
        for report in reports:
            self.all.learn(worker, report, self.now)
            assert self.taken() == []

    def leave(self, worker: int) -> list[Instruction]:
        self.all.left([worker], self.now)
        return self.taken()


@pytest.mark.parametrize("reports", [[], [WRITTEN], [POSITIONS]])
def test_a_checkpoint_is_given_up_if_one_has_left_whose_report_it_needs(reports: list[Any]) -> None:
    bench = Bench()
    bench.learn(0, WRITTEN, POSITIONS)
    bench.learn(1, *reports)
    reason = "worker 1 left before it was written"
    why = f"checkpoint 1 failed: {reason}; the last committed checkpoint stays valid"
    assert bench.leave(1) == [CheckpointAbandoned(1, reason), Reply("client", Refused(7, why))]
    status = bench.all.status(bench.now)
    assert status is not None and status.reason == reason and bench.all.under_way is None
    [begun] = [each for each in bench.go_on() if isinstance(each, CheckpointBegun)]
    assert (begun.checkpoint, begun.since) == (2, None), "the next one follows what that would have followed"


def test_it_does_not_need_one_that_has_reported() -> None:
    bench = Bench()
    bench.learn(1, WRITTEN, POSITIONS)
    assert bench.leave(1) == [] and bench.all.under_way
    bench.learn(0, WRITTEN, POSITIONS)
    assert [type(each) for each in bench.go_on()] == [CheckpointReady]


def test_prints_of_what_was_read_are_sent_until_a_commit_has_them() -> None:
    bench = Bench()
    bench.lines.learn(1, SplitRead(4, (), SplitEnd("print of 4")), False)
    for worker in (0, 1):
        bench.learn(worker, WRITTEN, POSITIONS)
    [ready] = bench.go_on()
    assert isinstance(ready, CheckpointReady) and ready.read == ((4, SplitEnd("print of 4")),)
    bench.lines.learn(0, SplitRead(5, (), SplitEnd("print of 5")), False)
    bench.lines.learn(0, SplitRead(6), False)
    bench.all.answered(CommitFailed(1, "the disk is full"), bench.now)
    assert dict(bench.lines.read) == {4: SplitEnd("print of 4"), 5: SplitEnd("print of 5")}, "it is sent again"
    bench.go_on()
    for worker in (0, 1):
        bench.learn(worker, CutWritten(2, (), (), 0.0), PositionsAt(2, ()))
    [ready] = bench.go_on()
    bench.lines.learn(0, SplitRead(7, (), SplitEnd("print of 7")), False)
    bench.all.answered(Committed(2), bench.now)
    assert isinstance(ready, CheckpointReady) and len(ready.read) == 2
    assert bench.lines.read == ((7, SplitEnd("print of 7")),)
    assert bench.lines.state.read == dict(bench.lines.read), "the next coordinator goes on with the others"
    bench.all.at_end(TABLE)
    begun = bench.taken()[-1]
    assert isinstance(begun, CheckpointBegun) and begun.read == bench.lines.read


def test_a_command_names_the_last_delivery_of_each_sink() -> None:
    old = ("box", 3, ("x",)), ("heap", 2, ("y",))
    bench = Bench(committed=3, sinks=("box", "heap"), last=old)
    assert issued(bench.begun) == [Checkpoint(4, 3, last=old)]
    tokens = [SinkToken("box", 4, encode(name), worker) for worker, name in enumerate("ba")]
    for worker in (0, 1):
        bench.learn(worker, CutWritten(4, (), (), 0.0), PositionsAt(4, ()), TokensAt(4, (tokens[worker],)))
    assert CheckpointReady in map(type, bench.go_on())
    bench.all.answered(CommitFailed(4, "the disk is full"), bench.now)
    assert issued(bench.go_on()) == [Checkpoint(5, 3, last=old)], "it was not delivered"
    for worker in (0, 1):
        bench.learn(worker, CutWritten(5, (), (), 0.0), PositionsAt(5, ()), TokensAt(5, (tokens[worker],)))
    assert CheckpointReady in map(type, bench.go_on())
    bench.all.answered(Committed(5), bench.now)
    new = ("box", 5, ("a", "b")), old[1]
    state = bench.all.state(bench.now)
    assert state is not None and state.last == new
    bench.taken()
    after = Bench(sinks=("box", "heap"))
    after.all.under_way = None
    after.all.resume(state)
    assert issued(after.go_on()) == [Checkpoint(6, 5, last=new)]
    after.all.joined([2])
    [mail] = after.taken()
    assert mail == Mail(2, UnderWayAtJoin(mail.body.epoch, 6, 5, new))  # type: ignore[union-attr]
