"""The join protocol in all interleavings of a small cluster: `bootstrap.pml`, checked by spin."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.model.spin import Fault, after_last, check, check_fault, named_in_code, needs_spin

MODEL = "bootstrap.pml"
JOINERS = "34"


def the_snapshot_held_it(story: Sequence[str]) -> bool:
    last = after_last(story[-1:], r"worker (\d) folds batch (\d) of worker (\d)")
    joiner, number, sender = last.groups()
    snapshot = after_last(story, rf"worker (\d) cuts a snapshot for worker {joiner}")
    before = story[: story.index(snapshot[0])]
    return f"worker {snapshot[1]} folds batch {number} of worker {sender}" in before


def the_release_overtook_the_capability(story: Sequence[str]) -> bool:
    worker = after_last(story[-1:], r"worker (\d) folds batch .*")[1]
    for at, line in enumerate(story):
        minted = re.fullmatch(r"worker (\d) mints for worker (\d) .*", line)
        if minted and story[at + 1].startswith(f"worker {minted[1]} folds batch "):
            number = story[at + 1].split()[4]
            released = any(re.fullmatch(rf"worker {worker} folds batch \d of worker {minted[2]}", it) for it in story)
            if released and f"worker {worker} folds batch {number} of worker {minted[1]}" not in story:
                return True
    return False


def the_minter_held_none(story: Sequence[str]) -> bool:
    held = {"0": 0}
    for line in story:
        if moved := re.fullmatch(r"worker (\d) goes from time \d to (\d)", line):
            held[moved[1]] = int(moved[2])
        elif minted := re.fullmatch(r"worker (\d) mints for worker (\d) at time (\d)", line):
            time = int(minted[3])
            if held.get(minted[1]) != time:
                return True
            held[minted[2]] = time
    return False


def nobody_asked_for_the_range(story: Sequence[str]) -> bool:
    joiner = after_last(story, r"worker \d cuts a snapshot for worker (\d)")[1]
    ahead = [re.fullmatch(rf"worker \d sends worker [{JOINERS}] marker ([1-9])", line) for line in story]
    return joiner in JOINERS and any(ahead)


def a_batch_was_dropped(story: Sequence[str]) -> bool:
    return any(" drops batch " in line for line in story)


FAULTS = {
    "NO_DEDUP": Fault("batch_is_the_next", the_snapshot_held_it),
    "NO_RANGE": Fault("batch_is_the_next counts_are_the_truth", nobody_asked_for_the_range),
    "NO_GATE": Fault("source_frontier_is_true", the_release_overtook_the_capability),
    "NO_SETTLING": Fault("source_frontier_is_true", the_release_overtook_the_capability),
    "NO_WAIT_FOR_GRANT": Fault("source_frontier_is_true", the_release_overtook_the_capability),
    "DROP_UNKNOWN": Fault("batch_is_the_next counts_are_the_truth", a_batch_was_dropped),
    "MINT_AT_VIEW": Fault("source_frontier_is_true", the_minter_held_none),
}


def test_what_the_model_says_of_the_code_exists() -> None:
    named, missing = named_in_code(MODEL)
    assert len(named) > 20 and missing == set()


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["JOINERS=2 OPERATIONS=2", "JOINERS=1 OPERATIONS=1 RECORDS=1",
                                    "JOINERS=1 OPERATIONS=2 HOLDERS=2"])
def test_no_batch_is_lost_doubled_or_misordered_and_no_frontier_is_ahead_of_the_truth(
    tmp_path: Path, bounds: str
) -> None:
    verdict = check(tmp_path, MODEL, *bounds.split())
    assert verdict.is_proof, str(verdict)
    if "JOINERS=2" in bounds:
        assert verdict.takes_every_step


@pytest.mark.slow
@needs_spin
@pytest.mark.parametrize("fault", [
    pytest.param("NO_DEDUP", id="a joiner folds what its snapshot holds already"),
    pytest.param("NO_RANGE", id="a joiner asks for nothing between its snapshot and a marker"),
    pytest.param("NO_GATE", id="a member folds a joiner's batches before the one that minted its capability"),
    pytest.param("NO_SETTLING", id="a join begins before all have folded the minting batch of the last"),
    pytest.param("NO_WAIT_FOR_GRANT", id="a joiner acts before it has folded that batch itself"),
    pytest.param("DROP_UNKNOWN", id="a member drops what comes from a worker before it has applied the commit"),
    pytest.param("MINT_AT_VIEW", id="the server mints at the frontier that it sees"),
])
def test_the_check_finds_the_planted_fault_that(tmp_path: Path, fault: str) -> None:
    check_fault(tmp_path, MODEL, fault, FAULTS[fault])
