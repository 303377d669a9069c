"""Handing over: another worker coordinates, and nothing else changes."""

import logging

import pytest

from megaflow.errors import CommandRefused, ProtocolError
from megaflow.timely.communication.channel import Lane
from megaflow.timely.rescale import handover
from megaflow.timely.rescale.messages import (
    TOPIC,
    Admission,
    Denied,
    Event,
    HandedOver,
    Joined,
    LeaveAsk,
    Left,
    Prepared,
    Succeeded,
)
from megaflow.timely.rescale.sequencer import PATIENCE_SECONDS
from tests.timely.rescale.by_hand import Hands, Route
from tests.timely.rescale.parts import begin, close, hello
from tests.words import says


def coordinators(hands: Hands) -> list[int]:
    return [index for index, worker in hands.workers.items() if worker.rescaling.coordination.sequencer is not None]


def test_another_process_coordinates_and_gets_what_was_given_along() -> None:
    hands = Hands(4, each=2)
    parts = hands.everywhere(hello)
    hands.workers[0].rescaling.hand_over(("luggage", 5))
    assert coordinators(hands) == []
    hands.settle()
    members = hands.workers[2].membership
    assert (members.version, members.coordinator, members.ids) == (1, 2, (0, 1, 2, 3))
    assert all(worker.membership == members for worker in hands.workers.values())
    assert coordinators(hands) == [2]
    assert hands.events == {
        0: [HandedOver(members)],
        1: [HandedOver(members)],
        2: [HandedOver(members), Succeeded(("luggage", 5), members)],
        3: [HandedOver(members)],
    }
    close(hands, *parts.values())


def test_the_coordinator_leaves_and_the_next_one_after_it() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    for leaving in (0, 1):
        hands.workers[leaving].retire()
        hands.settle()
        assert hands.workers[leaving].rescaling.left and isinstance(hands.events[2][-1], Left)
        del hands.workers[leaving]
    assert coordinators(hands) == [2]
    parts[3] = hands.join(hello, via=2)
    parts[3].numbers.send_batch([0, 1])
    close(hands, parts[2], parts[3])
    assert parts[2].seen == [0] and parts[3].seen == [1]


def test_both_workers_of_the_coordinators_process_leave_whichever_asks() -> None:
    hands = Hands(4, each=2)
    parts = hands.everywhere(hello)
    parts[0].numbers.send_batch([0, 1, 2, 3])
    answers: list[str | None] = []
    hands.workers[0].rescaling.ask_leave(0, answers.append)
    hands.workers[1].retire()
    hands.settle()
    assert hands.workers[0].rescaling.left and answers == [None]
    assert hands.workers[2].peer_ids == (2, 3) and coordinators(hands) == [2]
    close(hands, parts[2], parts[3])
    assert [part.seen for part in parts.values()] == [[0], [1], [2], [3]]


@pytest.mark.parametrize("held", [(source, target) for source in range(3) for target in range(3) if source != target])
def test_whatever_is_late_what_is_asked_during_a_hand_over_is_answered_once(held: tuple[int, int]) -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    hands.held = lambda route: route == (*held, Lane.MAIL)
    hands.workers[0].rescaling.hand_over(None)
    keys = [hands.ask(via=via, port=1000 + via, workers=2) for via in range(3)]
    hands.settle()
    keys += [hands.ask(via=via, port=2000 + via, workers=2) for via in range(3)]
    hands.settle()
    hands.held = lambda route: False
    hands.settle()
    assert sorted(hands.answers) == sorted(keys)
    assert all(isinstance(answer, Denied) for answer in hands.answers.values())
    assert coordinators(hands) == [1]
    close(hands, *parts.values())


def test_no_change_begins_before_all_have_been_told() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.held = lambda route: route == (0, 2, Lane.MAIL)
    hands.workers[0].rescaling.hand_over(None)
    key = hands.ask(via=1)
    hands.settle()
    assert hands.answers == {} and coordinators(hands) == []
    hands.held = lambda route: False
    hands.settle()
    admission = hands.answers[key]
    assert isinstance(admission, Admission) and admission.server == 1 == admission.membership.coordinator
    [joiner] = hands.start(admission)
    parts[3] = hello(joiner)
    assert joiner.bootstrap()
    hands.settle()
    joined = hands.events[0][-1]
    assert isinstance(joined, Joined) and joined.membership.version == 2
    close(hands, *parts.values())


def test_a_newcomer_that_dies_is_given_up_by_the_coordinator_of_then() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    hands.workers[0].rescaling.hand_over(None)
    hands.settle()
    joiner, _ = begin(hands)
    hands.held = lambda route: route[1] == joiner.index
    hands.settle()
    hands.die(joiner.index)
    hands.held = lambda route: False
    hands.settle()
    assert hands.workers[0].peer_ids == hands.workers[1].rescaling.audience == (0, 1)
    parts[3] = hands.join(hello, via=1)
    close(hands, *parts.values())


class Program:
    """Program that supervises: it notes reports, and rules as the test sets it."""

    def __init__(self, hands: Hands, index: int, reason: str | None) -> None:
        self.coordination = hands.workers[index].rescaling.coordination
        self.reason = reason
        self.told: list[object] = []
        self.coordination.supervise(self)

    def join_due(self, ids: tuple[int, ...], address: tuple[str, int]) -> None:
        self.told.append(("join", ids))
        self.coordination.rule(ids, self.reason)

    def leave_due(self, ids: tuple[int, ...]) -> None:
        self.told.append(("leave", ids))
        self.coordination.rule(ids, self.reason)

    def reported(self, source: int, body: object) -> None:
        self.told.append((source, body))


def test_a_program_rules_on_who_leaves_and_the_next_one_anew() -> None:
    hands = Hands(2)
    parts = hands.everywhere(hello)
    programs = [Program(hands, 0, "the job is not done")]

    def succeed(event: Event) -> None:
        if isinstance(event, Succeeded):
            programs.append(Program(hands, 1, None))

    hands.workers[1].rescaling.subscribe(succeed)
    with pytest.raises(CommandRefused, match="worker 0 cannot retire: the job is not done"):
        hands.workers[0].retire()
    hands.workers[0].rescaling.hand_over(None)
    hands.workers[0].retire()
    hands.settle()
    assert [program.told for program in programs] == [[("leave", (0,))], [("leave", (0,))]]
    close(hands, parts[1])


@pytest.mark.parametrize("held", [(source, target) for source in range(3) for target in range(3) if source != target])
def test_of_each_worker_the_program_hears_all_reports_in_order_whoever_coordinates(held: tuple[int, int]) -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    first, heard = Program(hands, 0, None), []
    for worker in hands.workers.values():
        worker.rescaling.report((worker.index, 0))

    def succeed(event: Event) -> None:
        if isinstance(event, Succeeded):
            second = Program(hands, 1, None)
            second.told = heard

    hands.workers[1].rescaling.subscribe(succeed)
    hands.settle()
    hands.held = lambda route: route == (*held, Lane.MAIL)
    unheard = [report for report in first.told if isinstance(report, tuple)][1:]
    hands.workers[0].rescaling.hand_over("luggage", unheard)  # type: ignore[arg-type]
    for number in range(1, 5):
        for worker in hands.workers.values():
            worker.rescaling.report((worker.index, number))
        hands.go_on()
    hands.settle()
    hands.held = lambda route: False
    hands.settle()
    every = [*first.told[:1], *heard]
    assert sorted(every) == [(index, (index, number)) for index in range(3) for number in range(5)]  # type: ignore[type-var]
    for index in range(3):
        assert [each for each in every if each[0] == index] == [(index, (index, number)) for number in range(5)]  # type: ignore[index]
    close(hands, *parts.values())


def test_reports_that_no_program_takes_break_the_protocol_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "REPORTS_MAX", 3)
    hands = Hands(2)
    parts = hands.everywhere(hello)
    for number in range(3):
        hands.workers[1].rescaling.report(number)
    hands.settle()
    program = Program(hands, 0, None)
    assert program.told == [(1, 0), (1, 1), (1, 2)]
    hands.workers[0].rescaling.hand_over(None)
    hands.settle()
    for number in range(4):
        hands.workers[0].rescaling.report(number)
    with pytest.raises(ProtocolError, match="whose program takes no reports: 3 are already kept"):
        hands.settle()
    assert parts


@pytest.mark.parametrize("sender", [0, 1, 2])
def test_what_a_successor_keeps_is_bounded_together_with_what_it_was_given(
    sender: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "REPORTS_MAX", 3)
    for given, error in ((1, None), (2, r"sent Report\(body=2\) during a hand-over .* 3 messages are already kept")):
        hands = Hands(3)
        parts = hands.everywhere(hello)
        hands.settle()
        programs = [Program(hands, 0, None)]

        def succeed(event: Event, hands: Hands = hands, programs: list[Program] = programs) -> None:
            if isinstance(event, Succeeded):
                programs.append(Program(hands, 1, None))

        hands.workers[1].rescaling.subscribe(succeed)
        hands.held = lambda route: route == (2, 0, Lane.MAIL) and sender != 2
        hands.workers[0].rescaling.hand_over(None, [(0, f"given {number}") for number in range(given)])
        for number in (1, 2):
            hands.workers[sender].rescaling.report(number)
        if error is None:
            hands.settle()
            hands.held = lambda route: False
            hands.settle()
            assert programs[1].told == [(0, "given 0"), (sender, 1), (sender, 2)]
            close(hands, *parts.values())
        else:
            with pytest.raises(ProtocolError, match=f"worker {sender} {error}"):
                hands.settle()


class Patient(Program):
    """Does not rule."""

    def join_due(self, ids: tuple[int, ...], address: tuple[str, int]) -> None:
        self.told.append(("join", ids))

    def leave_due(self, ids: tuple[int, ...]) -> None:
        self.told.append(("leave", ids))


class Hasty(Program):
    """Hands over as soon as it hears anything."""

    def join_due(self, ids: tuple[int, ...], address: tuple[str, int]) -> None:
        self.go(("join", ids))

    def leave_due(self, ids: tuple[int, ...]) -> None:
        self.go(("leave", ids))

    def reported(self, source: int, body: object) -> None:
        self.go((source, body))

    def go(self, what: object) -> None:
        self.told.append(what)
        self.coordination.hand_over(None, ())


def test_a_program_may_hand_over_in_any_call_and_the_next_one_hears_the_rest_once() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    programs: list[Program] = []

    def succeed(event: Event) -> None:
        if isinstance(event, Succeeded):
            programs.append(Program(hands, 1, "not now"))

    hands.workers[1].rescaling.subscribe(succeed)
    for number in range(3):
        hands.workers[2].rescaling.report(number)
    hands.settle()
    programs.append(Hasty(hands, 0, None))
    hands.settle()
    assert [program.told for program in programs] == [[(2, 0)], [(2, 1), (2, 2)]]
    close(hands, *parts.values())


def test_who_is_due_as_the_program_hands_over_is_due_with_the_next_one() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    programs: list[Program] = [Patient(hands, 0, None)]
    for index, kind in ((1, Hasty), (0, Program)):

        def succeed(event: Event, index: int = index, kind: type[Program] = kind) -> None:
            if isinstance(event, Succeeded):
                programs.append(kind(hands, index, "not now"))

        hands.workers[index].rescaling.subscribe(succeed)
    refusals: list[str | None] = []
    hands.workers[2].rescaling.ask_leave(2, refusals.append)
    hands.settle()
    key = hands.ask()
    hands.settle()
    assert programs[0].told == [("leave", (2,)), ("join", (3,))] and not refusals
    hands.workers[0].rescaling.hand_over(None)
    hands.settle()
    assert [program.told for program in programs[1:]] == [[("leave", (2,))], programs[0].told]
    assert isinstance(hands.answers[key], Denied) and refusals[0] is not None and "not now" in refusals[0]
    close(hands, *parts.values())


def test_the_program_hears_that_one_process_has_left_before_the_next_one_is_due() -> None:
    hands = Hands(4)
    parts = hands.everywhere(hello)
    hands.settle()
    program = Program(hands, 0, None)

    def note(event: Event) -> None:
        if isinstance(event, Left):
            program.told.append(("left", event.ids))

    def ask(worker: int) -> None:
        hands.workers[0].rescaling.ask_leave(worker, lambda reason: program.told.append((worker, reason)))

    hands.workers[0].rescaling.subscribe(note)
    for worker in (2, 3):
        ask(worker)
    hands.settle()
    assert program.told == [
        *[("leave", (2,)), ("left", (2,)), (2, None)],
        *[("leave", (3,)), ("left", (3,)), (3, None)],
    ]
    close(hands, parts[0], parts[1])


def test_the_program_is_not_told_of_what_was_denied_before_it_could_hear_that_it_is_due() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    program, refusals = Program(hands, 0, None), list[str | None]()
    rescaling = hands.workers[0].rescaling
    rescaling.ask_leave(2, refusals.append)
    sequencer = rescaling.coordination.sequencer
    assert sequencer is not None
    while not sequencer.queue.is_due((2,)):
        hands.workers[0].step()
    rescaling.coordination.give_up("the job ends")
    hands.settle()
    assert (program.told, refusals) == ([], ["the job ends"])
    close(hands, *parts.values())


def test_a_leave_that_is_asked_for_again_before_the_refusal_has_come_has_an_answer_of_its_own() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    answers = list[tuple[str, str | None]]()

    class AskedAgain(Program):
        def leave_due(self, ids: tuple[int, ...]) -> None:
            super().leave_due(ids)
            self.reason = "not yet either"
            if len(self.told) == 1:
                hands.workers[0].rescaling.ask_leave(2, lambda reason: answers.append(("again", reason)))

    program = AskedAgain(hands, 0, "not yet")
    hands.workers[0].rescaling.ask_leave(2, lambda reason: answers.append(("first", reason)))
    hands.settle()
    assert program.told == [("leave", (2,))] * 2
    assert answers == [("first", "not yet"), ("again", "not yet either")]
    close(hands, *parts.values())


def test_who_cannot_hand_over_is_told_why_and_nothing_changes() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    with pytest.raises(CommandRefused, match="worker 1 is not the coordinator"):
        hands.workers[1].rescaling.hand_over(None)
    admission = hands.admitted()
    with pytest.raises(CommandRefused, match=r"worker 3 joins just now \(admitted\); try again when that has ended"):
        hands.workers[0].rescaling.hand_over(None)
    hands.workers[0].rescaling.coordination.give_up("the test says so")
    hands.settle()
    assert coordinators(hands) == [0] and hands.workers[0].membership.version == 0
    assert all(not isinstance(event, HandedOver) for events in hands.events.values() for event in events)
    assert admission.ids == (3,)
    close(hands, *parts.values())


def test_all_may_end_though_the_coordinator_hands_over_just_then() -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    close(hands, *parts.values())
    hands.held = lambda route: route == (2, 0, Lane.MAIL)
    hands.workers[2].rescaling.ask_end()
    hands.workers[0].rescaling.hand_over(None)
    hands.settle()
    hands.held = lambda route: False
    for worker in hands.workers.values():
        worker.part()
    assert all(worker.rescaling.may_end for worker in hands.workers.values())


@pytest.mark.parametrize("message", [LeaveAsk(2), Prepared(1, 0)])
def test_a_message_for_the_coordinator_that_comes_to_another_is_an_error(message: object) -> None:
    hands = Hands(3)
    hands.everywhere(hello)
    hands.workers[2].post(1, TOPIC, message)
    with pytest.raises(ProtocolError, match=r"worker 2 sent worker 1 a \w+, which is for the coordinator"):
        hands.settle()


def held_up(hands: Hands, held: Route, caplog: pytest.LogCaptureFixture) -> str:
    """Return what is logged after a minute if a route is held; it must be logged only once."""
    hands.held = lambda route: route == held
    hands.settle()
    hands.now += PATIENCE_SECONDS + 1
    with caplog.at_level(logging.WARNING, logger="megaflow.timely.rescale"):
        for _ in range(3):
            hands.now += 1
            for worker in hands.workers.values():
                worker.step_or_park(0)
            hands.settle()
    hands.held = lambda route: False
    hands.settle()
    [record] = caplog.records
    return record.getMessage()


def test_a_leave_and_a_hand_over_that_take_long_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands(3)
    parts = hands.everywhere(hello)
    hands.settle()
    hands.workers[2].rescaling.ask_leave(2, lambda reason: None)
    said = held_up(hands, (2, 1, Lane.STATE), caplog)
    assert says(said, "change 1 (leave of worker 2)", "60 s", "no Departed of worker 2 from worker 1")
    assert hands.workers[2].rescaling.left
    del hands.workers[2]
    caplog.clear()
    hands.workers[0].rescaling.hand_over(None)
    assert says(held_up(hands, (0, 1, Lane.MAIL), caplog), "hand-over", "60 s", "no Succeeding from worker 1")
    close(hands, parts[0], parts[1])
