"""The source of lines: the epochs of its records, when it holds back, and its reports."""

from pathlib import Path
from typing import Any, cast

import pytest

from megaflow.connect import Idle
from megaflow.control.checkpoint_messages import PositionsAt
from megaflow.control.coordinator.base.job_state import IDLE_SECONDS
from megaflow.control.latency import LatencyMeter
from megaflow.control.messages import (
    Busy,
    CommitBatch,
    CommitTaken,
    EndOfLines,
    PushedEnded,
    ReadPushed,
    Split,
    Withdraw,
)
from megaflow.control.reading_messages import (
    AssignPartitions,
    AssignSplits,
    RevokeSplits,
    SplitRead,
    SplitsReturned,
    SplitsRevoked,
)
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.control.watermark_messages import MaximaSeen, MaximaTold, PartitionsIdle, TellMaxima
from megaflow.job.files.splits import plan_splits
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.job.worker.reading import line_queue
from megaflow.job.worker.reading.line_queue import BATCH_BYTES, LineQueue
from megaflow.job.worker.reading.source_operator import (
    BATCHES_PER_ACTIVATION,
    BATCHES_PER_EPOCH,
    LAG_LIMIT_EPOCHS,
    WAITING_RECORDS_MAX,
    LineSource,
)
from megaflow.job.worker.reading.staging import Staging
from megaflow.megaphone.base.event_inputs import carries
from megaflow.megaphone.base.routing import Checkpoint, Move, Numbered
from megaflow.stream import Stream
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.pact import Pipeline
from megaflow.timely.dataflow.probe import ProbeHandle
from tests.job.by_hand import Clock, lone_worker, settle
from tests.job.worker.scripted_source import Scripted, source_partitions


class Launcher:
    """A launcher that keeps up, or not. The tests push its lines."""

    has_room = True


class View:
    """A stateful operator in which `count` records wait for their time."""

    waiting = 0


class Bench:
    """A source on a lone worker, whose surroundings the test controls."""

    def __init__(
        self, rate: float | None = None, laggard: bool = False, sluggish: bool = False,
        scripted: Scripted | None = None, timed: bool = False,
    ) -> None:  # fmt: skip
        """`scripted` is read as "numbers", beside the lines. If `timed`, the last words of lines are timestamps."""
        self.clock = Clock()
        self.worker = lone_worker(self.clock)
        self.staging = Staging(0)
        self.queue = LineQueue(self.staging, rate=rate)
        self.lateness = LatencyMeter()
        self.probe = ProbeHandle()
        self.launcher = Launcher()
        self.view = View()
        self.worker.stateful.append(cast(Any, self.view))
        self.reports: list[Any] = []
        self.seen: list[tuple[int, list[str]]] = []  # (epoch, batch)
        self.read: list[tuple[int, list[Any]]] = []  # the same, of a source
        self.control: InputHandle[Any] = InputHandle()
        self.late: InputHandle[Any] = InputHandle()  # what the probe sees, if the output is to lag
        self._commands = 0
        with self.worker.dataflow() as scope:
            source = LineSource(
                scope.input_from(self.control).port, self.worker, cast(LauncherDoor, self.launcher), self.queue,
                self.lateness, self.probe, self.reports.append,
            )  # fmt: skip
            self.source, self.activate = source, source.activate
            lines = Stream(source.lines)
            if timed:
                carries(lines.port, "")
                lines = lines.filter(lambda line: line != "none").event_time(lambda line: int(line.split()[-1]))
            if sluggish:
                lines = lines.unary(Pipeline(), "Sluggish", self.sluggish)
                scope.ref.graph.handoffs.bounds = Bounds(queue_records=1, window_records=1)
            lines = lines.inspect_batch(lambda time, batch: self.seen.append((int(str(time)), batch)))
            if scripted is not None:
                numbers = Stream(source.add_source("numbers", scripted))
                numbers = numbers.inspect_batch(lambda time, batch: self.read.append((int(str(time)), batch)))
                lines = lines.concat(numbers)
            (scope.input_from(self.late) if laggard else lines).probe_with(self.probe)
        if not laggard:
            self.late.close()

    def sluggish(self, capability: Any, info: Any) -> Any:
        """An operator that takes one batch for each allowance."""
        capability.release()
        self.allowance = 0
        self.activate_sluggish = info.activator.activate

        def logic(source: Any, output: Any) -> None:
            while self.allowance:
                self.allowance -= 1
                for time, batch in source:
                    output.session(time).give_batch(batch)
                    break

        return logic

    def command(self, body: object) -> None:
        self.control.send(Numbered(self._commands, body))
        self._commands += 1

    def tick(self, time: int, seconds: float = 0.01) -> None:
        self.clock.now += seconds
        self.worker.parked_seconds += seconds  # it had nothing to do meanwhile
        self.control.advance_to(time)
        settle(self.worker)

    def held_back(self) -> dict[str, float]:
        """Return the seconds for which each limit held the source back."""
        return {limit: round(sum, 6) for limit, sum in self.source.held_back.seconds(self.clock.now).items()}

    @property
    def lines(self) -> list[str]:
        return [line for _, batch in self.seen for line in batch]

    def told(self, kind: type) -> list[Any]:
        return [report for report in self.reports if isinstance(report, kind)]


def assign(bench: Bench, path: Path, lines: int) -> list[str]:
    """Give the source a file of `count` lines; return them."""
    wanted = [f"this is line {i}" for i in range(lines)]
    path.write_text("".join(line + "\n" for line in wanted))
    bench.command(AssignSplits({0: tuple(plan_splits([str(path)], 1))}))
    return wanted


def test_nothing_is_read_before_control_has_passed_an_epoch(tmp_path: Path) -> None:
    bench = Bench()
    wanted = assign(bench, tmp_path / "text", 10)
    bench.control.flush()
    settle(bench.worker)
    assert bench.seen == []
    bench.tick(1)
    assert bench.seen == [(0, wanted)]


def test_lines_are_stamped_with_the_last_epoch_that_control_has_passed() -> None:
    bench = Bench()
    bench.tick(7)
    bench.queue.push(["a"])
    bench.activate()
    settle(bench.worker)
    bench.tick(9)
    bench.queue.push(["b"])
    bench.activate()
    settle(bench.worker)
    assert bench.seen == [(6, ["a"]), (8, ["b"])]


def test_the_frontier_follows_control_though_there_is_nothing_to_read() -> None:
    bench = Bench()
    for time in (1, 2, 50):
        bench.tick(time)
        assert list(bench.probe.frontier.elements) == [time - 1]


def test_one_activation_reads_a_few_small_batches(tmp_path: Path) -> None:
    bench = Bench()
    assign(bench, tmp_path / "text", 20_000)
    bench.control.advance_to(1)
    bench.worker.step()
    while not bench.seen:
        bench.worker.step()
    assert len(bench.seen) == BATCHES_PER_ACTIVATION
    assert all(len("\n".join(batch)) <= BATCH_BYTES * 1.1 for _, batch in bench.seen)


def test_an_epoch_holds_a_bounded_number_of_batches(tmp_path: Path) -> None:
    bench = Bench()
    wanted = assign(bench, tmp_path / "text", 200_000)
    bench.tick(1)
    assert len(bench.seen) == BATCHES_PER_EPOCH
    time = 1
    while len(bench.lines) < len(wanted):
        time += 1
        bench.tick(time)
    assert bench.lines == wanted
    assert [report.number for report in bench.told(SplitRead)] == list(range(4))


def test_while_the_output_lags_each_tick_brings_one_batch(tmp_path: Path) -> None:
    bench = Bench(laggard=True)
    bench.tick(LAG_LIMIT_EPOCHS + 1)
    assign(bench, tmp_path / "text", 20_000)
    for time in range(LAG_LIMIT_EPOCHS + 2, LAG_LIMIT_EPOCHS + 12):
        bench.tick(time)
    assert [epoch for epoch, _ in bench.seen] == list(range(LAG_LIMIT_EPOCHS + 1, LAG_LIMIT_EPOCHS + 11))
    assert bench.held_back() == {"epochs": 0.09}
    bench.late.advance_to(LAG_LIMIT_EPOCHS)
    bench.tick(LAG_LIMIT_EPOCHS + 12)
    assert len(bench.seen) > 20, "it reads on at full speed when the output has caught up"


def test_while_the_output_lags_and_others_are_waited_for_here_nothing_is_read(tmp_path: Path) -> None:
    bench = Bench(laggard=True)
    bench.view.waiting = WAITING_RECORDS_MAX + 1
    bench.tick(LAG_LIMIT_EPOCHS + 1)
    assign(bench, tmp_path / "text", 20_000)
    for time in range(LAG_LIMIT_EPOCHS + 2, LAG_LIMIT_EPOCHS + 12):
        bench.tick(time)
    assert bench.seen == []
    bench.late.advance_to(LAG_LIMIT_EPOCHS)
    bench.tick(LAG_LIMIT_EPOCHS + 12)
    assert len(bench.seen) > 10, "what waits is no reason while the output keeps up: it may be meant to wait"


def test_without_room_nothing_is_read_but_time_goes_on(tmp_path: Path) -> None:
    bench = Bench()
    bench.launcher.has_room = False
    wanted = assign(bench, tmp_path / "text", 100)
    bench.tick(1)
    bench.tick(5)
    assert bench.seen == []
    assert list(bench.probe.frontier.elements) == [4]
    bench.launcher.has_room = True
    bench.tick(6, seconds=2.0)
    assert bench.seen == [(5, wanted)] and bench.held_back() == {"launcher": 2.01}
    bench.tick(7)
    assert bench.held_back() == {"launcher": 2.01}, "with nothing to read, nothing holds back"


def test_while_an_operator_after_it_has_enough_nothing_is_read_but_time_goes_on(tmp_path: Path) -> None:
    bench = Bench(sluggish=True)
    assign(bench, tmp_path / "text", 20_000)
    bench.control.advance_to(1)
    for time in range(2, 8):
        for _ in range(20):
            bench.worker.step()
        bench.control.advance_to(time)
    for _ in range(20):
        bench.worker.step()
    source = bench.worker.graphs()[0].nodes[1]
    assert source.name == "Lines" and list(bench.probe.frontier.elements) == [0], "what waits is of the first epoch"
    queues = bench.worker.graphs()[0].queues
    assert [len(queue.batches) for queue in queues if queue.batches] == [1]
    for count in (1, 2, 3):
        bench.allowance += 1
        bench.activate_sluggish()
        for _ in range(20):
            bench.worker.step()
        assert len(bench.seen) == count and [len(queue.batches) for queue in queues if queue.batches] == [1]
    assert [epoch for epoch, _ in bench.seen] == [0, 6, 6]
    bench.clock.now += 3.0
    assert bench.held_back() == {"queues": 3.0}


def test_the_end_closes_the_source_and_drops_what_is_unread(tmp_path: Path) -> None:
    bench = Bench()
    bench.launcher.has_room = False
    assign(bench, tmp_path / "text", 100)
    bench.tick(1)
    assert not bench.probe.done()
    bench.command(EndOfLines())
    bench.tick(2)
    assert bench.probe.done()
    assert bench.seen == []
    bench.control.close()
    settle(bench.worker)
    assert bench.worker.installed_dataflows == {}


def test_a_source_without_lines_stays_open_until_the_end() -> None:
    bench = Bench()
    bench.tick(100)
    assert not bench.probe.done()
    bench.command(EndOfLines())
    bench.tick(101)
    assert bench.probe.done()


def test_other_commands_and_other_workers_splits_are_none_of_its_business(tmp_path: Path) -> None:
    bench = Bench()
    path = tmp_path / "text"
    path.write_text("a\n")
    bench.command(Move(3, 0))
    bench.command(AssignSplits({5: tuple(plan_splits([str(path)], 1))}))
    bench.tick(1)
    assert bench.seen == []
    assert bench.reports == []


def test_committed_lines_are_read_from_the_commit_on_and_reported_when_sent() -> None:
    bench = Bench()
    bench.staging.stage(StageLines("q", "r", 0, 0, 7, 0, 2, "a\nb"), "executor")
    bench.staging.end(StageEnd("q", "r", 0, 0, 7, 0, 2), "executor")
    bench.tick(1)
    assert bench.seen == []
    bench.command(CommitBatch("q", "r", 0, {0: (0, 7, 2)}))
    bench.tick(2)
    assert bench.seen == [(1, ["a", "b"])]
    assert bench.told(CommitTaken) == [CommitTaken("q", 0)]


def stage_whole(bench: Bench, batch: int, lines: int) -> CommitBatch:
    """Stage a whole batch of small messages; return its commit."""
    for line in range(lines):
        bench.staging.stage(StageLines("q", "r", batch, 0, batch, 0, 1, f"line {line} of {batch}"), "executor")
    bench.staging.end(StageEnd("q", "r", batch, 0, batch, 0, lines), "executor")
    return CommitBatch("q", "r", batch, {0: (0, batch, lines)}, is_whole=True)


def test_whole_batches_enter_at_the_epochs_of_their_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_queue, "BATCH_BYTES", 20)
    bench = Bench()
    bench.launcher.has_room = False  # which may need a checkpoint after the batch
    bench.tick(1)
    bench.command(stage_whole(bench, 0, 300))
    bench.control.advance_to(4)
    bench.command(stage_whole(bench, 1, 5))
    bench.command(Checkpoint(1, 5))
    bench.control.advance_to(9)
    while len(bench.seen) < 5:
        bench.worker.step()
    assert len(bench.lines) < 300 and [*bench.probe.frontier.elements] == [1], "the rest comes at the same epoch"
    settle(bench.worker)
    assert {epoch for epoch, _ in bench.seen} == {1, 4}
    assert [sum(len(batch) for epoch, batch in bench.seen if epoch == each) for each in (1, 4)] == [300, 5]
    assert [type(each) for each in bench.reports if not isinstance(each, Busy)] == [
        CommitTaken, CommitTaken, PositionsAt,
    ]  # fmt: skip
    assert [*bench.probe.frontier.elements] == [8]


def test_a_whole_batch_is_read_to_its_end_before_the_source_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_queue, "BATCH_BYTES", 20)
    bench = Bench()
    bench.tick(1)
    bench.command(stage_whole(bench, 0, 100))
    bench.command(EndOfLines())
    bench.control.close()
    settle(bench.worker)
    assert len(bench.lines) == 100 and bench.probe.done()


def test_a_busy_source_says_so_ten_times_a_second(tmp_path: Path) -> None:
    bench = Bench()
    bench.launcher.has_room = False
    assign(bench, tmp_path / "text", 100)
    for time in range(1, 101):
        bench.tick(time, seconds=0.01)
    assert len(bench.told(Busy)) in (10, 11)


def test_an_idle_source_is_silent() -> None:
    bench = Bench()
    for time in range(1, 20):
        bench.tick(time)
    assert bench.reports == []


def test_at_a_rate_lines_come_when_due_and_lateness_counts_from_then() -> None:
    bench = Bench(rate=100.0)
    bench.queue.push([str(i) for i in range(1000)])
    bench.tick(1)
    start = bench.clock.now
    assert bench.lines == ["0"]
    bench.tick(2, seconds=0.1)
    assert bench.lines == [str(i) for i in range(11)]
    bench.lateness.settle(1, start + 0.5)
    bench.lateness.settle(2, start + 0.5)
    recent = bench.lateness.log.recent()
    assert recent.lines == 11
    assert recent.max_ms == pytest.approx(500)
    assert recent.quantile(0.5) == pytest.approx(490, rel=0.05), "line 1 was due after 10 ms, and leads its batch"


def test_at_a_rate_the_source_wakes_itself_when_the_next_line_is_due() -> None:
    bench = Bench(rate=10.0)
    bench.queue.push([str(i) for i in range(3)])
    bench.tick(1)
    assert bench.lines == ["0"]
    bench.clock.now += 0.11
    settle(bench.worker)
    assert bench.lines == ["0", "1"]


def test_a_withdrawn_source_hands_its_splits_back_and_closes(tmp_path: Path) -> None:
    bench = Bench(rate=100.0)
    wanted = assign(bench, tmp_path / "text", 2000)
    bench.tick(1)
    bench.tick(2, seconds=0.5)
    assert bench.lines == wanted[:51]
    bench.command(Withdraw((0,)))
    bench.tick(3, seconds=0.0)
    assert bench.lines == wanted[:51]
    [returned] = bench.told(SplitsReturned)
    assert bench.probe.done(), "it holds no capability any more"
    other = Bench()
    other.command(AssignSplits({0: returned.splits}))
    other.tick(1)
    assert bench.lines + other.lines == wanted
    read = {report.number for report in [*bench.told(SplitRead), *other.told(SplitRead)]}
    assert read == {0, 1, 2, 3}


def test_a_source_hands_back_what_it_is_told_to_before_it_says_where_it_is_and_reads_the_rest(tmp_path: Path) -> None:
    bench = Bench(rate=100.0)
    wanted = assign(bench, tmp_path / "text", 2000)
    bench.tick(1)
    bench.tick(2, seconds=0.5)
    bench.command(RevokeSplits({0: (0, 3), 1: (1,)}))
    bench.command(RevokeSplits({1: (2,)}))
    bench.command(Checkpoint(1, None))
    bench.tick(3, seconds=0.0)
    assert bench.lines == wanted[:51], "it was reading split 0, and reads no further"
    [revoked], [position] = bench.told(SplitsRevoked), bench.told(PositionsAt)
    assert [split.number for split in revoked.splits] == [0, 3] and revoked.splits[0].start > 0
    assert [split.number for split in position.splits] == [1, 2], "what is gone is not told of"
    assert bench.reports.index(revoked) < bench.reports.index(position)
    bench.tick(4, seconds=100.0)
    assert not bench.probe.done(), "more may come"
    other = Bench()
    other.command(AssignSplits({0: revoked.splits}))
    other.tick(1)
    assert sorted(bench.lines + other.lines) == sorted(wanted)
    assert {report.number for report in bench.told(SplitRead)} == {1, 2}
    assert {report.number for report in other.told(SplitRead)} == {0, 3}


def test_withdrawn_source_reports_what_it_has_read(tmp_path: Path) -> None:
    bench = Bench()
    path = tmp_path / "text"
    path.write_text("a\nb\nc\n")
    bench.command(AssignSplits({0: (Split(0, str(path), 0, 6, "orders"),)}))
    bench.tick(1)
    bench.command(Withdraw((0,)))
    bench.tick(2)
    [returned] = bench.told(SplitsReturned)
    assert returned.taken == {"orders": 3}


def test_a_withdrawn_source_without_splits_says_so_too() -> None:
    bench = Bench()
    bench.tick(1)
    bench.command(Withdraw((3, 0)))
    bench.tick(2)
    assert bench.told(SplitsReturned) == [SplitsReturned(())]
    bench.tick(9)
    assert len(bench.told(SplitsReturned)) == 1


def test_another_workers_withdrawal_is_none_of_its_business(tmp_path: Path) -> None:
    bench = Bench()
    wanted = assign(bench, tmp_path / "text", 10)
    bench.command(Withdraw((1,)))
    bench.tick(1)
    assert bench.lines == wanted
    assert bench.told(SplitsReturned) == []
    assert not bench.probe.done()


def test_what_the_launcher_pushes_changes_hands_between_epochs() -> None:
    old, new = Bench(), Bench()
    old.queue.expect_pushed()
    old.queue.push(["a"])
    old.tick(5)
    old.command(Withdraw((0,)))
    old.tick(7)
    old.queue.push(["b"])
    old.activate()
    settle(old.worker)
    assert old.seen == [(4, ["a"]), (6, ["b"])] and old.told(SplitsReturned) == [], "more may come"
    old.queue.end_pushed(elsewhere=True)
    old.activate()
    settle(old.worker)
    assert [type(report) for report in old.reports if not isinstance(report, Busy)] == [PushedEnded, SplitsReturned]
    assert old.told(PushedEnded) == [PushedEnded(elsewhere=True)] and old.probe.done()
    new.tick(3)  # it has not seen this part of control yet
    new.command(ReadPushed(1))
    new.tick(6)
    assert not new.queue.expects_pushed
    new.tick(7)
    new.command(ReadPushed(0))  # issued after control has reached 7, the last epoch that the old one has seen
    new.tick(8)
    new.queue.push(["c"])
    new.activate()
    settle(new.worker)
    assert new.queue.expects_pushed and new.seen == [(7, ["c"])]


def test_a_withdrawn_source_takes_in_what_is_committed_first() -> None:
    bench = Bench()
    bench.launcher.has_room = False
    bench.staging.stage(StageLines("q", "r", 0, 0, 7, 0, 2, "a\nb"), "executor")
    bench.staging.end(StageEnd("q", "r", 0, 0, 7, 0, 2), "executor")
    bench.command(CommitBatch("q", "r", 0, {0: (0, 7, 2)}))
    bench.tick(1)
    bench.command(Withdraw((0,)))
    bench.tick(2)
    assert bench.told(SplitsReturned) == []
    bench.launcher.has_room = True
    bench.tick(3)
    assert bench.seen == [(2, ["a", "b"])]
    assert [type(report) for report in bench.reports if not isinstance(report, Busy)] == [CommitTaken, SplitsReturned]
    assert bench.probe.done()


def test_a_source_is_read_beside_the_lines_and_comes_out_by_itself(tmp_path: Path) -> None:
    bench = Bench(scripted=Scripted(a=[2, 1], b=[1]))
    wanted = assign(bench, tmp_path / "text", 2)
    bench.command(AssignPartitions({0: (*source_partitions("a", "b"),), 7: (*source_partitions("c"),)}))
    bench.tick(1)
    assert bench.lines == wanted and {time for time, _ in bench.read} == {0}
    assert sorted(batch for _, batch in bench.read) == [["a0", "a1"], ["a2"], ["b0"]]
    assert sorted(report.number for report in bench.told(SplitRead)) == [-2, -1, 0]
    bench.command(EndOfLines())
    bench.tick(2)
    assert bench.probe.done(), "it holds the capability of no output any more"


def test_a_partition_that_is_idle_is_read_again_when_it_is_woken_or_its_time_has_come() -> None:
    wakes: list[Any] = []
    bench = Bench(scripted=Scripted(a=[Idle(on_ready=wakes.append), 1, Idle(after_seconds=0.5), 1, Idle()]))
    bench.command(AssignPartitions({0: (*source_partitions("a"),)}))
    bench.tick(1)
    bench.tick(2)
    assert not bench.read
    wakes[0]()
    settle(bench.worker)
    assert bench.read == [(1, ["a0"])]
    bench.clock.now += 0.4
    settle(bench.worker)
    assert len(bench.read) == 1
    bench.clock.now += 0.2
    settle(bench.worker)
    assert bench.read[1:] == [(1, ["a1"])], "a timer of the worker runs it"


def test_a_checkpoint_and_a_withdrawal_say_where_a_partition_is() -> None:
    scripted = Scripted(a=[2, Idle(after_seconds=9.0), 1])
    bench = Bench(scripted=scripted)
    bench.command(AssignPartitions({0: (*source_partitions("a"),)}))
    bench.tick(1)
    bench.command(Checkpoint(1, None))
    bench.tick(2)
    [left] = source_partitions("a")
    [told] = bench.told(PositionsAt)
    [kept] = told.partitions
    assert (kept.number, kept.partition, kept.position) == (-1, left.partition, encode(2))
    bench.command(Withdraw((0,)))
    bench.tick(3)
    [returned] = bench.told(SplitsReturned)
    assert returned.partitions == told.partitions and not scripted.readers and bench.probe.done()
    other = Bench(scripted=scripted)
    other.command(AssignPartitions({0: returned.partitions}))
    other.tick(1)
    assert other.read == [(0, ["a2"])] and scripted.opened == [("a", None), ("a", 2)]


def test_maxima_are_told_by_partition_as_soon_as_an_operator_takes_timestamps(tmp_path: Path) -> None:
    bench = Bench(timed=True)
    assign(bench, tmp_path / "text", 20)
    bench.queue.push(["this is 7", "none"])
    for time in (1, 2, 3):
        bench.tick(time, seconds=0.06)
    [seen] = bench.told(MaximaSeen)
    assert dict(seen.maxima) == {("split", 0): 19_000_000, ("pushed", ""): 7_000_000}
    assert dict(seen.firsts) == {("split", 0): 0}


def test_what_is_read_to_its_end_is_forgotten_though_no_record_of_it_came_to_an_operator(tmp_path: Path) -> None:
    scripted = Scripted(**{f"p{number}": [2, Idle(after_seconds=9.0), 1] for number in range(100)})
    bench = Bench(timed=True, scripted=scripted)
    assign(bench, tmp_path / "text", 20)
    bench.command(AssignPartitions({0: tuple(source_partitions(*scripted.answers))}))
    for time in range(1, 100):
        bench.tick(time, seconds=0.2)
    assert len(bench.told(SplitRead)) == 101 and bench.told(PartitionsIdle)
    assert not bench.source._events._unseen and not bench.source._events._idle


def test_without_timestamps_batches_are_plain_lists_and_nothing_is_told(tmp_path: Path) -> None:
    bench = Bench()
    assign(bench, tmp_path / "text", 20)
    for time in range(1, 200):
        bench.tick(time, seconds=0.06)
    assert not bench.told(MaximaSeen) and not bench.told(PartitionsIdle)
    assert bench.queue.lines_taken == 20


def test_what_is_held_back_is_not_idle_and_what_nobody_pushes_is(tmp_path: Path) -> None:
    bench = Bench(timed=True)
    bench.queue.pushed.partitions = (("pushed", ""),)
    bench.queue.expect_pushed()
    assign(bench, tmp_path / "text", 200_000)
    bench.tick(1)
    bench.launcher.has_room = False
    for time in range(2, 200):
        bench.tick(time, seconds=0.06)
    assert 0 < bench.queue.lines_taken < 200_000, "it is held back"
    assert bench.told(PartitionsIdle) == [PartitionsIdle((("pushed", ""),))]


def test_a_partition_that_has_nothing_is_idle_when_the_timeout_is_over_and_not_as_soon_as_it_is_given() -> None:
    """The same holds at the start of a job, before the launcher has room and anything may be read."""
    bench = Bench(timed=True, scripted=Scripted(a=[Idle()] * 1000))
    bench.launcher.has_room = False
    bench.command(AssignPartitions({0: (*source_partitions("a"),)}))
    bench.tick(1)
    given, time = bench.clock.now, 1
    while bench.clock.now < given + IDLE_SECONDS - 0.1:
        bench.tick(time := time + 1, seconds=0.06)
        assert not bench.told(PartitionsIdle), "it was given just now"
    for more in range(1, 10):
        bench.tick(time + more, seconds=0.06)
    assert bench.told(PartitionsIdle) == [PartitionsIdle((("partition", -1),))]


def test_one_whose_records_are_all_left_out_is_idle() -> None:
    bench = Bench(timed=True)
    bench.queue.expect_pushed()
    for time in range(1, 200):
        bench.queue.push(["none"])
        bench.activate()
        bench.tick(time, seconds=0.06)
    assert bench.told(PartitionsIdle) == [PartitionsIdle((("pushed", ""),))]
    bench.queue.push(["this is 5"])
    for time in range(200, 203):
        bench.tick(time, seconds=0.06)
    assert [dict(each.maxima) for each in bench.told(MaximaSeen)] == [{("pushed", ""): 5_000_000}]


def test_at_the_end_maxima_are_told_at_once_and_that_they_are(tmp_path: Path) -> None:
    bench = Bench(timed=True)
    assign(bench, tmp_path / "text", 20)
    for time in (1, 2, 3):
        bench.tick(time)
    bench.command(TellMaxima())
    bench.tick(4)
    assert bench.told(MaximaTold) == [MaximaTold()]
    told = [each for each in bench.reports if isinstance(each, MaximaSeen | MaximaTold)]
    assert told[-1] == MaximaTold() and dict(told[-2].maxima) == {("split", 0): 19_000_000}
