"""The example programs in two real processes give the figures of one."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.apps.test_bitemporal import known
from tests.cluster.processes import ROOT, programs
from tests.results import check_equal

pytestmark = pytest.mark.cluster

EVERY_SHAPE = pytest.mark.parametrize(
    "workers",
    [pytest.param((1, 1), id="one worker each"), pytest.param((2, 2), id="two workers each", marks=pytest.mark.slow)],
)


def output(folder: Path, app: str, *words: str, workers: tuple[int, ...]) -> str:
    with programs(folder, ROOT / "apps" / f"{app}.py", *words, workers=workers) as started:
        return started.succeed()


def figures(text: str, pattern: str) -> list[tuple[int, ...]]:
    """Return the numbers in each match of the pattern."""
    return [tuple(map(int, match.groups())) for match in re.finditer(pattern, text)]


def sums(found: list[tuple[int, ...]]) -> list[int]:
    return [sum(column) for column in zip(*found)]


@EVERY_SHAPE
def test_pingpong_passes_100_100_records(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 18."""
    text = output(tmp_path, "pingpong", "1000", "100", workers=workers)
    check_equal(sums(figures(text, r"(\d+) records passed, (\d+) came last")), [100_100, 100])


@EVERY_SHAPE
def test_collatz_takes_the_steps_of_a_plain_loop(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Cases 15 and 16."""
    text = output(tmp_path, "collatz", workers=workers)
    expected = [(1, 3), (2, 1), (3, 7), (4, 2), (5, 5), (6, 8), (7, 16), (8, 3), (9, 19)]
    check_equal(sorted(figures(text, r"(\d+) takes (\d+) steps")), expected)


@EVERY_SHAPE
def test_barrier_does_every_round_on_every_worker(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 8."""
    text = output(tmp_path, "barrier", "100", workers=workers)
    check_equal(figures(text, r": (\d+) rounds"), [(100,)] * sum(workers))


@EVERY_SHAPE
def test_hashjoin_finds_10127_matches(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 24."""
    text = output(tmp_path, "hashjoin", workers=workers)
    check_equal(sums(figures(text, r"(\d+) matches, sum of products (\d+)")), [10127, 25239234])


@EVERY_SHAPE
def test_unionfind_makes_838_merges_on_worker_0(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 21."""
    found = figures(output(tmp_path, "unionfind", workers=workers), r"worker (\d+): (\d+) merges")
    check_equal(sorted(found), [(0, 838), *((index, 0) for index in range(1, sum(workers)))])


@EVERY_SHAPE
def test_bitemporal_tells_what_was_known_of_each_hour_on_each_day(workers: tuple[int, ...], tmp_path: Path) -> None:
    text = output(tmp_path, "bitemporal", "2", workers=workers)
    found = figures(text, r"known on day (\d+) until hour (\d+): (-?\d+) of article (\d+)")
    check_equal({(day, hour, article): total for day, hour, total, article in found}, known(2))


@EVERY_SHAPE
def test_bfs_reaches_978_nodes_in_nine_levels(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 20."""
    text = output(tmp_path, "bfs", workers=workers)
    levels: Counter[int] = Counter()
    for nodes, level in figures(text, r"(\d+) nodes at level (\d+)"):
        levels[level] += nodes
    check_equal([levels[level] for level in range(9)], [1, 5, 20, 78, 230, 388, 224, 29, 3])
    check_equal(sums(figures(text, r"(\d+) candidates")), [3916])


@EVERY_SHAPE
def test_pagerank_settles_after_50_rounds(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 22."""
    text = output(tmp_path, "pagerank", "100", "500", workers=workers)
    lines = figures(text, r"time (\d+): (\d+) ranks changed by (\d+), at most (\d+)")
    by_time = {time: [line[1:] for line in lines if line[0] == time] for time in range(60)}
    check_equal([time for time, found in by_time.items() if found], list(range(1, 51)))
    for time, expected in {1: (100, 85553, 2768), 2: (100, 73430, 1861), 50: (6, 10, 2)}.items():
        counts, total, largest = zip(*by_time[time])
        check_equal((sum(counts), sum(total), max(largest)), expected)
    check_equal(sums(lines)[1:3], [4066, 581329])
    check_equal(sums(figures(text, r"(\d+) nodes, sum of ranks (\d+)")), [100, 681083])


@EVERY_SHAPE
def test_flow_control_lets_one_times_work_through_at_once(workers: tuple[int, ...], tmp_path: Path) -> None:
    """Case 50."""
    text = output(tmp_path, "flow_controlled", workers=workers)
    made, most = sums(figures(text, r"(\d+) records, at most (\d+) waiting"))
    check_equal(made, 1_999_000)
    assert 0 < most <= 194_950


@EVERY_SHAPE
def test_diagnosed_counts_on_while_a_question_stays_at_time_0(workers: tuple[int, ...], tmp_path: Path) -> None:
    text = output(tmp_path, "diagnosed", workers=workers)
    check_equal(figures(text, r"counted to time (\d+), questions at time (\d+)"), [(10, 0)] * sum(workers))
    answers = figures(text, r"how many\? worker (\d+): (\d+) records")
    check_equal(sorted(worker for worker, _ in answers), list(range(sum(workers))))
    check_equal(sum(records for _, records in answers), 100)


@EVERY_SHAPE
def test_comm_hello_every_worker_is_greeted_by_every_worker(workers: tuple[int, ...], tmp_path: Path) -> None:
    """The communication chapter's example: its text, without a dataflow."""
    count = sum(workers)
    text = output(tmp_path, "comm_hello", workers=workers)
    assert sorted(figures(text, r"worker (\d+) of (\d+) started")) == [(index, count) for index in range(count)]
    greeted = sorted(figures(text, r"worker (\d+): received: <hello, (\d+)>"))
    check_equal(greeted, [(index, index) for index in range(count) for _ in range(count)])
    check_equal(sorted(figures(text, r"result: (\d+)")), [(index,) for index in range(count)])


@EVERY_SHAPE
def test_buffered_readings_are_used_or_dropped_and_counted(workers: tuple[int, ...], tmp_path: Path) -> None:
    text = output(tmp_path, "buffered", "drop_oldest", workers=workers)
    found = figures(text, r"used (\d+), dropped (\d+), merged 0, most (\d+), highest (\d+)")
    used, dropped, most, highest = zip(*found)
    check_equal(sum(used) + sum(dropped), 100_000)
    check_equal(max(highest), 99_999)
    assert sum(dropped) > 0 and max(most) <= 1000
