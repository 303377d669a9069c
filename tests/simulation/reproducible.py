"""The same files give the same late records and final windows, whatever the speed, the workers and the crashes.

A seed is a program of windows, and of folds whose states last, and files, as in `event_time`. Each of its variants has
dice of its own: how many workers there are and when they come and go, how fast each reads, which splits change hands,
when checkpoints are made and processes are killed. No partition is ever idle. What variants put out is the same but for
its epochs and its order; and each is what the model in plain Python says, as in `event_time`.
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
from tests.simulation.event_time import EventLives, LoggedStorage

VARIANTS = 3
NEVER_IDLE_SECONDS = 1e6


class Variant(EventLives):
    """One of the ways in which a seed's files are read."""

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
        """Run all lives; one without a store is not stopped, for where it is would depend on its speed."""
        if self._storage is not None:
            return super().run()
        self._log.begin(0, 0, closes=True)
        self._live(self._draw_quiet(), 1)
        return self.seen

    def _check(self, text: str) -> None:
        super()._check(text)
        self.outputs = Counter(json.dumps(json.loads(line)["record"]) for line in text.splitlines())


def reproducible(program: Program) -> list[Operator]:
    """The operators of a program whose results depend neither on epochs nor on the order between partitions."""
    found: list[Operator] = []
    numbers: dict[int, int] = {}
    for each in program.operators:
        if each.by_clock or (each.parent is not None and each.parent not in numbers):
            continue
        if each.windows is not None or each.ttl:
            numbers[each.number] = len(found)
            windows = None if each.windows is None else replace(each.windows, emit=None)
            parent = None if each.parent is None else numbers[each.parent]
            found.append(replace(each, number=len(found), parent=parent, windows=windows))
    return found or [Operator(0, None, Windows(3 * SECOND, 3 * SECOND), ("count",))]


def run(seed: int) -> Counter[str]:
    """Run all variants of a seed; return what was seen. Raises AssertionError, naming it, if they differ."""
    seen: Counter[str] = Counter()
    first: Counter[str] | None = None
    for variant in range(VARIANTS):
        with tempfile.TemporaryDirectory(prefix="megaflow-reproducible-") as folder:
            lives = Variant(seed, variant, Path(folder))
            try:
                seen += lives.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}, variant {variant}: {error!r}") from error
        first = lives.outputs if first is None else first
        missing, extra = few(first - lives.outputs), few(lives.outputs - first)
        assert first == lives.outputs, f"seed {seed}: variant {variant} lacks {missing} of the first, and adds {extra}"
    return seen
