"""The coordinator's shell: events reach the controller, its instructions are carried out, members answer questions."""

from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from megaflow.control.coordinator.base.events import Asked, Gone, Mailed
from megaflow.control.coordinator.controller.controller import Controller
from megaflow.control.coordinator.controller.driver import TOPIC, WATCHING_MAX, ControllerDriver
from megaflow.control.coordinator.members.membership_requests import BY_COMMAND
from megaflow.control.latency import BOUNDS_SECONDS, LatencyMeter
from megaflow.control.launcher_messages import Draining, Reached, Started, StartProcesses, TryToReach
from megaflow.control.messages import (
    Accepted,
    AddProcesses,
    BinsInstalled,
    CommandProgress,
    CommitBatch,
    CommitRequest,
    Done,
    EndOfLines,
    PushedEnded,
    Reconfigure,
    Refused,
    RemoveWorker,
    Request,
    RoutingReady,
    StatusQuery,
    StopJob,
    TrialAnswer,
    TrialAsk,
    WatchQuery,
)
from megaflow.control.reports import (
    KEYS_REPORTED_MAX,
    Durations,
    LedgerEntry,
    OperatorLoad,
    OperatorStatus,
    UsefulTime,
    WorkerStatus,
)
from megaflow.control.shapes import conforms
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.job.worker.control.agent import BINS_REPORTED_MAX, Agent, operator_load, resident_bytes
from megaflow.job.worker.reading.staging import Staging
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.base.chunks import LedgerRow
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.routing import Bootstrap, Map, Move, Numbered, Watermark
from megaflow.megaphone.base.routing import Clock as ClockReading
from megaflow.megaphone.folds.load_meter import Load
from megaflow.scope import Scope
from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.local import LocalAllocator, LocalFabric
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.membership import Membership, founding
from megaflow.timely.rescale.messages import Aborted, Joined, Left
from megaflow.timely.worker import Worker
from tests.job.by_hand import Clock, lone_worker, settle


class Colour(Enum):
    RED = 1


class Client:
    """A connection that notes its answers."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, message: object) -> None:
        self.answers.append(message)


class Bench:
    """A coordinator on a lone worker, whose control stream is only inspected."""

    def __init__(self, staging: Staging | None = None) -> None:
        self.clock = Clock()
        self.worker = Worker(
            LocalFabric([0]).allocator(0), founding([0]), Scope, (self.clock, self.clock),
            processes={0: ("h", 1, (0,))},
        )  # fmt: skip
        self.started: list[Any] = []  # messages to the launcher
        self.control: InputHandle[Any] = InputHandle()
        self.seen: list[tuple[int, Any]] = []  # (epoch, command)
        self.probe = ProbeHandle()
        lacks = (staging or Staging(0)).missing
        self.agent = Agent(self.worker, "127.0.0.1:2101", lambda: 17, LatencyMeter(), lambda now: 0, lacks)
        with self.worker.dataflow() as scope:
            watched = scope.input_from(self.control).inspect_time(
                lambda time, record: self.seen.append((int(str(time)), record))
            )
            watched.probe_with(self.probe)
        controller = Controller("job", self.worker.membership, {"count": 4}, pushed=True)
        self.coordinator = ControllerDriver(
            self.worker, controller, self.control, "job", self.probe, self.started.append, ("h", 1)
        )
        self.client = Client()

    def change(self, event: Any) -> None:
        """Let the engine report a change of the membership."""
        self.worker.rescaling._emit(event)

    def commands(self) -> list[Any]:
        return [numbered.command for _, numbered in self.seen]

    def ask(self, id: int, body: object) -> None:
        self.coordinator.put(Asked(self.client, Request(id, body)))

    def turn(self, seconds: float = 0.01) -> float:
        self.clock.now += seconds
        settle(self.worker)
        open_times = self.probe.frontier.elements
        self.agent.turn(self.clock.now, None)
        settle(self.worker)
        wait = self.coordinator.turn(self.clock.now, int(str(open_times[0])) if open_times else None)
        settle(self.worker)
        return wait


def test_ticks_advance_the_control_stream() -> None:
    bench = Bench()
    waits = [bench.turn() for _ in range(5)]
    assert bench.control.time == 5
    assert all(0 < wait <= 0.01 for wait in waits)


def test_a_command_is_injected_at_one_epoch_and_answered_when_the_probe_has_passed_it() -> None:
    bench = Bench()
    bench.turn()
    bench.ask(3, Reconfigure((Move(1, 0),)))
    bench.turn()
    assert bench.seen == [(1, Numbered(0, Move(1, 0)))]
    assert bench.client.answers == [Accepted(3, 1)]
    bench.turn()
    (_, done) = bench.client.answers
    assert isinstance(done, Done)
    assert done.result.epoch == 1


def test_a_refusal_changes_nothing() -> None:
    bench = Bench()
    bench.ask(3, Reconfigure((Move(99, 0),)))
    bench.turn()
    assert bench.seen == []
    assert isinstance(bench.client.answers[0], Refused)


def test_a_commit_of_lines_that_were_never_staged_is_refused_and_one_of_staged_lines_issued() -> None:
    staging = Staging(0)
    bench = Bench(staging=staging)
    commit = CommitBatch("q", "r", 0, {0: (0, 7, 1)})
    bench.ask(3, CommitRequest(commit))
    for _ in range(3):
        bench.turn()
    (refused,) = bench.client.answers
    assert refused.id == 3 and "attempt 7 (query q, batch 0, partition 0), but it has none" in refused.reason
    staging.stage(StageLines("q", "r", 0, 0, 7, 0, 1, "a"), "an executor")
    staging.end(StageEnd("q", "r", 0, 0, 7, 0, 1), "an executor")
    bench.ask(4, CommitRequest(commit))
    for _ in range(3):
        bench.turn()
    assert [type(each) for each in bench.client.answers[1:]] == [Accepted, Done] and bench.commands() == [commit]


def test_a_commit_whose_lines_went_when_the_job_was_stopped_is_not_refused_for_that_would_fail_the_query() -> None:
    bench = Bench()
    bench.ask(3, StopJob())
    bench.ask(4, CommitRequest(CommitBatch("q", "r", 0, {0: (0, 7, 1)})))
    bench.coordinator.turn(bench.clock.now, 0)
    for _ in range(3):
        bench.turn()
    assert [type(each) for each in bench.commands()] == [Watermark, EndOfLines]  # the stop drains the waiting lines
    assert {answer.id for answer in bench.client.answers} == {3}


def test_the_launcher_is_told_that_somebody_has_asked_for_the_end() -> None:
    bench = Bench()
    bench.ask(3, StopJob())
    assert bench.started == [Draining()]


def test_a_commit_of_a_client_that_hangs_up_before_its_lines_are_found_is_forgotten() -> None:
    bench = Bench()
    bench.ask(3, CommitRequest(CommitBatch("q", "r", 0, {0: (0, 7, 1)})))
    bench.coordinator.put(Gone(bench.client))
    for _ in range(3):
        bench.turn()
    assert bench.client.answers == bench.commands() == []


def test_a_request_wakes_a_parked_worker() -> None:
    bench = Bench()
    bench.turn()
    bench.ask(1, StatusQuery())
    bench.worker.allocator.park(30.0)  # returns at once, or the test times out


def test_status_comes_from_the_members_themselves() -> None:
    bench = Bench()
    bench.ask(9, StatusQuery())
    for _ in range(3):
        bench.turn()
    (done,) = bench.client.answers
    assert done.id == 9
    (worker,) = done.result.workers
    assert (worker.id, worker.address, worker.lines) == (0, "127.0.0.1:2101", 17)


def test_loads_come_from_the_operators_themselves_and_only_when_asked_for() -> None:
    bench, records = Bench(), InputHandle[tuple[str, int]]()
    with bench.worker.dataflow() as scope:
        scope.input_from(records).stateful_state_machine(lambda k, v, s: (v, []), bins=4, name="count")
    records.send_batch([("a", 1), ("b", 2), ("a", 3)])
    records.close()
    for id, loads in ((9, False), (10, True)):
        bench.ask(id, StatusQuery(bins=True, loads=loads))
        bench.turn()
        bench.turn()
    without, with_loads = (answer.result.operators[0] for answer in bench.client.answers)
    assert without == OperatorStatus("count", 4, (0, 0, 0, 0))
    load = with_loads.load
    assert sum(load.records_per_second) == 3.0 and sum(load.keys) == 2 and all(size > 0 for size in load.bytes)
    assert [(key, records) for key, _, records, _ in load.hot_keys] == [("'a'", 2.0), ("'b'", 1.0)]


def test_installed_bins_are_reported_once_without_being_asked_for() -> None:
    class View:
        name, records, ready, barrier_actions, wants_clock, late, timers_dropped = "count", 0, True, None, False, 0, 0
        rows: ClassVar = [LedgerRow(3, 7, 1, 0, 100, 5, 0.25)]

        def take_ledger(self) -> list[LedgerRow]:
            rows, self.rows = self.rows, []
            return rows

    bench = Bench()
    heard: list[Any] = []
    bench.worker.stateful.append(View())
    bench.coordinator.reported = lambda source, body: heard.append(Mailed(source, body))  # type: ignore[method-assign]
    for _ in range(2):
        bench.agent.turn(bench.clock.now, None)
        settle(bench.worker)
    assert heard == [Mailed(0, BinsInstalled((LedgerEntry("count", 3, 7, 1, 0, 100, 5, 0.25),)))]


def test_status_sums_facts_since_the_worker_began() -> None:
    class View:
        name, records, ready, barrier_actions, wants_clock, late, timers_dropped = "count", 0, True, None, False, 0, 0

        def take_ledger(self) -> list[LedgerRow]:
            return [LedgerRow(3, 7, 1, 0, 100, 5, 0.25), LedgerRow(4, 7, 1, 0, 100, 5, 0.001)]

    clock, lateness = Clock(), LatencyMeter()
    worker = lone_worker(clock)
    agent = Agent(
        worker, "h:1", lambda: 3, lateness, _blocked=lambda now: {"queues": now + 2.5}, _resident=lambda: 4096
    )
    nothing = agent.status(1).status
    assert (nothing.outputs, nothing.arrived, nothing.pauses, nothing.latencies) == ({}, {}, Durations(), Durations())
    assert (nothing.memory_bytes, nothing.blocked_seconds) == (4096, {"queues": clock.now + 2.5})
    lateness.begin(0, clock.now, 7)
    clock.now += 0.02
    worker.stateful.append(View())
    for _ in range(2):
        agent.turn(clock.now, None)
    worker.stateful.clear()
    agent.outputs = lambda: {"": 5}
    status = agent.status(2).status
    assert (status.outputs, status.arrived) == ({"": 5}, {"count": 4})
    assert dict(zip(BOUNDS_SECONDS, status.pauses.counts)) == dict.fromkeys(BOUNDS_SECONDS, 0) | {0.001: 2, 0.25: 2}
    assert status.pauses.seconds == pytest.approx(0.502)
    assert dict(zip(BOUNDS_SECONDS, status.latencies.counts))[0.025] == 7
    assert status.latencies.seconds == pytest.approx(0.14, rel=0.04)
    assert conforms(status, WorkerStatus)


def test_a_process_knows_its_memory() -> None:
    before = resident_bytes()
    assert before is not None and before > 1 << 20
    kept = b"x" * (64 << 20)
    after = resident_bytes()
    assert after is not None and after > before + len(kept) / 2


def test_late_records_are_counted_for_each_operator_and_told_of_once_unless_the_program_has_them() -> None:
    worker = lone_worker(Clock())
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        for name in ("first", "second", "third"):
            stream.stateful_state_machine(lambda key, value, state: (value, []), bins=4, name=name)
    told: list[str] = []
    agent = Agent(worker, "h:1", lambda: 3, LatencyMeter(), _tell_once=lambda about, text: told.append(text))
    _, second, third = worker.stateful
    third.late_is_taken = True
    second.open_windows = third.open_windows = lambda: 0
    for late in (0, 2, 5):
        second.late = third.late = late
        agent.turn(0.0, 0)
    late_by_name = {name: use.late for name, use in agent.status(1).status.useful.items()}
    assert late_by_name == {"first": 0, "second": 5, "third": 5}
    assert len(told) == 1 and "'second'" in told[0] and "control status` counts them" in told[0]
    handle.close()


def test_timers_that_are_dropped_at_the_end_are_told_of_once_for_each_operator() -> None:
    worker = lone_worker(Clock())
    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        for name in ("first", "second"):
            stream.stateful_unary(lambda key, time, values, state, timers: (None, []), bins=4, name=name)
    told: list[str] = []
    agent = Agent(worker, "h:1", lambda: 3, LatencyMeter(), _tell_once=lambda about, text: told.append(text))
    for dropped in (0, 2, 5):
        worker.stateful[1].store.events.dropped = dropped
        agent.turn(0.0, 0)
    assert len(told) == 1 and "'second' set 2 timers on one worker" in told[0]
    handle.close()


def test_the_status_tells_useful_time_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    worker = lone_worker(clock)

    def fold(key: str, value: int, state: int | None) -> tuple[int | None, list[Any]]:
        clock.now += 0.25
        return value, []

    def park(self: LocalAllocator, seconds: float | None) -> None:
        clock.now += 7.0

    with worker.dataflow() as scope:
        handle, stream = scope.new_input()
        stream.stateful_state_machine(fold, bins=4, name="count")
    lateness = LatencyMeter()
    agent = Agent(worker, "h:1", lambda: 3, lateness, lambda now: 17)
    monkeypatch.setattr(LocalAllocator, "park", park)
    handle.send_batch([("a", 1), ("b", 2)])
    lateness.begin(0, clock.now, 2)
    handle.advance_to(1)
    settle(worker)
    agent.turn(clock.now, 1)
    first = agent.status(1).status
    assert first.useful == {"count": UsefulTime(2, 0.5)}
    assert (first.busy_seconds, first.done, first.waiting) == (0.5, 2, 17)
    worker.step_or_park(None)
    second = agent.status(2).status
    assert (second.now - first.now, second.busy_seconds, worker.parked_seconds) == (7.0, 0.5, 7.0)
    assert (second.useful, second.done, second.waiting) == (first.useful, 2, 17)


def test_when_the_lines_are_over_the_end_is_announced_and_control_closes() -> None:
    bench = Bench()
    bench.turn()
    bench.worker.rescaling.report(PushedEnded())
    bench.turn()
    bench.turn()
    assert [command.command for _, command in bench.seen] == [Watermark(INFINITE), EndOfLines()]
    assert bench.probe.done()
    assert bench.worker.installed_dataflows == {}


BOTH = Membership(1, frozenset({0, 1}), 0)


def test_a_process_is_started_joins_and_is_given_its_table() -> None:
    bench = Bench()
    bench.ask(1, AddProcesses(1))
    bench.turn()
    assert bench.started == [StartProcesses(1, "h", 1, 0)]
    bench.coordinator.put(Started((("h", 5),)))
    bench.change(Joined(1, (1,), BOTH, ("h", 5, (1,)), {"connect": 0.5}, 900))
    bench.turn()
    assert bench.commands() == [Bootstrap(0, 1)]
    bench.coordinator.reported(1, RoutingReady(1))
    bench.turn()
    *progress, done = bench.client.answers
    assert [type(message) for message in progress] == [CommandProgress] * 3
    assert isinstance(done, Done) and done.result.joins[0].seconds["connect"] == 0.5


def joined_and_taught() -> Bench:
    """A controller that believes in a second worker, which the engine does not know."""
    bench = Bench()
    bench.change(Joined(1, (1,), BOTH, ("h", 5, (1,))))
    bench.coordinator.reported(1, RoutingReady(1))
    bench.turn()
    return bench


def test_a_leave_goes_to_the_engine_whose_refusal_is_passed_on() -> None:
    bench = joined_and_taught()
    bench.ask(1, RemoveWorker(1))
    bench.turn()
    bench.turn()
    assert bench.commands() == []
    *_, refused = bench.client.answers
    assert isinstance(refused, Refused) and refused.reason.startswith("there is no worker 1")


def test_a_process_that_has_left_is_no_member() -> None:
    bench = joined_and_taught()
    bench.change(Left(2, (1,), Membership(2, frozenset({0}), 0)))
    bench.ask(1, Reconfigure((Map((0, 0, 0, 1)),)))
    bench.turn()
    (refused,) = bench.client.answers
    assert isinstance(refused, Refused) and "the workers are 0" in refused.reason


def test_the_engine_asks_before_a_join_and_a_join_it_gives_up_is_not_waited_for() -> None:
    bench = Bench()
    bench.turn()
    ruled: list[tuple[tuple[int, ...], str | None]] = []
    bench.worker.rescaling.coordination.rule = lambda ids, reason: ruled.append((ids, reason))  # type: ignore[method-assign]
    bench.coordinator.leave_due((0,))
    bench.coordinator.join_due((1,), ("h", 5))
    bench.turn()
    assert bench.started == [TryToReach("h", 5)]
    bench.coordinator.put(Reached("h", 5))
    bench.turn()
    bench.worker.rescaling.report(PushedEnded())
    for _ in range(3):
        bench.turn()
    assert ruled == [((0,), BY_COMMAND), ((1,), None)] and not bench.probe.done()
    bench.change(Aborted(1, (1,), "the connection to it ended"))
    bench.turn()
    assert bench.probe.done()
    bench.coordinator.join_due((2,), ("h", 6))
    bench.turn()
    assert "too late" in (ruled[-1][1] or "")


def test_watchers_wait_for_the_next_event_up_to_a_number_of_them() -> None:
    bench = Bench()
    bench.turn()
    for id in range(WATCHING_MAX + 1):
        bench.ask(id, WatchQuery(0, 2))  # the first event, of the coordinator's start, is seen
    bench.turn()
    [refused] = bench.client.answers
    assert isinstance(refused, Refused) and refused.id == WATCHING_MAX
    bench.turn(2.0)
    done = [each for each in bench.client.answers if isinstance(each, Done)]
    assert len(done) == WATCHING_MAX and all(each.result.events == () for each in done), "after a second, without news"


@dataclass
class LastState:
    epoch: int
    feed: Any = None


def test_what_is_reported_as_the_coordinator_resigns_goes_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    given: list[tuple[int, object]] = []
    rescaling = bench.worker.rescaling
    monkeypatch.setattr(rescaling.coordination, "give_up", lambda reason: bench.coordinator.reported(0, "the last"))
    monkeypatch.setattr(rescaling, "hand_over", lambda luggage, reports: given.extend(reports))
    bench.coordinator.reported(0, "the first")
    word: Any = SimpleNamespace(state=LastState(bench.control.time), pending=())
    bench.coordinator._leave(word)
    assert given == [(0, "the first"), (0, "the last")]


def test_a_worker_that_has_joined_tells_once_when_its_operators_know_their_tables() -> None:
    class View:
        records = 0
        ready = False
        bootstrap_seconds = 0.25
        barrier_actions = None
        wants_clock = False
        late = timers_dropped = 0

        def take_ledger(self) -> list[Any]:
            return []

    bench, view = Bench(), View()
    heard: list[Any] = []
    bench.worker.stateful.append(view)
    bench.coordinator.reported = lambda source, body: heard.append(Mailed(source, body))  # type: ignore[method-assign]
    told: list[str] = []
    bench.agent.joined(lambda: told.append("ready"))
    for ready in (False, True, True):
        view.ready = ready
        bench.agent.turn(bench.clock.now, None)
        settle(bench.worker)
    assert heard == [Mailed(0, RoutingReady(0, 0.25))] and told == ["ready"]


def test_a_trial_goes_on_in_slices_between_the_steps_and_answers_when_it_is_over() -> None:
    bench = Bench()
    store = BinStore(2)
    for bin in range(2):
        store.install(bin, [])
    for key in range(2000):
        store.create(key, [key])
    view = SimpleNamespace(
        name="count", store=store, barrier_actions=None, take_ledger=list, records=0, wants_clock=False, late=0,
        timers_dropped=0,
    )
    bench.worker.stateful.append(view)
    heard: list[Any] = []
    bench.coordinator.reported = lambda source, body: heard.append((source, body))  # type: ignore[method-assign]
    slices = []

    def ask(question: TrialAsk) -> TrialAnswer:
        bench.worker.post(0, TOPIC, question)
        settle(bench.worker)
        slices.append(0)
        assert bench.agent.trials
        while bench.agent.trials:
            began = bench.clock.now
            bench.agent.turn(began, None)
            assert bench.clock.now - began < 0.005
            bench.clock.now += 1.0
            slices[-1] += 1
        settle(bench.worker)
        source, answer = heard.pop()
        assert source == 0 and not heard
        return answer  # type: ignore[no-any-return]

    bench.clock.step = 0.0001  # at each reading
    assert ask(TrialAsk(0, 7, (0, 1))) == TrialAnswer(0, 7, None, ())
    assert slices[-1] > 1
    store.states[1999] = [Colour.RED]
    assert ask(TrialAsk(0, 8, (0, 1))) == TrialAnswer(0, 8, None, ((tags.ENUM, __name__, "Colour"),))
    assert ask(TrialAsk(0, 9, (), ((tags.ENUM, __name__, "Colour"),))).fault is None
    assert "imported no app Colour" in (ask(TrialAsk(0, 10, (), ((tags.ENUM, "app", "Colour"),))).fault or "")
    store.states[1000] = [open]
    fault = ask(TrialAsk(0, 11, (0, 1))).fault
    assert fault is not None and fault.startswith("count: the state of key 1000 cannot be encoded: ")
    assert store.states[1000] == [open] and len(store.states) == 2000


def part(
    name: str, load: Load, keys: dict[int, int] | None = None, sizes: dict[int, int] | None = None
) -> OperatorLoad:
    return operator_load(name, load, keys or {}, sizes or {}, lambda key: len(str(key)))


def test_a_part_has_each_bin_with_records_or_keys_the_busiest_first_and_travels() -> None:
    load = Load({1: (5.0, 0.001), 2: (7.0, 0.25), 4: (9.0, 0.001)}, [("the", 5.0, 0.5), (17, 2.0, 0.0)])
    told = part("count", load, {1: 3, 2: 0, 5: 8, 6: 0}, {1: 30, 5: 80})
    assert told == OperatorLoad(
        "count", (2, 4, 1, 5), (7.0, 9.0, 5.0, 0.0), (250.0, 1.0, 1.0, 0.0), (0, 0, 3, 8), (0, 0, 30, 80),
        (("'the'", 3, 5.0, 0.5), ("17", 2, 2.0, 0.0)),
    )  # fmt: skip
    assert decode(encode(told)) == told


def test_a_part_is_bounded_and_keeps_what_is_heaviest() -> None:
    bins = {bin: (1.0, float(bin)) for bin in range(BINS_REPORTED_MAX + 10)}
    told = part("count", Load(bins, [("x" * 1000, 1.0, 0.0)] * 100))
    assert len(told.bins) == BINS_REPORTED_MAX and told.bins[0] == BINS_REPORTED_MAX + 9 and 9 not in told.bins
    assert len(told.hot_keys) == KEYS_REPORTED_MAX and all(len(key) <= 60 for key, _, _, _ in told.hot_keys)


def test_timers_by_the_clock_are_told_of_when_there_are_some_and_when_there_are_none_any_more() -> None:
    bench = Bench()
    view: Any = SimpleNamespace(
        wants_clock=False, late=0, timers_dropped=0, take_ledger=list, barrier_actions=None, ready=True, records=0,
        waiting=0,
        store=None,
    )
    bench.worker.stateful.append(view)
    read = []
    for wants in (False, True, True, False, False):
        view.wants_clock = wants
        for _ in range(3):
            bench.turn(0.2)
        read.append(sum(isinstance(command, ClockReading) for command in bench.commands()))
    assert read[0] == 0 < read[1] < read[2] and read[-1] == read[-2]
