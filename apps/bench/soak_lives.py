"""Resources of each process of a soak from its start to its end, and whether they grew.

1. A process is compared only with itself: the median of the last quarter of its life with that of the second. So
   processes that come and go, and a launcher that follows another one, hide nothing. The first quarter is left out
   because everything is still warming up.
2. The numbers of files and threads, and the size of the store, depend on the number of processes of the job. So they
   are compared between moments with the same number: the one that is most frequent in both quarters.
3. A life shorter than LIFE_SECONDS_MIN is shown, but not judged.
4. The store outlives all processes. It is judged over the whole time, in the same way.
"""

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

LIFE_SECONDS_MIN = 300.0
MEMORY_GROWTH_MAX = 0.05
COUNT_GROWTH_MAX = 0.25


@dataclass(frozen=True, slots=True)
class Held:
    """Resources of a process."""

    kind: str  # launcher, worker, added or by hand
    pid: int
    mb: float
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Resources of the job at one moment."""

    second: float
    processes: tuple[Held, ...]
    store_mb: float
    store_files: int
    output_mb: float


@dataclass(frozen=True, slots=True)
class Change:
    """Medians of a figure in the second and in the last quarter."""

    early: float
    late: float
    growth_max: float

    @property
    def has_grown(self) -> bool:
        """Whether the figure grew by more than its limit.

        >>> Change(50.0, 52.4, 0.05).has_grown, Change(50.0, 52.6, 0.05).has_grown, Change(12, 14, 0.25).has_grown
        (False, True, False)
        """
        return self.late > self.early * (1 + self.growth_max)

    def __str__(self) -> str:
        return f"{self.early:.4g} to {self.late:.4g}{' GROWN' * self.has_grown}"


@dataclass(frozen=True, slots=True)
class Life:
    """A process, or the store, from its first to its last sample."""

    what: str  # the kind of process, or "store"
    pid: int  # 0: the store
    began: float  # seconds
    ended: float
    changes: dict[str, Change]

    @property
    def is_judged(self) -> bool:
        """Whether it was long enough to be judged."""
        return self.ended - self.began >= LIFE_SECONDS_MIN

    @property
    def grown(self) -> list[str]:
        """Figures that have grown, if the life is judged."""
        return [name for name, change in self.changes.items() if self.is_judged and change.has_grown]

    def __str__(self) -> str:
        held = ", ".join(f"{name} {change}" for name, change in self.changes.items())
        return f"{self.what:8} {self.pid or '':7} minute {self.began / 60:4.1f} to {self.ended / 60:4.1f}: {held}"

    def as_json(self) -> dict[str, Any]:
        """Return all values for JSON."""
        return {**asdict(self), "judged": self.is_judged, "grown": self.grown}


def series(samples: Sequence[Sample]) -> dict[tuple[str, int], list[tuple[Sample, Held]]]:
    """Return the samples of each process, by its kind and id."""
    found: dict[tuple[str, int], list[tuple[Sample, Held]]] = {}
    for sample in samples:
        for held in sample.processes:
            found.setdefault((held.kind, held.pid), []).append((sample, held))
    return found


def lives(samples: Sequence[Sample]) -> list[Life]:
    """Return the life of the store, and those of all processes."""
    found = []
    if samples:
        store = {
            "MB": compared(samples, [sample.store_mb for sample in samples]),
            "files": compared(samples, [sample.store_files for sample in samples]),
        }
        found.append(_life("store", 0, samples, store))
    for (kind, pid), points in series(samples).items():
        when = [sample for sample, _ in points]
        held = {
            "MB": compared(when, [held.mb for _, held in points], is_memory=True),
            "files": compared(when, [held.files for _, held in points]),
            "threads": compared(when, [held.threads for _, held in points]),
        }
        found.append(_life(kind, pid, when, held))
    return found


def is_steady(found: Sequence[Life]) -> bool:
    """Whether no figure has grown, and a launcher was among the judged lives."""
    return not any(life.grown for life in found) and any(life.what == "launcher" and life.is_judged for life in found)


def compared(when: Sequence[Sample], values: Sequence[float], is_memory: bool = False) -> Change | None:
    """Compare the last quarter of these values with the second; None if there are too few."""
    quarter = len(values) // 4
    crowds = [0 if is_memory else len(sample.processes) for sample in when]
    early = list(zip(crowds, values))[quarter : 2 * quarter]
    late = list(zip(crowds, values))[len(values) - quarter :]
    seen, again = Counter(crowd for crowd, _ in early), Counter(crowd for crowd, _ in late)
    both = seen & again  # each number as often as in the quarter where it is rarer
    if not both:
        return None
    [(crowd, _)] = both.most_common(1)
    before, after = (statistics.median(value for there, value in part if there == crowd) for part in (early, late))
    return Change(before, after, MEMORY_GROWTH_MAX if is_memory else COUNT_GROWTH_MAX)


def _life(what: str, pid: int, when: Sequence[Sample], changes: dict[str, Change | None]) -> Life:
    known = {name: change for name, change in changes.items() if change is not None}
    return Life(what, pid, when[0].second, when[-1].second, known)
