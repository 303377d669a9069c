"""Workloads of the suite: contenders that take turns, and the goals for their figures.

Each workload includes the plain Python loop that calls the same fold, in a process of its own. It is the limit of any
fold in Python, and the first number to compare with. Other systems that are not installed are left out, with the
reason.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apps.bench.report import Draw, Found, Goal

ROOT = Path(__file__).resolve().parent.parent.parent
PLAIN = "plain Python loop"
CHILD_SECONDS_MAX = 900.0  # the slowest system takes a few minutes on the largest text


class Absent(Exception):
    """A contender that is not installed, or does not run here. The message gives the reason."""


class WrongCounts(Exception):
    """The output of a contender is wrong."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Options of the command, and the folders for files."""

    quick: bool  # sizes that only show that everything works
    folder: Path  # of the workload; deleted when it is over
    stack: contextlib.ExitStack  # closed when it is over
    text: Path | None = None  # whose words to count; None: Python's standard library
    peers: Path = ROOT / ".venv-peers" / "bin" / "python"  # of the environment with Bytewax and Pathway
    drawings: dict[str, Draw] | None = None  # for the pictures of a workload

    def size(self, full: int, quick: int) -> int:
        """Return the size for this run."""
        return quick if self.quick else full

    def picture(self, name: str, draw: Draw) -> None:
        """Add a picture to draw at the end, besides the bars."""
        if self.drawings is not None:
            self.drawings[name] = draw


@dataclass(frozen=True, slots=True)
class Step:
    """One turn in every repetition, usually that of a contender. Its run raises Absent to be left out."""

    name: str
    run: Callable[[], Found]
    times_max: int | None = None  # for a contender that is too slow for every turn


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload of the suite."""

    id: str  # S1, S2 …
    title: str
    open: Callable[[Setting], Sequence[Step]]  # first writes the files that the steps need
    goals: tuple[Goal, ...]
    base: str | None = PLAIN
    repeat_max: int | None = None  # for a workload whose single run is long enough or repeats by itself
    notes: tuple[str, ...] = ()


def one(row: str, figures: dict[str, float]) -> Found:
    """Return the result of a single run of one row."""
    return {row: {name: [value] for name, value in figures.items()}}


def usual_environment() -> dict[str, str]:
    """Return the environment, but let Python cache its bytecode, as usual: it starts faster."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def run_json(command: Sequence[str | Path], what: str, seconds_max: float = CHILD_SECONDS_MAX) -> dict[str, Any]:
    """Run a program that prints a line of JSON at the end; return its value. Raises Absent if it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env=usual_environment(),
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except FileNotFoundError as error:
        raise Absent(f"{what} is not there: {error.filename}; make bench-peers installs it") from error
    except subprocess.TimeoutExpired as error:
        raise Absent(f"{what} took more than {seconds_max:.0f} s") from error
    said = done.stdout.strip().splitlines()
    if done.returncode or not said:
        complaint = done.stderr.strip().splitlines()
        raise Absent(f"{what} does not run here: {complaint[-1] if complaint else f'exit code {done.returncode}'}")
    record: dict[str, Any] = json.loads(said[-1])
    return record


def plain(*words: str | Path) -> dict[str, Any]:
    """Run the plain loop with that name (see `apps.bench.plain`) in a new process."""
    return run_json([sys.executable, "-m", "apps.bench.plain", *words], PLAIN)


def peer(interpreter: Path | str, script: str, what: str, *words: str | Path) -> dict[str, Any]:
    """Run a script of `apps/bench/peers` with the interpreter of its environment."""
    if not Path(interpreter).exists():
        raise Absent(f"{what} is not installed (make bench-peers)")
    return run_json([interpreter, ROOT / "apps" / "bench" / "peers" / script, *words], what)


def check_count(what: str, found: int, expected: int) -> None:
    """Raise WrongCounts if the two differ."""
    if found != expected:
        raise WrongCounts(f"{what}: {found:,} records came out, not {expected:,}")
