"""Parts of about the same length of the slow tests: `make test-slow PART=3/8` runs the third of eight.

1. The seconds of a test are those of `durations.json`; `make test-slow ARGS=--measure` measures them. The file has the
   average of each test function, and those of its cases that differ much from it. A new test counts as the average of
   its function, of its file or of all.
2. Tests of one group (`tests/scheduling.py`) stay together, because they share a server or a computation. The groups of
   Spark fall into their files: a part that starts Spark once more loses some seconds, and a group alone takes longer
   than a part should.
3. The longest group is placed first, each into the part that is shortest with it. So the parts have about the same
   length, and new tests are spread. A group that takes longer than the other parts has a part of its own.
4. A part takes as long as its longest group, or as its tests in `PROCESSES` test processes, whichever is longer.
"""

import json
import re
from argparse import ArgumentTypeError
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import pytest

from tests.scheduling import group_of

DURATIONS = Path(__file__).with_name("durations.json")
PART = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
PROCESSES = 3
LEAST = 0.05  # seconds of a test, or thousands of short ones would fall into one part
DIFFERS = 2.0  # seconds between a case and the average of its function


@dataclass
class Part:
    """The tests of a part, and its length."""

    cases: set[str] = field(default_factory=set)
    total: float = 0.0  # seconds of all tests
    longest: float = 0.0  # seconds of the longest group

    def seconds_with(self, more: float = 0.0) -> float:
        """Return how long the part takes, with one more group."""
        return max((self.total + more) / PROCESSES, self.longest, more)


def unit_of(case: str) -> str:
    """Return the name that a test shares with those of its part."""
    group = group_of(case)
    return case.partition("::")[0] if group.startswith("Spark ") else group


def function_of(case: str) -> str:
    return case.partition("[")[0]


def estimates(cases: Iterable[str], measured: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each test.

    >>> estimates(["t.py::a[1]", "t.py::a[2]", "t.py::b", "u.py::c"], {"t.py::a[1]": 4.0, "t.py::a": 2.0})
    {'t.py::a[1]': 4.0, 't.py::a[2]': 2.0, 't.py::b': 2.0, 'u.py::c': 2.0}
    """
    of_files: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in measured.items():
        if name == function_of(name):
            of_files[name.partition("::")[0]].append(seconds)
            of_files[""].append(seconds)
    means = {file: fmean(values) for file, values in of_files.items()}

    def estimate(case: str) -> float:
        known = measured.get(case, measured.get(function_of(case)))
        return max(LEAST, known if known is not None else means.get(case.partition("::")[0], means.get("", 1.0)))

    return {case: estimate(case) for case in cases}


def summary(measured: Mapping[str, float]) -> dict[str, float]:
    """Return the averages of functions, and the cases that differ much from them.

    >>> summary({"t.py::a[1]": 5.0, "t.py::a[2]": 1.5, "t.py::a[3]": 2.5, "t.py::b": 1.0})
    {'t.py::a': 3.0, 't.py::a[1]': 5.0, 't.py::b': 1.0}
    """
    of_functions: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for case, seconds in sorted(measured.items()):
        of_functions[function_of(case)][case] = seconds
    found: dict[str, float] = {}
    for function, cases in of_functions.items():
        mean = fmean(cases.values())
        found[function] = round(mean, 1)
        found |= {case: round(each, 1) for case, each in cases.items() if abs(each - mean) >= DIFFERS}
    return found


def parts_of(count: int, cases: Iterable[str], measured: Mapping[str, float]) -> list[Part]:
    """Divide tests into parts; each test is in one of them.

    >>> [sorted(part.cases) for part in parts_of(2, ["a", "b", "c"], {"a": 4.0, "b": 3.0, "c": 1.0})]
    [['a'], ['b', 'c']]
    """
    units: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for case, seconds in sorted(estimates(cases, measured).items()):
        units[unit_of(case)][case] = seconds
    parts = [Part() for _ in range(count)]
    for _, members in sorted(units.items(), key=lambda unit: (-sum(unit[1].values()), unit[0])):
        seconds = sum(members.values())
        part = min(parts, key=lambda each: (each.seconds_with(seconds), each.total))
        part.cases |= members.keys()
        part.total += seconds
        part.longest = max(part.longest, seconds)
    return parts


def parse_part(text: str) -> tuple[int, int]:
    """Return the number of a part and how many there are, given `3/8`. Raises argparse.ArgumentTypeError.

    >>> parse_part("3/8")
    (3, 8)
    """
    found = PART.fullmatch(text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ArgumentTypeError(f"{text!r} is no part: 3/8 is the third of eight")
    return int(found[1]), int(found[2])


def deselect(config: pytest.Config, items: list[pytest.Item], cases: set[str]) -> None:
    """Leave these tests out of a run."""
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in cases])
    items[:] = [item for item in items if item.nodeid not in cases]


class OnePart:
    """A plugin of pytest: of the tests that would run, keeps those of one part."""

    def __init__(self, number: int, count: int) -> None:
        self.number = number
        self.count = count

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        cases = {item.nodeid for item in items}
        deselect(config, items, cases - parts_of(self.count, cases, read_durations())[self.number - 1].cases)


class Durations:
    """A plugin of pytest: measures how long tests take, and writes that to the file at the end of the run."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.passed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.passed and report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not hasattr(session.config, "workerinput"):
            known = updated(read_durations(), {case: self.seconds[case] for case in self.passed})
            lines = json.dumps(known, ensure_ascii=False, indent=0, sort_keys=True)
            DURATIONS.write_text(f"{lines}\n", encoding="utf-8")


def updated(known: Mapping[str, float], measured: Mapping[str, float]) -> dict[str, float]:
    """Return the durations of the file with those of a run, which may have had some cases of a function only.

    >>> updated({"t.py::a": 3.0, "t.py::a[1]": 5.0, "t.py::b": 1.0}, {"t.py::a[2]": 1.0})
    {'t.py::a': 3.0, 't.py::b': 1.0, 't.py::a[1]': 5.0, 't.py::a[2]': 1.0}
    """
    functions = set(map(function_of, measured))
    others = {name: each for name, each in known.items() if function_of(name) in functions and name not in functions}
    return {**{name: each for name, each in known.items() if name not in others}, **summary({**others, **measured})}


def read_durations() -> dict[str, float]:
    """Return the durations of the file. Raises pytest.UsageError if it is damaged."""
    try:
        found = json.loads(DURATIONS.read_text(encoding="utf-8")) if DURATIONS.exists() else {}
        return {str(name): float(seconds) for name, seconds in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise pytest.UsageError(f"{DURATIONS} is damaged: {error}. Take it from the repository again.") from error
