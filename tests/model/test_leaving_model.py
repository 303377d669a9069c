"""Workers that leave in all interleavings of a small cluster: `leaving.pml`, checked by spin."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.spin import INVALID_END, Fault, check, check_fault, named_in_code, needs_spin

MODEL = "leaving.pml"


def before_it_went(story: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the first worker that went, and the actions before."""
    at, worker = next((at, it[1]) for at, line in enumerate(story) if (it := re.fullmatch(r"worker (\d) goes", line)))
    return worker, story[:at]


def it_did_not_wait_for_the_others(story: Sequence[str]) -> bool:
    return sum(line.endswith("applies the commit") for line in before_it_went(story)[1]) < 3


def it_did_not_wait_for_a_record(story: Sequence[str]) -> bool:
    worker, before = before_it_went(story)
    sent, consumed = (
        sum(bool(re.match(pattern, line)) for line in before)
        for pattern in (rf"worker \d sends worker {worker} a record", rf"worker {worker} consumes a record")
    )
    return sent > consumed and not it_did_not_wait_for_the_others(story)


def it_held_a_capability(story: Sequence[str]) -> bool:
    worker, before = before_it_went(story)
    return worker == "1" and not any(line.startswith("worker 1 lets go ") for line in before)


def it_had_something_to_tell(story: Sequence[str]) -> bool:
    worker, before = before_it_went(story)
    doings = [line for line in before if re.match(rf"worker {worker} (sends|goes from|lets go|consumes|tells) ", line)]
    return not doings[-1].startswith(f"worker {worker} tells ")


def a_batch_was_on_its_way(story: Sequence[str]) -> bool:
    forgotten = re.fullmatch(r"worker (\d) forgets worker (\d)", story[-1])
    if forgotten is None:
        return False
    by, whose = forgotten.groups()
    told, folded = (
        sum(bool(re.match(pattern, line)) for line in story)
        for pattern in (rf"worker {whose} tells batch", rf"worker {by} folds batch \d of worker {whose}")
    )
    return told > folded


def it_still_held_one(story: Sequence[str]) -> bool:
    """Whether it was worker 1, after it had committed to its leave and waited for a time to pass."""
    return "worker 1 goes from time 0 to 1" in story and "worker 1 lets go of time 1" not in story


def it_was_sent_a_record_afterwards(story: Sequence[str]) -> bool:
    worker, before = before_it_went(story)
    return any(re.match(rf"worker \d sends worker {worker} a record", line) for line in story[len(before) :])


TWO = ("OTHER=0", "RECORDS=0")
FAULTS = {
    "NO_DRAIN": Fault("nobody_sends_to_the_gone", it_did_not_wait_for_the_others),
    "FENCE_BESIDE": Fault("nobody_sends_to_the_gone", it_did_not_wait_for_a_record),
    "GOES_HOLDING": Fault("nothing_is_left", it_held_a_capability),
    "END_BEFORE_TOLD": Fault("counts_are_the_truth", it_had_something_to_tell),
    "ONE_LANE": Fault("all_is_heard", a_batch_was_on_its_way),
    "DEAF_AT_COMMIT": Fault("all_is_heard", lambda story: any(" drops batch " in line for line in story)),
    "SILENT_AT_COMMIT": Fault(INVALID_END, it_still_held_one, TWO),
    "SENDS_ON": Fault("nobody_sends_to_the_gone", it_was_sent_a_record_afterwards),
}


def test_what_the_model_says_of_the_code_exists() -> None:
    named, missing = named_in_code(MODEL)
    assert len(named) > 10 and missing == set()


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("bounds", [
    pytest.param("HOLDER=1 LEAVES=2", id="one that may leave holds a capability, and sends a record"),
    pytest.param("HOLDER=0 LEAVES=2", id="one that stays holds a capability, and sends a record"),
    pytest.param("OTHER=0 RECORDS=0 LEAVES=2", id="two hold capabilities"),
    pytest.param("HOLDER=1 RECORDS=0 WORKERS=4 LEAVES=2", id="one of four, of whom two leave, holds a capability"),
])
def test_whoever_leaves_leaves_nothing_behind(tmp_path: Path, bounds: str) -> None:
    verdict = check(tmp_path, MODEL, *bounds.split())
    assert verdict.is_proof, str(verdict)
    if "RECORDS" not in bounds:
        assert verdict.takes_every_step, str(verdict)


@pytest.mark.slow
@needs_spin
@pytest.mark.parametrize("fault", [
    pytest.param("NO_DRAIN", id="a worker goes though others may still send it records"),
    pytest.param("FENCE_BESIDE", id="the word that no more records come overtakes a record"),
    pytest.param("GOES_HOLDING", id="a worker goes with a capability"),
    pytest.param("END_BEFORE_TOLD", id="a worker goes before it has told its last progress"),
    pytest.param("ONE_LANE", id="the end of one lane is taken for the end of all"),
    pytest.param("DEAF_AT_COMMIT", id="the members stop listening to a leaving worker at the commit"),
    pytest.param("SILENT_AT_COMMIT", id="the members stop telling a leaving worker their progress at the commit"),
    pytest.param("SENDS_ON", id="a member goes on sending records to a leaving worker after the commit"),
])
def test_the_check_finds_the_planted_fault_that(tmp_path: Path, fault: str) -> None:
    check_fault(tmp_path, MODEL, fault, FAULTS[fault])
