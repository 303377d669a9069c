"""The join protocol in all interleavings of a small cluster: `bootstrap.pml`, checked by spin.

The search is exhaustive (no bit states): it takes seconds and less than 1 GB. A planted fault must not only be found,
it must be found for the right reason, which the story of the failing run shows.
"""

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("bootstrap.pml")
CODE = Path(__file__).resolve().parents[2] / "megaflow"
MEMORY_MB = 2_000
DEPTH_MAX = 1_000       # steps of a run; the longest have about a hundred
JOINERS = "34"

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None and not os.environ.get("CI"),
    reason="the model checker spin is not installed (apt install spin gcc); .ci/run installs it",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What spin says of the model."""

    output: str
    violated: str | None    # the assertion
    story: list[str]        # what the workers did in the failing run

    @property
    def is_proof(self) -> bool:
        return "errors: 0" in self.output and not re.search("not completed|too small|out of memory", self.output)


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def check(folder: Path, *macros: str, optimise: str = "-O1") -> Verdict:
    """Search all interleavings of the model with these -D macros."""
    run(folder, "spin", "-a", *macros, MODEL)
    run(folder, "gcc", optimise, "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c")
    output = run(folder, "./pan", f"-m{DEPTH_MAX}", "-w22")
    violated = re.search(r"assertion violated (\w+)", output)
    story: list[str] = []
    if (folder / "bootstrap.pml.trail").exists():
        replay = subprocess.run(
            ["spin", "-k", "bootstrap.pml.trail", "-t", *macros, MODEL],
            cwd=folder, capture_output=True, text=True, timeout=60,
        )       # fails, as the run did
        story = [line.strip() for line in replay.stdout.splitlines() if line.strip().startswith("worker ")]
    return Verdict(output, violated[1] if violated else None, story)


def after_last(story: Sequence[str], pattern: str) -> re.Match[str]:
    """The last line of the story that reads like this."""
    return next(match for line in reversed(story) if (match := re.fullmatch(pattern, line)))


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


FAULTS: dict[str, tuple[str, Callable[[Sequence[str]], bool]]] = {
    # macro -> (assertions that may fail, what happened in the failing run)
    "NO_DEDUP": ("batch_is_the_next", the_snapshot_held_it),
    "NO_RANGE": ("batch_is_the_next counts_are_the_truth", nobody_asked_for_the_range),
    "NO_GATE": ("source_frontier_is_true", the_release_overtook_the_capability),
    "NO_SETTLING": ("source_frontier_is_true", the_release_overtook_the_capability),
    "NO_WAIT_FOR_GRANT": ("source_frontier_is_true", the_release_overtook_the_capability),
    "DROP_UNKNOWN": ("batch_is_the_next counts_are_the_truth", a_batch_was_dropped),
    "MINT_AT_VIEW": ("source_frontier_is_true", the_minter_held_none),
}


def test_what_the_model_says_of_the_code_exists() -> None:
    text = MODEL.read_text(encoding="utf-8")
    table = text[text.index("In megaflow's code") : text.index("What keeps it small")]
    trees = [ast.parse(module.read_text(encoding="utf-8")) for module in CODE.rglob("*.py")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    existing = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    existing |= {f"{each.name}.{it.name}" for each in classes for it in each.body if isinstance(it, ast.FunctionDef)}
    named = set(re.findall(r"\b[A-Z]\w+\.\w+", table)) | set(re.findall(r"(?:message|function) (\w+)", table))
    assert len(named) > 20 and named - existing == set()


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["JOINERS=2 OPERATIONS=2", "JOINERS=1 OPERATIONS=1 RECORDS=1",
                                    "JOINERS=1 OPERATIONS=2 HOLDERS=2"])
def test_no_batch_is_lost_doubled_or_misordered_and_no_frontier_is_ahead_of_the_truth(
    tmp_path: Path, bounds: str
) -> None:
    verdict = check(tmp_path, *(f"-D{bound}" for bound in bounds.split()))
    assert verdict.is_proof, "\n".join([verdict.output, *verdict.story])
    if "JOINERS=2" in bounds:
        assert "unreached in proctype run_worker\n\t(0 of" in verdict.output, "some step is never taken"


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
    assertions, happened = FAULTS[fault]
    verdict = check(tmp_path, f"-D{fault}", optimise="-O0")
    told = "\n".join([f"{fault}: assertion violated: {verdict.violated}", *verdict.story, "", verdict.output])
    assert verdict.violated in assertions.split(), told
    assert happened(verdict.story), told
