"""The same files give the same late records and final windows at any speed, with any workers and crashes.

A seed is a program of windows and of folds with expiring states, and its files, as in `event_time`. Each variant of a
seed draws everything else anew: the number of workers and when they join and leave, the speed of each, which splits are
handed over, and the times of checkpoints and kills. No partition is ever idle. The outputs of all variants are equal
except for epochs and order. Each variant's outputs also equal those of the model in plain Python, as in `event_time`.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

from megaflow.testing.simulated_storage import JobStorage
from tests.simulation.event_model import Windows
from tests.simulation.event_moves import few
from tests.simulation.event_programs import SECOND, Operator, Program
from tests.simulation.event_time import EventAttempts, LoggedStorage

VARIANTS = 3
NEVER_IDLE_SECONDS = 1e6


class Variant(EventAttempts):
    """One of the ways to read a seed's files."""

    def __init__(self, seed: int, variant: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self._program.operators = reproducible(self._program)
        self._feed = None
        self._input = self._files(folder)
        self._idle_seconds = NEVER_IDLE_SECONDS
        has_store = Random(f"store of {seed}").random() < 0.8
        self._seed = seed * VARIANTS + variant
        self._random = Random(f"variant {variant} of {seed}")
        self._storage: JobStorage | None = LoggedStorage(self._random, self._log) if has_store else None
        self.outputs: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """Run all attempts. Never stop a job without a store, since the stopping place would depend on its speed."""
        if self._storage is not None:
            return super().run()
        self._log.begin(0, 0, closes=True)
        self._live(self._draw_quiet(), 1)
        return self.seen

    def _check(self, text: str) -> None:
        super()._check(text)
        self.outputs = Counter(json.dumps(json.loads(line)["record"]) for line in text.splitlines())


def reproducible(program: Program) -> list[Operator]:
    """Return the operators whose results depend neither on epochs nor on the order between partitions."""
    found: list[Operator] = []
    numbers: dict[int, int] = {}
    for each in program.operators:
        if each.by_clock or each.stamp == "function" or (each.parent is not None and each.parent not in numbers):
            continue
        if each.windows is not None or each.ttl or each.stamp == "record":
            numbers[each.number] = len(found)
            windows = None if each.windows is None else replace(each.windows, emit=None)
            parent = None if each.parent is None else numbers[each.parent]
            found.append(replace(each, number=len(found), parent=parent, windows=windows))
    return found or [Operator(0, None, Windows(3 * SECOND, 3 * SECOND), ("count",))]


def run(seed: int) -> Counter[str]:
    """Run all variants of a seed; return counts of what happened. Raise an AssertionError that names it if they differ.
    """
    seen: Counter[str] = Counter()
    first: Counter[str] | None = None
    for variant in range(VARIANTS):
        with tempfile.TemporaryDirectory(prefix="megaflow-reproducible-") as folder:
            attempts = Variant(seed, variant, Path(folder))
            try:
                seen += attempts.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}, variant {variant}: {error!r}") from error
        first = attempts.outputs if first is None else first
        missing, extra = few(first - attempts.outputs), few(attempts.outputs - first)
        assert first == attempts.outputs, f"seed {seed}: variant {variant} lacks {missing} of the first, adds {extra}"
    return seen
