"""The hand-over of the coordinator's role in all interleavings of three workers: `handover.pml`, checked by spin."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.spin import Fault, check, check_fault, named_in_code, needs_spin

MODEL = "handover.pml"


def place(story: Sequence[str], pattern: str) -> int:
    """Return the index of the story's first matching line, or its length without a match."""
    return next((at for at, line in enumerate(story) if re.fullmatch(pattern, line)), len(story))


def a_direct_report_overtook(story: Sequence[str]) -> bool:
    """Whether the last report heard went to the successor, and an earlier one to the old coordinator."""
    last = re.fullmatch(r"worker (\d) hears report (\d) of worker (\d)", story[-1])
    if last is None:
        return False
    hearer, number, sender = last.groups()
    earlier = rf"worker {sender} reports [0-{int(number) - 1}] to worker (?!{hearer})\d"
    return f"worker {sender} reports {number} to worker {hearer}" in story and place(story, earlier) < len(story)


def fences_had_come(story: Sequence[str]) -> bool:
    """Whether all fences had come before the successor began."""
    return sum(" has the fence of " in line for line in story[: place(story, r"worker \d coordinates")]) == 3


def a_fence_came_directly(story: Sequence[str]) -> bool:
    return fences_had_come(story) and sum(" passes on the FENCE of " in line for line in story) < 3


def the_successor_knew_nothing_of_it(story: Sequence[str]) -> bool:
    successor = re.fullmatch(r"worker \d hands over to worker (\d)", story[place(story, r"worker \d hands over .*")])
    return successor is not None and not any(line.startswith(f"worker {successor[1]} is to succeed") for line in story)


def it_began_without_the_state(story: Sequence[str]) -> bool:
    began = place(story, r"worker \d coordinates")
    return "is at command 0 with 0 requests" in story[place(story, r"worker \d is at .*")] and began < len(story)


def a_request_was_left(story: Sequence[str]) -> bool:
    before = story[: place(story, r"worker \d hands over .*")]
    heard, written = (sum(word in line for line in before) for word in (" hears report ", " writes command "))
    return heard > written


def an_unread_command_was_overtaken(story: Sequence[str]) -> bool:
    last = re.fullmatch(r"worker (\d) reads command (\d) of worker (\d)", story[-1])
    if last is None:
        return False
    reader, number, writer = last.groups()
    earlier = [re.fullmatch(rf"worker ([^{writer}]) writes command ([0-{int(number) - 1}])", line) for line in story]
    return any(it and f"worker {reader} reads command {it[2]} of worker {it[1]}" not in story for it in earlier)


def a_number_was_written_twice(story: Sequence[str]) -> bool:
    written = [line.split("writes ")[1] for line in story if " writes command " in line]
    return len(written) > len(set(written))


ONE = ("HANDOVERS=1", "LEAVES=0")
FAULTS = {
    "NO_FENCE": Fault(
        "reports_come_in_order", lambda story: a_direct_report_overtook(story) and fences_had_come(story), ONE
    ),
    "RESUME_EARLY": Fault(
        "reports_come_in_order", lambda story: a_direct_report_overtook(story) and not fences_had_come(story), ONE
    ),
    "FENCE_DIRECT": Fault(
        "reports_come_in_order", lambda story: a_direct_report_overtook(story) and a_fence_came_directly(story), ONE
    ),
    "NO_FORWARD": Fault(
        "reports_come_in_order no_report_is_lost", lambda story: any(" drops report " in line for line in story), ONE
    ),
    "EARLY_HANDOVER": Fault("coordinator_mail_has_a_way", the_successor_knew_nothing_of_it, ONE),
    "STATE_BEHIND": Fault("commands_are_consecutive", it_began_without_the_state, ONE),
    "REQUESTS_LEFT": Fault("no_request_is_lost", a_request_was_left, ONE),
    "NO_REST": Fault("commands_are_consecutive", an_unread_command_was_overtaken, ONE),
    "COUNTER_ANEW": Fault("commands_are_consecutive", a_number_was_written_twice, ONE),
    "KEEPS_ACTING": Fault("one_coordinator", lambda story: story[-1].endswith(" coordinates"), ONE),
    "LEAVES_EARLY": Fault(
        "nobody_writes_to_the_gone",
        lambda story: place(story, r"worker 0 says goodbye") < place(story, r"worker \d coordinates"), ONE,
    ),
}


def test_what_the_model_says_of_the_code_exists() -> None:
    named, missing = named_in_code(MODEL)
    assert len(named) > 10 and missing == set()


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["HANDOVERS=2 REPORTS=3", "HANDOVERS=3 REPORTS=2",
                                    "HANDOVERS=2 REPORTS=1 QUESTIONS=1"])
def test_each_report_is_heard_once_in_order_and_answered_by_one_coordinator_at_a_time(
    tmp_path: Path, bounds: str
) -> None:
    verdict = check(tmp_path, MODEL, *bounds.split())
    assert verdict.is_proof, str(verdict)
    if "QUESTIONS" in bounds:
        assert verdict.takes_every_step


@pytest.mark.slow
@needs_spin
@pytest.mark.parametrize("fault", [
    pytest.param("NO_FENCE", id="a successor does not keep what comes directly before its sender's fence"),
    pytest.param("RESUME_EARLY", id="a successor begins when the first fence has come"),
    pytest.param("FENCE_DIRECT", id="a member sends its fence to the new coordinator"),
    pytest.param("NO_FORWARD", id="the old coordinator drops the reports that still come to it"),
    pytest.param("EARLY_HANDOVER", id="the old coordinator tells the members before the successor has answered"),
    pytest.param("STATE_BEHIND", id="the coordinator's state travels behind the succession"),
    pytest.param("REQUESTS_LEFT", id="reports that were heard and not answered do not go with the succession"),
    pytest.param("NO_REST", id="the role is handed over while a command is unread"),
    pytest.param("COUNTER_ANEW", id="a successor numbers commands from 0"),
    pytest.param("KEEPS_ACTING", id="the old coordinator goes on coordinating"),
    pytest.param("LEAVES_EARLY", id="the old coordinator says goodbye before all fences have come"),
])
def test_the_check_finds_the_planted_fault_that(tmp_path: Path, fault: str) -> None:
    check_fault(tmp_path, MODEL, fault, FAULTS[fault])
