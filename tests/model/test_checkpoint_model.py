"""Checkpoints, crashes and resumption in all interleavings of two workers: `checkpoint.pml`, checked by spin."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.spin import Fault, check, check_fault, named_in_code, needs_spin

MODEL = "checkpoint.pml"


def last_attempt(story: Sequence[str]) -> Sequence[str]:
    """Return the actions of the incarnation that crashed last, between its recovery and the crash."""
    begun = [at for at, line in enumerate(story[:-1]) if line.startswith("launcher goes on")]
    return story[begun[-1] + 1 if begun else 0 : -2]


def place(story: Sequence[str], pattern: str) -> int:
    """Return the index of the story's first matching line, or its length without a match."""
    return next((at for at, line in enumerate(story) if re.fullmatch(pattern, line)), len(story))


def recovered(story: Sequence[str]) -> tuple[int, int, int, int, int]:
    """Return the checkpoint, and the sets of records in its state, read before, in the output, and in the file."""
    found = re.fullmatch(
        r"launcher goes on from checkpoint (\d): state (\d), read (\d), output (\d) of (\d)", story[-1]
    )
    assert found is not None, story[-1]
    checkpoint, state, read, output, file = map(int, found.groups())
    return checkpoint, state, read, output, file


def has_too_much(story: Sequence[str]) -> bool:
    _, state, read, _, _ = recovered(story)
    return bool(state & ~read)


def has_too_little(story: Sequence[str]) -> bool:
    _, state, read, _, _ = recovered(story)
    return bool(read & ~state)


def the_bin_went_before_the_cut(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    cut = place(attempt, rf"worker 0 cuts checkpoint {recovered(story)[0]}")
    return has_too_little(story) and place(attempt, r"worker 0 ships the bin .*") < cut


def the_bin_came_before_the_cut(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    cut = place(attempt, rf"worker 1 cuts checkpoint {recovered(story)[0]}")
    return has_too_much(story) and place(attempt, r"worker 1 has the bin .*") < cut


def the_new_owner_touched_nothing(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    return has_too_little(story) and place(attempt, r"worker 1 has the bin .*") < place(attempt, r"worker 1 cuts .*")


def one_before_was_abandoned(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    abandoned = place(attempt, r"coordinator abandons checkpoint 1")
    return has_too_little(story) and abandoned < place(attempt, r"coordinator begins checkpoint 2, since 0, .*")


def a_commit_failed(story: Sequence[str]) -> bool:
    failed = place(last_attempt(story), r"launcher cannot commit checkpoint 1")
    return one_before_was_abandoned(story) and failed < len(last_attempt(story))


def the_bin_was_still_to_come(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    cut = place(attempt, rf"worker 1 cuts checkpoint {recovered(story)[0]}")
    return has_too_little(story) and cut < place(attempt, r"worker 1 has the bin .*") < len(attempt)


def a_record_still_waited(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    cut = place(attempt, rf"worker 0 cuts checkpoint {recovered(story)[0]}")
    early = place(attempt, r"worker \d reads record \d at epoch \d")
    return has_too_little(story) and early < cut and any(" applies record " in line for line in attempt[cut:])


def it_was_written_later(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    number = recovered(story)[0]
    between = [
        attempt[place(attempt, rf"worker {worker} cuts checkpoint {number}") : place(attempt, written)]
        for worker in (0, 1)
        for written in [rf"worker {worker} has written \d for checkpoint {number}"]
    ]
    return has_too_much(story) and any(" applies record " in line for lines in between for line in lines)


def it_read_on(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    number = recovered(story)[0]
    said = [place(attempt, rf"worker {worker} says where it is at checkpoint {number}") for worker in (0, 1)]
    epoch = next(line for line in attempt if line.startswith(f"coordinator begins checkpoint {number}, ")).split()[-1]
    return has_too_much(story) and any(
        int(line.split()[-1]) < int(epoch) for line in attempt[min(said) :] if " reads record " in line
    )


def the_split_was_in_nobodys_hands(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    given = place(attempt, r"worker 0 is given the split")
    begun = place(attempt, rf"coordinator begins checkpoint {recovered(story)[0]}, .*")
    return has_too_little(story) and begun < given


def a_worker_had_not_written(story: Sequence[str]) -> bool:
    attempt = last_attempt(story)
    linked = place(attempt, rf"launcher links the commit of checkpoint {recovered(story)[0]}")
    written = [place(attempt, rf"worker {worker} has written .*") for worker in (0, 1)]
    return has_too_little(story) and max(written) > linked


def the_power_failed(story: Sequence[str]) -> bool:
    return story[-2] == "launcher loses its power"


def the_word_was_overtaken(story: Sequence[str]) -> bool:
    at = max(at for at, line in enumerate(story) if line.startswith("coordinator begins checkpoint "))
    return not any(line.startswith("launcher has measured ") for line in story[at:])


def it_read_before_the_commits_epoch(story: Sequence[str]) -> bool:
    return any(line.endswith("at epoch 0") for line in story)


FAULTS = {
    "SHIPS_UNCUT": Fault("state_is_what_was_read", the_bin_went_before_the_cut),
    "INSTALLS_UNCUT": Fault("state_is_what_was_read", the_bin_came_before_the_cut, ("CHECKPOINTS=1",)),
    "ARRIVED_IN_PART": Fault("state_is_what_was_read", the_new_owner_touched_nothing),
    "SINCE_ABANDONED": Fault("state_is_what_was_read", one_before_was_abandoned),
    "OFF_BY_ONE": Fault("state_is_what_was_read", has_too_much, ("CHECKPOINTS=1",)),
    "IDLE_IGNORES_STATE": Fault("state_is_what_was_read", the_bin_was_still_to_come, ("CHECKPOINTS=1",)),
    "IDLE_IGNORES_STASH": Fault("state_is_what_was_read", a_record_still_waited, ("CHECKPOINTS=1",)),
    "NO_BARRIER": Fault("state_is_what_was_read", it_was_written_later, ("CHECKPOINTS=1", "WHOLE=1")),
    "POSITIONS_EARLY": Fault("state_is_what_was_read", it_read_on, ("CHECKPOINTS=1",)),
    "BEGINS_BETWEEN": Fault(
        "state_is_what_was_read", the_split_was_in_nobodys_hands, ("CHECKPOINTS=1", "HANDS=1", "MOVES=0")
    ),
    "READY_EARLY": Fault("state_is_what_was_read", a_worker_had_not_written, ("CHECKPOINTS=1",)),
    "TOLD_EARLY": Fault("state_is_what_was_read", a_commit_failed),
    "BEGUN_ASIDE": Fault("the_mark_is_in_time", the_word_was_overtaken, ("CHECKPOINTS=1",)),
    "OUTPUT_UNSYNCED": Fault("output_is_there", the_power_failed, ("CHECKPOINTS=1",)),
    "ACKNOWLEDGES_EARLY": Fault("acknowledged_is_kept", the_power_failed, ("CHECKPOINTS=1",)),
    "RESUMES_AT_T": Fault("epochs_go_on", it_read_before_the_commits_epoch, ("CHECKPOINTS=1",)),
}


def test_what_the_model_says_of_the_code_exists() -> None:
    named, missing = named_in_code(MODEL)
    assert len(named) > 20 and missing == set()


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("bounds", [
    pytest.param("CHECKPOINTS=2 MOVES=1", id="the second checkpoint follows the first, or what that followed"),
    pytest.param("CHECKPOINTS=1 WHOLE=1", id="the bin is written whole as its turn comes"),
    pytest.param("CHECKPOINTS=1 MOVES=0 HANDS=1 FAILURES=0", id="a split goes from one worker to the other"),
])
def test_a_job_goes_on_with_what_it_had_read_and_no_more_whenever_it_crashes(tmp_path: Path, bounds: str) -> None:
    verdict = check(tmp_path, MODEL, *bounds.split())
    assert verdict.is_proof, str(verdict)
    assert "HANDS" in bounds or verdict.takes_every_step, str(verdict)


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("fault", [
    pytest.param("SHIPS_UNCUT", id="a worker ships the bin before it cuts"),
    pytest.param("INSTALLS_UNCUT", id="a worker adds the bin before it cuts"),
    pytest.param("ARRIVED_IN_PART", id="of a bin that came only what was touched since is written"),
    pytest.param("SINCE_ABANDONED", id="a delta follows a checkpoint that was abandoned"),
    pytest.param("OFF_BY_ONE", id="what is of the checkpoint's epoch is applied before the cut"),
    pytest.param("IDLE_IGNORES_STATE", id="a worker with no data cuts though a bin is still to come"),
    pytest.param("IDLE_IGNORES_STASH", id="a worker with no input cuts though records wait there"),
    pytest.param("NO_BARRIER", id="a bin is written as it is then, not as it was at the cut"),
    pytest.param("POSITIONS_EARLY", id="a source says where it is before control has passed"),
    pytest.param("BEGINS_BETWEEN", id="a checkpoint begins while a split is in nobody's hands"),
    pytest.param("READY_EARLY", id="a commit does not wait for one of the workers"),
    pytest.param("TOLD_EARLY", id="journals are told of a commit before it is there"),
    pytest.param("BEGUN_ASIDE", id="the word that a checkpoint begins is overtaken by the end of its epoch"),
    pytest.param("OUTPUT_UNSYNCED", id="a commit does not wait for the output to be synced"),
    pytest.param("ACKNOWLEDGES_EARLY", id="a commit is acknowledged before its name is durable"),
    pytest.param("RESUMES_AT_T", id="control goes on in the checkpoint's epoch, not after it"),
])
def test_the_check_finds_the_planted_fault_that(tmp_path: Path, fault: str) -> None:
    check_fault(tmp_path, MODEL, fault, FAULTS[fault])
