"""Slots of Spark: how many worker processes fit beside Spark's own tasks. Pure functions of values.

1. A worker process has a slot from its start to its end. If Spark feeds the job or reads its results, another slot
   stays free. Otherwise Spark's tasks would wait until a worker process ends, and the job would stall without an error.
2. The worker processes of all jobs in a session count, because the jobs share its executors.
3. Some masters never have more than a certain number of slots. Processes that do not fit there are refused. Other
   masters may get more executors, so processes wait for them.
4. Spark frees a slot some seconds after the end of a process. So a request that fits once other processes have ended is
   refused only after GRACE_SECONDS.
"""

import re
from collections.abc import Mapping
from typing import Final

from megaflow.quick_dataclass import dataclass

GRACE_SECONDS: Final = 5.0
CPUS: Final = "spark.task.cpus"
CORES: Final = "spark.executor.cores"
EXECUTORS: Final = "spark.dynamicAllocation.maxExecutors"
FEWER: Final = "lower --processes, or give Spark more cores"
REMOVE: Final = "remove a worker first, or give Spark more cores"


@dataclass(frozen=True, slots=True)
class Slots:
    """The number of tasks that a session can run at the same time."""

    now: int | None  # None: Spark does not report it
    most: int | None = None  # the most that there can ever be; None: unknown
    elastic: bool = False  # Spark starts executors for waiting tasks

    def room(self, taken: int, feeds: bool) -> int | None:
        """Return how many more processes may start beside `taken` others. None: any number.

        >>> Slots(4).room(2, feeds=True), Slots(2).room(2, True), Slots(1, elastic=True).room(2, True)
        (1, 0, None)
        """
        limit = self.most if self.elastic else self.now
        return None if limit is None else max(0, limit - taken - feeds)

    def never_fits(self, asked: int, taken: int, feeds: bool, waited_seconds: float) -> bool:
        """Return whether to refuse so many processes, because there will never be slots for them.

        >>> Slots(2, 2).never_fits(2, 0, True, 0.0), Slots(2, 2).never_fits(1, 1, True, 0.0)
        (True, False)
        """
        if self.most is None:
            return False
        certain = taken if waited_seconds >= GRACE_SECONDS else 0
        return certain + asked + feeds > self.most


def slots_of(master: str, settings: Mapping[str, str] | None = None) -> int | None:
    """Return how many tasks a master of this machine runs at the same time. None if its name does not tell.

    >>> slots_of("local[2,4]"), slots_of("local"), slots_of("local-cluster[2,3,1024]"), slots_of("spark://h:7077")
    (2, 1, 6, None)
    >>> slots_of("local[4]", {"spark.task.cpus": "2"})
    2
    """
    cpus = _number(settings or {}, CPUS) or 1
    if master == "local":
        return 1
    if match := re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master):
        return int(match[1]) // cpus
    if match := re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master):
        return int(match[1]) * (int(match[2]) // cpus)
    return None


def is_in_one_process(master: str) -> bool:
    """Return whether Spark's driver runs all tasks itself, so that all slots exist from the start.

    >>> is_in_one_process("local[*]"), is_in_one_process("local-cluster[1,2,1024]")
    (True, False)
    """
    return master == "local" or master.startswith("local[")


def slots_seen(master: str, settings: Mapping[str, str], now: int | None) -> Slots:
    """Return the slots of a session that has `now` slots.

    >>> slots_seen("local[*]", {}, 2), slots_seen("spark://h:7077", {}, 2)
    (Slots(now=2, most=2, elastic=False), Slots(now=2, most=None, elastic=False))
    >>> dynamic = {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "3"}
    >>> slots_seen("spark://h:7077", dynamic | {"spark.executor.cores": "2"}, 0)
    Slots(now=0, most=6, elastic=True)
    """
    if is_in_one_process(master):  # such a master ignores dynamic allocation
        return Slots(now, now)
    if settings.get("spark.dynamicAllocation.enabled", "false").strip().lower() != "true":
        return Slots(now, slots_of(master, settings))
    executors, cores = (_number(settings, name) for name in (EXECUTORS, CORES))
    if executors is None or cores is None:
        return Slots(now, elastic=True)
    return Slots(now, executors * (cores // (_number(settings, CPUS) or 1)), elastic=True)


def too_few(slots: int, processes: int, feeds: bool, remedy: str = FEWER) -> str:
    """Return the error text for too few slots.

    >>> print(too_few(2, 2, True))
    2 worker processes and Spark's own source need 3 slots, but Spark has 2: lower --processes, or give Spark more cores
    """
    source = " and Spark's own source" if feeds else ""
    noun = f"worker process{'es' * (processes > 1)}{source} need{'s' * (processes == 1 and not feeds)}"
    need = processes + feeds
    return f"{processes} {noun} {need} slot{'s' * (need > 1)}, but Spark has {slots}: {remedy}"


def _number(settings: Mapping[str, str], name: str) -> int | None:
    """Return a setting that is a whole number. None if it is not set."""
    text = settings.get(name, "").strip()
    return int(text) if text.isdecimal() else None
