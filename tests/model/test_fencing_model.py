"""Launchers that all believe that a store is theirs, in all interleavings: `fencing.pml`, checked by spin."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.spin import Fault, check, check_fault, named_in_code, needs_spin

MODEL = "fencing.pml"


def numbers(story: Sequence[str], pattern: str) -> list[str]:
    """Return the pattern's first group in each line that matches."""
    return [it[1] for line in story if (it := re.fullmatch(pattern, line))]


def it_took_over_a_newer_one(story: Sequence[str]) -> bool:
    launcher = re.fullmatch(r"launcher (\d) acknowledges commit \d", story[-1])
    if launcher is None:
        return False
    first, second = numbers(story, rf"launcher {launcher[1]} reads commit (\d)")[-2:]
    return int(first) < int(second)


def another_one_had_begun(story: Sequence[str]) -> bool:
    return "launcher 1 acknowledges" in "\n".join(story) and story[-2] == "launcher 0 loses its processes"


def it_removed_before_it_had_begun(story: Sequence[str]) -> bool:
    """Return the second launcher's first action after its read."""
    after = story[[line.startswith("launcher 1 reads ") for line in story].index(True) + 1 :]
    return next(line for line in after if line.startswith("launcher 1")) == "launcher 1 removes old commits"


def a_number_was_used_twice(story: Sequence[str]) -> bool:
    linked = numbers(story, r"launcher \d links commit (\d)")
    return len(set(linked)) < len(linked)


def it_took_the_others_for_its_own(story: Sequence[str]) -> bool:
    failed = re.search(r"launcher (\d) fails to link commit (\d)", "\n".join(story))
    return failed is not None and f"launcher {failed[1]} finds its commit {failed[2]}" in story


def it_gave_up_what_had_been_there(story: Sequence[str]) -> bool:
    return any("does not find its commit" in line for line in story) and any("gives a " in line for line in story)


def it_gave_up_what_was_there(story: Sequence[str]) -> bool:
    failed = [at for at, line in enumerate(story) if " fails to " in line]
    return any("gives a checkpoint up" in story[at + 1] for at in failed)


def the_power_failed(story: Sequence[str]) -> bool:
    return story[-1].endswith("lose their power")


def it_had_removed_segments(story: Sequence[str]) -> bool:
    return any(line.endswith("removes old segments") for line in story[-2:])


def the_other_one_had_one_in_flight(story: Sequence[str]) -> bool:
    swept = next(
        at for at, line in reversed(list(enumerate(story))) if re.fullmatch(r"launcher 0 removes old segments", line)
    )
    last = next(line for line in reversed(story[:swept]) if line.startswith("launcher 1"))
    return bool(re.fullmatch(r"launcher 1 has checkpoint \d written", last))


TWO = ("CHECKPOINTS=2",)
FAULTS = {
    "READS_AGAIN": Fault("jobs_begin_with_what_they_read", it_took_over_a_newer_one, TWO),
    "TAKES_IT_BACK": Fault("nobody_takes_it_back", another_one_had_begun, TWO),
    "NO_INCARNATION": Fault("acknowledged_is_kept kept_commits_are_whole", it_removed_before_it_had_begun, TWO),
    "CLEANS_FIRST": Fault("acknowledged_is_kept kept_commits_are_whole", it_removed_before_it_had_begun, TWO),
    "RENAMES": Fault("acknowledged_is_kept the_fenced_are_not_read", a_number_was_used_twice, TWO),
    "NEVER_LOOKS": Fault("acknowledged_is_kept kept_commits_are_whole", a_number_was_used_twice, TWO),
    "ANY_IS_MINE": Fault("kept_commits_are_whole acknowledged_is_kept", it_took_the_others_for_its_own, TWO),
    "ABSENT_IS_FREE": Fault("the_abandoned_stay_so", it_gave_up_what_had_been_there, (*TWO, "FAILURES=2")),
    "DOUBTS_NOTHING": Fault("the_abandoned_stay_so", it_gave_up_what_was_there, TWO),
    "ACKNOWLEDGES_EARLY": Fault("acknowledged_is_kept", the_power_failed, TWO),
    "COMMITS_GO_EARLY": Fault("acknowledged_is_kept", the_power_failed, TWO),
    "KEEPS_NO_OTHERS": Fault("kept_commits_are_whole", it_had_removed_segments, (*TWO, "KEPT=2")),
    "SWEEPS_ALL": Fault("kept_commits_are_whole", the_other_one_had_one_in_flight, TWO),
}


def test_what_the_model_says_of_the_code_exists() -> None:
    named, missing = named_in_code(MODEL)
    assert len(named) > 15 and missing == set()


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("bounds", [
    pytest.param("CHECKPOINTS=3", id="two launchers and three checkpoints"),
    pytest.param("CHECKPOINTS=2 FAILURES=2", id="a disk that fails twice"),
    pytest.param("CHECKPOINTS=3 KEPT=2 FAILURES=0", id="two checkpoints are kept"),
    pytest.param("CHECKPOINTS=2 LAUNCHERS=3 RESTARTS=0", id="three launchers"),
])
def test_what_was_acknowledged_is_found_and_nothing_of_a_launcher_that_was_overtaken(
    tmp_path: Path, bounds: str
) -> None:
    verdict = check(tmp_path, MODEL, *bounds.split())
    assert verdict.is_proof, str(verdict)
    assert "=0" in bounds or verdict.takes_every_step, str(verdict)


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("fault", [
    pytest.param("READS_AGAIN", id="a launcher reads the store again when it takes it over"),
    pytest.param("TAKES_IT_BACK", id="a launcher begins anew though another one has taken the store over"),
    pytest.param("NO_INCARNATION", id="an incarnation begins without a commit"),
    pytest.param("CLEANS_FIRST", id="a launcher removes files before its incarnation is committed"),
    pytest.param("RENAMES", id="a commit replaces one that has its number"),
    pytest.param("NEVER_LOOKS", id="a launcher that slept does not look for a higher commit"),
    pytest.param("ANY_IS_MINE", id="a launcher takes any commit of the number in doubt for its own"),
    pytest.param("ABSENT_IS_FREE", id="a commit in doubt that is gone is taken for one that was never there"),
    pytest.param("DOUBTS_NOTHING", id="a commit in doubt is given up"),
    pytest.param("ACKNOWLEDGES_EARLY", id="a commit is acknowledged before its name is durable"),
    pytest.param("COMMITS_GO_EARLY", id="older commits are removed before the new one is durable"),
    pytest.param("KEEPS_NO_OTHERS", id="segments are removed though a kept commit names them"),
    pytest.param("SWEEPS_ALL", id="segments in flight are removed"),
])
def test_the_check_finds_the_planted_fault_that(tmp_path: Path, fault: str) -> None:
    check_fault(tmp_path, MODEL, fault, FAULTS[fault])
