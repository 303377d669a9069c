"""Runs spin on a model of this folder, and returns the story of a failing run.

The search is exhaustive (no bit states). It takes seconds and less than 1 GB. A check must find a planted fault for
the right reason, and the story of the failing run shows the reason.
"""

import ast
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

MODELS = Path(__file__).parent
CODE = Path(__file__).resolve().parents[2] / "megaflow"
MEMORY_MB = 2_000
INVALID_END = "invalid end state"
TELLING = ("worker ", "coordinator ", "launcher ")     # how a line of a story begins
DEPTH_MAX = 1_000       # steps of a run; the longest have about a hundred

NO_SPIN = "the model checker spin is not installed (apt install spin gcc); .ci/run installs it"

needs_spin = pytest.mark.skipif(shutil.which("spin") is None and not os.environ.get("CI"), reason=NO_SPIN)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Spin's result for a model."""

    output: str
    violated: str | None    # the assertion; INVALID_END: a process waits forever
    story: list[str]        # the actions of all processes in the failing run

    @property
    def is_proof(self) -> bool:
        return "errors: 0" in self.output and not re.search("not completed|too small|out of memory", self.output)

    @property
    def takes_every_step(self) -> bool:
        return re.search(r"unreached in proctype run_\w+\n\t\(0 of", self.output) is not None

    def __str__(self) -> str:
        return "\n".join([f"assertion violated: {self.violated}", *self.story, "", self.output])


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault, and how the check must find it."""

    assertions: str         # those that may fail
    happened: Callable[[Sequence[str]], bool]   # whether the fault happened, given the story of the failing run
    bounds: tuple[str, ...] = ()


def check(folder: Path, model: str, *macros: str, optimise: str = "-O1") -> Verdict:
    """Search all interleavings of the model with these macros defined."""
    file, defined = MODELS / model, [f"-D{macro}" for macro in macros]
    _run(folder, "spin", "-a", *defined, file)
    _run(folder, "gcc", optimise, "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", "-o", "pan", "pan.c")
    output = _run(folder, "./pan", f"-m{DEPTH_MAX}", "-w22")
    violated = re.search(rf"assertion violated (\w+)|{INVALID_END}", output)
    story: list[str] = []
    if (folder / f"{model}.trail").exists():
        replay = subprocess.run(
            ["spin", "-k", f"{model}.trail", "-t", *defined, file],
            cwd=folder, capture_output=True, text=True, timeout=840,
        )       # fails, as the run did
        story = [line.strip() for line in replay.stdout.splitlines() if line.strip().startswith(TELLING)]
    return Verdict(output, violated and (violated[1] or INVALID_END), story)


def check_fault(folder: Path, model: str, name: str, fault: Fault) -> None:
    """Fail unless the check finds the planted fault, and for the right reason."""
    verdict = check(folder, model, name, *fault.bounds, optimise="-O0")
    assert verdict.violated in (fault.assertions, *fault.assertions.split()), f"{name}: {verdict}"
    assert fault.happened(verdict.story), f"{name}: {verdict}"


def after_last(story: Sequence[str], pattern: str) -> re.Match[str]:
    """Return the last line of the story that matches."""
    return next(match for line in reversed(story) if (match := re.fullmatch(pattern, line)))


def named_in_code(model: str) -> tuple[set[str], set[str]]:
    """Return the names that the model's table attributes to the code, and those of them that the code lacks.

    These are names `Class.method`, and the word after "message", "class" or "function".
    """
    text = (MODELS / model).read_text(encoding="utf-8")
    table = text[text.index("In megaflow's code") : text.index("What keeps it small")]
    named = set(re.findall(r"\b[A-Z]\w+\.\w+", table))
    named |= set(re.findall(r"(?:message|class|function) (\w+)", table))
    return named, named - existing_in_code()


@cache
def existing_in_code() -> frozenset[str]:
    """Return the classes and functions of megaflow, and each `Class.method`."""
    trees = [ast.parse(module.read_text(encoding="utf-8")) for module in CODE.rglob("*.py")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    existing = {node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    existing |= {f"{each.name}.{it.name}" for each in classes for it in each.body if isinstance(it, ast.FunctionDef)}
    return frozenset(existing)


def _run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout
