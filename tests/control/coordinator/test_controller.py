"""The controller, mostly by transcripts: its inputs, then after `----` all of its outputs.

A transcript is a list of blocks separated by empty lines. The first block has the keyword arguments of the controller.
Each other block has lines of these forms: `TIME tick FRONTIER`, optionally followed by `working`, `TIME ask CLIENT ID
BODY`, `TIME gone CLIENT`, `TIME mail WORKER BODY`, `TIME found EVENT`, `TIME launcher BODY`, and from the engine `TIME
due KIND WORKERS`, `TIME joined WORKERS PORT`, `TIME left WORKERS` and `TIME declined WORKERS REASON`. `TIME succeed`
continues with the controller that has taken over from the present one. `MEGAFLOW_REWRITE=1` writes the current outputs
into the files: read the difference before you trust it.
"""

import os
import sys
from collections import Counter, deque
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from megaflow.control import checkpoint_messages, launcher_messages, messages, reading_messages, watermark_messages
from megaflow.control.checkpoint_messages import CheckpointAbandoned, CheckpointBegun, CheckpointReady, CutWritten
from megaflow.control.coordinator.base.epoch_clock import TICK_BUSY_SECONDS, TICK_IDLE_SECONDS, TICK_SATURATED_SECONDS
from megaflow.control.coordinator.base.events import (
    Advance,
    Asked,
    AskLeave,
    CallOff,
    ChangeRefused,
    CloseControl,
    Discovered,
    Event,
    GiveUp,
    Gone,
    Inject,
    Instruction,
    Mail,
    Mailed,
    Reply,
    Resign,
    Rule,
    StartWorkers,
    Ticked,
)
from megaflow.control.coordinator.base.job_state import NO_EVENT_TIME, Durable, EventTime, TimedOperator
from megaflow.control.coordinator.base.questions import ANSWER_SECONDS
from megaflow.control.coordinator.controller.controller import Controller
from megaflow.control.coordinator.moves.reconfigurations import PENDING_MAX
from megaflow.control.coordinator.reading.spark_commits import COMMITS_KNOWN_MAX, WAITING_MAX
from megaflow.control.messages import (
    Accepted,
    BinsInstalled,
    CommitBatch,
    CommitRequest,
    Done,
    EndOfLines,
    Reconfigure,
    Refused,
    Request,
    Split,
    StatusAnswer,
    StatusQuery,
    StopJob,
    TrialAnswer,
    TrialAsk,
)
from megaflow.control.reading_messages import AssignSplits
from megaflow.control.reports import JobStatus, LatencyQuantiles, LedgerEntry, StepReport, WorkerStatus
from megaflow.durable.segments import SegmentRef
from megaflow.megaphone.base.event_unit import INFINITE
from megaflow.megaphone.base.routing import Bootstrap, Map, Move, Numbered, Watermark
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.membership import Membership, founding
from megaflow.timely.rescale.messages import JoinDue, Joined, LeaveDue, Left

VOCABULARIES = messages, reading_messages, launcher_messages, checkpoint_messages, watermark_messages
TRANSCRIPTS = Path(__file__).parents[2] / "transcripts"


def splits(*ends: int) -> list[Split]:
    """Splits of one file that end at these byte offsets."""
    return [Split(number, "a", start, end) for number, (start, end) in enumerate(zip((0, *ends), ends))]


def answer(id: int, worker: int) -> StatusAnswer:
    """A worker's answer to a question."""
    late = LatencyQuantiles(1.0, 2.0, 3.0)
    return StatusAnswer(id, WorkerStatus(worker, "", 100 + worker, f"h:{worker}", 10, 20, 5.0, late, 2, 7))


def installed(worker: int, *moved: tuple[int, int, int, int]) -> BinsInstalled:
    """A worker's report of bins that it has received from worker 0: (bin, epoch, bytes, keys)."""
    return BinsInstalled(
        tuple(LedgerEntry("count", bin, epoch, 0, worker, size, keys, 0.01) for bin, epoch, size, keys in moved)
    )


def wrote(number: int, worker: int, size: int = 100, seconds: float = 0.01, *whole: int) -> CutWritten:
    """A worker's report that it has written one segment or nothing, and the bins that it wrote whole."""
    segments = (SegmentRef(f"i1-w{worker}-{number:06}.seg", number, worker, size, 7, 3),) if size else ()
    return CutWritten(number, segments, (("count", whole),) if whole else (), seconds)


def timed(out_of_order: int, *inputs: str) -> dict[str, TimedOperator]:
    """An operator that takes timestamps of these inputs."""
    return {"event_time": TimedOperator(out_of_order, frozenset(inputs))}


NAMES: dict[str, Any] = {
    **{name: value for module in VOCABULARIES for name, value in vars(module).items() if isinstance(value, type)},
    "Move": Move, "Map": Map, "Durable": Durable, "Bootstrap": Bootstrap, "splits": splits, "answer": answer,
    "installed": installed, "wrote": wrote, "Discovered": Discovered, "EventTime": EventTime, "timed": timed,
}  # fmt: skip


def tried(controller: Controller, said: list[Instruction], now: float) -> list[Instruction]:
    """The controller's outputs once the trial has shown that all bins can travel."""
    out: list[Instruction] = []
    for each in said:
        if isinstance(each, Mail) and isinstance(each.body, TrialAsk):
            answer = TrialAnswer(each.body.by, each.body.id, None, ())
            out += tried(controller, controller.handle(Mailed(each.target, answer), now), now)
        else:
            out.append(each)
    return out


def reached(controller: Controller, said: list[Instruction], now: float) -> list[Instruction]:
    """The controller's outputs once the launcher has connected to the processes that ask to join."""
    out: list[Instruction] = []
    for each in said:
        if isinstance(each, launcher_messages.TryToReach):
            answer = launcher_messages.Reached(each.host, each.port)
            out += reached(controller, controller.handle(answer, now), now)
        else:
            out.append(each)
    return out


class Job:
    """A controller from keyword arguments, with the membership that its engine would have."""

    def __init__(self, text: str) -> None:
        arguments = eval(f"dict({text})", NAMES)
        self.members, some = founding(arguments.pop("members")), arguments.pop("splits", [])
        self.shows_trials = arguments.pop("shows_trials", False)  # otherwise trials succeed, and are not shown
        self.shows_reaching = arguments.pop("shows_reaching", False)  # likewise
        operators, pinned = arguments.pop("operators", {"count": 4}), set(arguments.pop("pinned", ()))
        arguments["pins"] = lambda ids: ("there is an operator that is pinned",) if pinned & set(ids) else ()
        self.controller = Controller("job", self.members, operators, some, **arguments)
        self.operators, self.pins, self.durable = operators, arguments["pins"], arguments.get("durable")
        given: EventTime = arguments.get("event_time", NO_EVENT_TIME)
        self.event_time = EventTime(given.operators)  # a successor starts with this alone
        self.frontier: int | None = 0
        self.left: Resign | None = None  # last output of a controller

    def hear(self, words: str, now: float) -> list[str]:
        kind, _, rest = words.partition(" ")
        if kind == "succeed":
            self.succeed()
            return []
        said = self.controller.handle(self.event_of(kind, rest), now)
        if not self.shows_trials:
            said = tried(self.controller, said, now)
        if not self.shows_reaching:
            said = reached(self.controller, said, now)
        self.left = next((each for each in said if isinstance(each, Resign)), self.left)
        self.controller._check()
        return [shown(instruction) for instruction in said]

    def succeed(self) -> None:
        """Continue as the successor, from the state that it received, encoded and decoded."""
        assert self.controller.handed_over and self.left is not None
        self.members = Membership(self.members.version + 1, self.members.workers, self.left.successor)
        state = decode(encode(self.left.state))
        assert state == self.left.state
        self.controller = Controller(
            "job", self.members, self.operators, pins=self.pins, state=state, durable=self.durable,
            event_time=self.event_time,
        )  # fmt: skip

    def event_of(self, kind: str, rest: str) -> Event:
        first, _, more = rest.partition(" ")
        match kind:
            case "tick":
                self.frontier = None if first == "none" else int(first)
                return Ticked(self.frontier, more == "working")
            case "gone":
                return Gone(first)
            case "mail":
                return Mailed(int(first), eval(more, NAMES))
            case "found":
                return eval(rest, NAMES)  # type: ignore[no-any-return]
            case "launcher":
                return eval(rest, NAMES)  # type: ignore[no-any-return]
            case "due":
                ids, _, port = more.partition(" at ")
                return JoinDue(numbers(ids), ("h", int(port or 0))) if first == "join" else LeaveDue(numbers(ids))
            case "joined":
                ids = self.change(numbers(first), ())
                place = "h", int(more), ids
                return Joined(0, ids, self.members, place, {"connect": 0.01, "snapshot": 0.02}, 900)
            case "left":
                return Left(0, self.change((), numbers(first)), self.members)
            case "declined":
                return ChangeRefused(numbers(first), more)
        assert kind == "ask", kind
        id, body = more.split(" ", 1)
        return Asked(first, Request(int(id), eval(body, NAMES)))

    def change(self, come: tuple[int, ...], go: tuple[int, ...]) -> tuple[int, ...]:
        workers = (self.members.workers | set(come)) - set(go)
        self.members = Membership(self.members.version + 1, workers, self.members.coordinator)
        return come or go


def numbers(text: str) -> tuple[int, ...]:
    """Worker ids separated by commas; - for none."""
    return tuple(int(word) for word in text.split(",") if word not in ("", "-"))


NOTHING: tuple[Any, ...] = (None, "", (), [], {}, frozenset())


def spelled(value: Any) -> str:
    """Return a message without the fields that are empty or have their default value.

    So a new field of a message changes only the transcripts in which it matters.
    """
    if is_dataclass(value):
        given = ((field, getattr(value, field.name)) for field in fields(value))
        told = [f"{field.name}={spelled(it)}" for field, it in given if it not in (*NOTHING, field.default)]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{spelled(key)}: {spelled(it)}' for key, it in value.items())}}}"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(spelled, value))}{',' * (len(value) == 1)})"
    return repr(round(value, 6) if isinstance(value, float) else value)


def shown(instruction: Instruction) -> str:
    match instruction:
        case Inject(numbered):
            return f"inject {numbered.number} {spelled(numbered.command)}"
        case Advance(time):
            return f"advance {time}"
        case CloseControl():
            return "close control"
        case Reply(client, message):
            return f"reply {client} {spelled(message)}"
        case StartWorkers(count, number, other_code):
            return f"start {count}" + f" ({number})" * bool(number) + " with any code" * other_code
        case Rule(ids, reason):
            who = ",".join(map(str, ids))
            return f"rule that {who} may" if reason is None else f"rule that {who} may not: {reason}"
        case AskLeave(worker):
            return f"retire {worker}"
        case GiveUp(reason):
            return f"give up {reason}"
        case CallOff(ids, reason):
            return f"call off {','.join(map(str, ids))}: {reason}"
        case CheckpointBegun() | CheckpointReady() | CheckpointAbandoned():
            return f"tell {spelled(instruction)}"
        case launcher_messages.EndProcess(host, port, reason):
            return f"end the process at {host}:{port}: {reason}"
        case launcher_messages.TryToReach(host, port):
            return f"try to reach {host}:{port}"
        case Resign(successor, state, pending):
            asked = ", ".join(f"{asked.client} {asked.request.id}" for asked in pending)
            return f"hand over to {successor}: {spelled(state)}, asked by {asked}"
        case other:
            return f"mail {other.target} {spelled(other.body)}"


def played(text: str) -> str:
    """Return the transcript with the controller's current outputs."""
    head, *blocks = [block for block in text.split("\n\n") if block.strip()]
    job = Job(head.strip().splitlines()[-1])
    parts = [head.strip()]
    for block in blocks:
        commands = block.strip().partition("\n----")[0].splitlines()
        said = []
        for command in commands:
            if not command.startswith("#"):
                now, words = command.split(" ", 1)
                said += job.hear(words, float(now))
        parts.append("\n".join([*commands, "----", *said]))
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("controller_*.txt")), ids=lambda path: path.stem)
def test_the_controller_says_what_the_transcript_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    now = played(text)
    if os.environ.get("MEGAFLOW_REWRITE"):
        path.write_text(now, encoding="utf-8")
    assert now == text


def started(**arguments: Any) -> Controller:
    """A controller of workers 0 and 2 with four bins, after its first tick, which waits for pushed lines."""
    controller = Controller("job", founding([0, 2]), {"count": 4}, [], pushed=True, **arguments)
    controller.handle(Ticked(0), 0.0)
    return controller


def replies(instructions: list[Instruction]) -> list[Accepted | Done | Refused]:
    return [instruction.message for instruction in instructions if isinstance(instruction, Reply)]


def injected(instructions: list[Instruction]) -> list[tuple[int, Any]]:
    return [(i.command.number, i.command.command) for i in instructions if isinstance(i, Inject)]


def ask(controller: Controller, body: Any, now: float = 1.0, id: int = 1) -> list[Instruction]:
    return tried(controller, controller.handle(Asked("client", Request(id, body)), now), now)


@pytest.mark.parametrize(
    "commands",
    [
        (),
        (Move(4, 0),),
        (Move(-1, 0),),
        (Move(0, 1),),
        (Move(0, 2), Move(1, 1)),
        (Map((0, 0, 2)),),
        (Map((0, 0, 2, 1)),),
        (Bootstrap(0, 2),),
        ("Move", 3, 0),
        17,
        None,
    ],
)
def test_a_refused_reconfiguration_changes_nothing(commands: Any) -> None:
    controller, other = started(), started()
    (message,) = replies(refused := ask(controller, Reconfigure(commands)))
    assert isinstance(message, Refused) and message.reason and len(refused) == 1
    assert controller.epoch == other.epoch
    good = Reconfigure((Move(3, 0),))
    assert ask(controller, good) == ask(other, good)


def test_a_malformed_request_is_refused() -> None:
    for body in (None, "StopJob", CommitRequest(None), Move(0, 2), CommitRequest(CommitBatch("q", "r", 0, {0: 1}))):  # type: ignore[arg-type, dict-item]
        assert isinstance(replies(ask(started(), body))[0], Refused)


def test_a_command_has_its_own_epoch_and_leaves_it_at_once() -> None:
    controller = started()
    epochs = []
    for id in range(3):
        before = controller.epoch
        out = ask(controller, Reconfigure((Move(id, 2), Move(3, 0))), id=id)
        assert injected(out) == [(2 * id, Move(id, 2)), (2 * id + 1, Move(3, 0))]
        assert out[2:] == [Advance(before + 1), Reply("client", Accepted(id, before))]
        epochs.append(before)
    assert len(set(epochs)) == 3


def test_a_reconfiguration_that_moves_nothing_is_done_without_asking_the_members() -> None:
    controller = started()
    (accepted,) = replies(ask(controller, Reconfigure((Move(0, 0),))))
    assert isinstance(accepted, Accepted)
    assert replies(controller.handle(Ticked(accepted.epoch), 1.5)) == []
    (done,) = replies(controller.handle(Ticked(accepted.epoch + 1), 2.0))
    account = StepReport(accepted.epoch, bins=0, bytes=0, keys=0, seconds=1.0)
    assert done == Done(1, account)


def test_without_a_stateful_operator_there_is_nothing_to_move() -> None:
    controller = Controller("job", founding([0]), {}, [], pushed=True)
    (message,) = replies(ask(controller, Reconfigure((Move(0, 0),))))
    assert isinstance(message, Refused) and "no stateful operator" in message.reason


def test_ticks_are_frequent_while_there_is_something_to_do_and_rare_otherwise() -> None:
    controller = started()
    assert controller.seconds_to_tick(0.0) == pytest.approx(TICK_BUSY_SECONDS)
    assert controller.handle(Ticked(0), 0.009) == []
    assert controller.handle(Ticked(0), 0.011) == [Advance(2)]
    controller.handle(Ticked(1), 5.0)
    assert controller.seconds_to_tick(5.0) == pytest.approx(TICK_IDLE_SECONDS)
    assert controller.handle(Ticked(1), 5.2) == []
    controller.handle(Mailed(2, messages.Busy()), 5.2)
    assert controller.seconds_to_tick(5.2) == 0.0
    assert controller.handle(Ticked(1), 5.2) == [Advance(4)]
    assert controller.seconds_to_tick(5.2) == pytest.approx(TICK_BUSY_SECONDS)
    assert controller.seconds_to_tick(5.5) == 0.0 and controller.seconds_to_tick(5.41) == pytest.approx(0.04)


def test_epochs_are_longer_while_sources_are_saturated_until_a_command_waits_for_the_end_of_one() -> None:
    controller = started()
    controller.handle(Ticked(0), 5.0)
    controller.handle(Mailed(2, messages.Busy(saturated=True)), 5.0)
    assert controller.seconds_to_tick(5.0) == pytest.approx(TICK_SATURATED_SECONDS)
    assert controller.handle(Ticked(1), 5.02) == []
    sent = ask(controller, Reconfigure((Move(0, 2),)), now=5.02)
    assert Advance(3) in sent, "a command ends its epoch"
    assert controller.seconds_to_tick(5.02) == pytest.approx(TICK_BUSY_SECONDS), "and nobody waits long for the next"


def test_ticks_are_frequent_while_the_output_lags_and_never_wait_for_it() -> None:
    controller = started()
    now = 10.0
    for _ in range(100):
        now += TICK_IDLE_SECONDS
        controller.handle(Ticked(0), now)
    assert controller.epoch == 101
    assert controller.seconds_to_tick(now) == pytest.approx(TICK_BUSY_SECONDS)
    controller.handle(Ticked(100), now)
    assert controller.seconds_to_tick(now) == pytest.approx(TICK_IDLE_SECONDS)


def test_an_empty_input_ends_at_once() -> None:
    controller = Controller("job", founding([0]), {"count": 4}, [])
    out = controller.handle(Ticked(0), 0.0)
    commands = [Inject(Numbered(0, Watermark(INFINITE))), Inject(Numbered(1, EndOfLines()))]
    assert out == [*commands, Advance(1), CloseControl()] and controller.ended


def test_a_job_without_lines_begins_no_leave_whose_sources_may_not_be_there_to_close() -> None:
    controller = Controller("job", founding([0, 1]), {}, [])
    (refused,) = replies(ask(controller, messages.RemoveWorker(1)))
    assert isinstance(refused, Refused) and "too late" in refused.reason and controller.ended


def test_splits_are_spread_by_bytes_over_workers_whose_ids_have_gaps() -> None:
    controller = Controller("job", founding([3, 7]), {}, splits(60, 100, 140))
    ((number, command),) = injected(controller.handle(Ticked(0), 0.0))
    assert number == 0 and isinstance(command, AssignSplits)
    given = {worker: [split.number for split in some] for worker, some in command.assignments.items()}
    assert given == {3: [0], 7: [1, 2]}


def test_a_partial_status_shows_who_has_answered_and_names_the_silent() -> None:
    controller = started()
    ask(controller, StatusQuery(partial=True), now=5.0)
    controller.handle(Mailed(0, answer(0, 0)), 5.0)
    assert controller.seconds_to_tick(5.0) <= ANSWER_SECONDS
    (done,) = replies(controller.handle(Ticked(0), 5.0 + ANSWER_SECONDS))
    assert isinstance(done, Done) and isinstance(done.result, JobStatus)
    assert [each.id for each in done.result.workers] == [0] and done.result.silent == (2,)


def test_too_many_requests_under_way_are_refused_and_the_rest_are_served() -> None:
    controller = started()
    for id in range(PENDING_MAX):
        assert isinstance(replies(ask(controller, Reconfigure((Move(0, 0),)), id=id))[0], Accepted)
    assert isinstance(replies(ask(controller, Reconfigure((Move(0, 0),))))[0], Refused)
    done = replies(controller.handle(Ticked(controller.epoch), 2.0))
    assert [message.id for message in done] == list(range(PENDING_MAX))
    for id in range(PENDING_MAX):
        ask(controller, StatusQuery(), id=id)
    assert isinstance(replies(ask(controller, StatusQuery()))[0], Refused)


def test_commits_are_remembered_within_bounds_and_forgotten_ones_refused() -> None:
    controller = started()
    for batch in range(COMMITS_KNOWN_MAX + 5):
        out = ask(controller, CommitRequest(CommitBatch("q", "run", batch, {})), id=batch)
        assert [type(message) for message in replies(out)] == [Accepted, Done]
    for batch, issued in ((3, Refused), (5, Accepted)):
        out = ask(controller, CommitRequest(CommitBatch("q", "again", batch, {})))
        assert type(replies(out)[0]) is issued and injected(out) == []


@pytest.mark.parametrize("ordered", [False, True])
def test_waiting_commits_are_bounded(ordered: bool) -> None:
    controller = started()
    answers: list[Any] = []
    for batch in range(WAITING_MAX + 3):
        commit = CommitRequest(CommitBatch("q", "run", batch, {0: (2, 1, 5)}), ordered)
        answers = replies(ask(controller, commit, id=batch))
        if batch < WAITING_MAX + (1 if ordered else 2):
            assert not any(isinstance(answer, Refused) for answer in answers), batch
    assert [type(message) for message in answers] == [Refused]


@pytest.mark.parametrize("ordered", [False, True])
def test_a_batch_is_issued_after_those_of_the_queries_that_it_names(ordered: bool) -> None:
    rest = CommitBatch("first", "before", 0, {0: (2, 0, 5)})  # the job resumes, and the rest of a batch is left
    durable = Durable((), 1.0, spark=(("first", 0),), untaken=(rest, CommitBatch("third", "before", 3, {})))
    controller = Controller("job", founding([0, 2]), {"count": 4}, [], queries=3, durable=durable)

    def issued(out: list[Instruction]) -> list[CommitBatch]:
        return [command for _, command in injected(out) if isinstance(command, CommitBatch)]

    assert issued(controller.handle(Ticked(0), 0.0)) == [*durable.untaken]
    after, other = CommitBatch("second", "run", 0, {0: (0, 1, 5)}), CommitBatch("fourth", "run", 0, {})
    assert issued(ask(controller, CommitRequest(after, ordered, ("first", "third")), id=2)) == []
    assert issued(ask(controller, CommitRequest(other), id=3)) == [other]
    assert issued(controller.handle(Mailed(2, messages.CommitTaken("first", 0)), 1.0)) == [after]
    malformed = CommitRequest(CommitBatch("second", "run", 1, {}), ordered, "first")  # type: ignore[arg-type]
    assert [type(each) for each in replies(ask(controller, malformed))] == [Refused]


def test_a_stop_is_answered_when_the_output_is_complete_whatever_is_pending() -> None:
    controller = started()
    ask(controller, Reconfigure((Move(0, 2),)), id=1)
    out = ask(controller, StopJob(), id=2)
    assert isinstance(out[-1], CloseControl) and isinstance(replies(out)[0], Accepted)
    assert isinstance(replies(ask(controller, StopJob(), id=3))[0], Accepted)
    done = replies(controller.handle(Ticked(None), 2.0))
    assert [message.id for message in done] == [1, 2, 3] and all(isinstance(message, Done) for message in done)


@pytest.mark.parametrize(
    "body",
    [
        Reconfigure((Map(5),)),  # type: ignore[arg-type]
        Reconfigure((Map(([], [])),)),  # type: ignore[arg-type]
        CommitRequest(CommitBatch([], "run", 0, {})),  # type: ignore[arg-type]
        CommitRequest(CommitBatch("q", "run", {}, {})),  # type: ignore[arg-type]
    ],
)
def test_a_malformed_request_of_somebody_who_knows_the_secret_is_refused_and_the_job_goes_on(body: Any) -> None:
    controller = Controller("job", founding([0, 1]), {"count": 2}, queries=1)
    out = controller.handle(Asked("client", Request(1, body)), 0.0)
    assert [type(each.message) for each in out if isinstance(each, Reply)] == [Refused]


IDLE = {
    "checkpoint_under_way", "checkpoints", "event_time_end", "idle_time", "input_fronts", "joins", "lookups",
    "membership_requests", "partitions", "plans", "questions", "reconfigurations", "request_progress", "seen_lateness",
    "spark_commits", "staged_checks", "trials", "unread_partitions", "watermarks",
}  # fmt: skip
"""Modules that a word count does not need: they are off, or nothing is under way there."""


def test_parts_that_are_off_or_idle_are_not_called() -> None:
    calls, events = Counter[str](), 0
    controller = Controller("job", founding([0, 1]), {"count": 4}, splits(*range(1 << 20, 200 << 20, 1 << 20)))
    now, unread = 0.0, deque[tuple[int, int]]()  # worker, number of a split

    def count(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            calls[Path(frame.f_code.co_filename).stem] += 1

    def handle(event: Event) -> None:
        nonlocal events
        events += 1
        sys.setprofile(count)
        instructions = controller.handle(event, now)
        controller.seconds_to_tick(now)
        sys.setprofile(None)
        for _, command in injected(instructions):
            if isinstance(command, AssignSplits):
                unread.extend((worker, split.number) for worker, some in command.assignments.items() for split in some)

    handle(Ticked(0))
    while not controller.ended:
        now += 0.01
        handle(Mailed(0, messages.Busy()))
        if unread:
            worker, number = unread.popleft()
            handle(Mailed(worker, reading_messages.SplitRead(number)))
        handle(Ticked(controller.epoch))
    assert events > 500
    assert {name: calls[name] for name in IDLE if calls[name] > 5} == {}
