"""NEXMark's queries give the results of their oracles, even if bins move while they run."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from apps.nexmark import driver
from apps.nexmark.driver import QUERIES, main
from apps.nexmark.events import Event
from apps.nexmark.generator import generate
from apps.nexmark.oracles import ORACLES
from apps.nexmark.terms import Terms
from megaflow import Map, Move
from megaflow.testing import EngineCluster, Join, Leave
from megaflow.timely import Worker
from tests.cluster.processes import ROOT, programs
from tests.results import check_equal
from tests.timely.cases import run_threads

BINS = 8
SEEDS = 3  # the whole suite runs MORE_SEEDS
MORE_SEEDS = 13
EVERY_QUERY = pytest.mark.parametrize("query", QUERIES)

# A small auction house: hours become milliseconds. Windows end between, at and after the events.
WINDOWS = {"hot_items_ms": 20, "hot_items_slide_ms": 5, "highest_bid_ms": 7}
SMALL = Terms(in_flight=9, active_people=7, auction_skip=3, **WINDOWS)
EVENTS = {"Q3": 4500, "Q8": 4500}  # because there are few people and auctions among 900


class Run:
    """Scenario of one seed: workers, the distribution of events, and the moves; with its results."""

    def __init__(self, query: str, seed: int, changes: bool = False, monitor: bool = False) -> None:
        self.random = Random(seed)
        self.query = query
        self.workers = self.random.choice([1, 2, 2, 3, 4]) + changes
        events = EVENTS.get(query, 900)
        self.last = self.random.choice([50, 90])  # ms
        self.terms = replace(
            SMALL,
            seed=seed,
            delay_us=self.last * 1000 // events,
            new_users_ms=self.random.choice([3, 15]),
            hot_sellers=self.random.choice([1, 4]),
            hot_auctions=self.random.choice([1, 2]),
        )
        self.history = list(generate(self.terms, range(events)))
        self.cluster = EngineCluster(seed, self.workers, monitor=monitor)
        self.commands = sorted(self._commands(self.random.randint(1, 15)), key=lambda pair: pair[0])

    def _commands(self, count: int) -> Iterable[tuple[int, Any]]:
        for _ in range(count):
            time = self.random.randrange(self.last + 20)
            if self.random.random() < 0.7:
                yield time, Move(self.random.randrange(BINS), self.random.randrange(self.workers))
            else:
                yield time, Map(tuple(self.random.randrange(self.workers) for _ in range(BINS)))

    def feeds(self) -> dict[int, list[tuple[int, list[Event]]]]:
        """Send each event to some worker. A worker sends its events of one time together."""
        batches: dict[int, dict[int, list[Event]]] = {worker: defaultdict(list) for worker in range(self.workers)}
        for time, event in self.history:
            batches[self.random.randrange(self.workers)][time].append(event)
        return {worker: list(by_time.items()) for worker, by_time in batches.items()}

    def build(self, worker: Any, batches: Any, commands: Any) -> Any:
        return QUERIES[self.query](batches.flat_map(lambda batch: batch), commands, self.terms, BINS)

    def check(self) -> int:
        """Run, and compare the results with the oracle; return how many there are."""
        results = self.cluster.run(self.build, self.feeds(), self.commands)
        expected = ORACLES[self.query](self.history, self.terms)
        assert Counter(results) == Counter(expected), f"seed {self.cluster.seed}"
        return len(results)

    def keys_left(self) -> dict[str, int]:
        """Return the number of keys that have a state in each operator, over all workers."""
        left: Counter[str] = Counter()
        for worker in self.cluster.workers:
            left.update({view.name: view.keys() for view in worker.stateful})
        return left


@pytest.mark.slow
@EVERY_QUERY
def test_results_equal_the_oracles_whatever_moves(query: str) -> None:
    assert sum(Run(query, seed).check() for seed in range(SEEDS)) > 0


@pytest.mark.slow
@EVERY_QUERY
def test_results_equal_the_oracles_for_many_seeds(query: str) -> None:
    for seed in range(SEEDS, MORE_SEEDS):
        Run(query, seed, monitor=seed % 10 == 0).check()


@pytest.mark.parametrize(
    ("query", "seeds"),
    [
        pytest.param(query, seeds, marks=marks, id=f"{query}-{len(seeds)}")
        for query in QUERIES
        for seeds, marks in ((range(1), ()), (range(1, 6), (pytest.mark.slow,)))
    ],
)
def test_results_equal_the_oracles_while_workers_join_and_leave(query: str, seeds: range) -> None:
    for seed in seeds:
        run = Run(query, seed, changes=True)
        for _ in range(run.random.randint(1, 3)):
            run.cluster.at(run.random.randint(0, 150), run.random.choice([Join(), Join(), Leave()]))
        run.check()


@pytest.mark.parametrize(
    ("query", "emptied"), [("Q4", ["WinningBids"]), ("Q5", ["Counts", "Q5"]), ("Q7", ["Highest", "Q7"]), ("Q8", ["Q8"])]
)
def test_nothing_is_kept_of_what_is_over(query: str, emptied: list[str]) -> None:
    """Bids that come after their auction has closed leave no state, nor do windows, people and auctions."""
    run = Run(query, 1)
    run.check()
    left = run.keys_left()
    assert [left[operator] for operator in emptied] == [0] * len(emptied), left


# Threads and processes -------------------------------------------------------------------------

DELAYS_US = {"Q5": 3_000_000, "Q8": 30_000_000}  # so that few events cover hours
REQUESTS = [
    (query, "500" if query == "Q1" else "3000", str(DELAYS_US.get(query, 500_000)), strategy)
    for query in QUERIES
    for strategy in ("fluid", "all-at-once")
]
TWO_QUICK = [
    pytest.param(words, marks=() if name in ("Q3-fluid", "Q5-all-at-once") else pytest.mark.slow, id=name)
    for words in REQUESTS
    for name in [f"{words[0]}-{words[3]}"]
]
SLOW_UNLESS_FLUID = [
    pytest.param(words, marks=() if words[3] == "fluid" else pytest.mark.slow, id=f"{words[0]}-{words[3]}")
    for words in REQUESTS
]


def expected(query: str, events: str, delay_us: str, strategy: str) -> Counter[Any]:
    terms = Terms(delay_us=int(delay_us))
    results = ORACLES[query](list(generate(terms, range(int(events)))), terms)
    assert results, "a test of nothing"
    return Counter(results)


def results_and_owners(worker: Worker) -> tuple[list[Any], list[tuple[int, ...]]]:
    results = main(worker)
    return results, [view.table() for view in worker.stateful]


@pytest.mark.slow
@pytest.mark.parametrize("request_", SLOW_UNLESS_FLUID)
def test_on_threads_results_equal_the_oracles_while_half_of_all_bins_move(request_: tuple[str, ...]) -> None:
    """Uses the specification's own windows."""
    ended = run_threads(2, results_and_owners, *request_)
    assert Counter(result for results, _ in ended for result in results) == expected(*request_)
    moved = (1, 0) * (driver.BINS // 4) + (0, 1) * (driver.BINS // 4)
    tables = ended[0][1]  # worker 0 has seen the end of the plan
    assert tables and set(tables) == {moved}


@pytest.mark.cluster
@pytest.mark.parametrize("request_", TWO_QUICK)
def test_in_processes_results_equal_the_oracles_while_half_of_all_bins_move(
    request_: tuple[str, ...], tmp_path: Path
) -> None:
    workers = (2, 2) if request_[3] == "fluid" else (1, 1, 1)
    with programs(tmp_path, ROOT / "apps" / "nexmark", *request_, workers=workers) as started:
        lines = started.succeed().splitlines()
    found = Counter((int(time), literal_eval(result)) for time, result in (line.split(" ", 1) for line in lines))
    check_equal(found, expected(*request_))


def test_what_is_not_understood_is_refused_with_what_may_be_said() -> None:
    for words in ([], ["Q9"], ["Q1", "many"], ["Q1", "10", "10", "batched"], ["Q1", "10", "10", "fluid", "7"]):
        with pytest.raises(SystemExit, match=r"QUERY being one of Q1, Q2.* and STRATEGY one of fluid, "):
            driver.read(words)
    assert driver.read(["Q5", "500"]) == driver.Request("Q5", 500, 1_000_000, "")


@pytest.mark.cluster
def test_a_closed_pipe_ends_it_without_a_traceback() -> None:
    run = [sys.executable, "apps/nexmark", "Q1", "1000"]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
