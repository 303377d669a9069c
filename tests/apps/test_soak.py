"""A soak detects growth: each process is compared with itself, whatever other processes start and end."""

from collections.abc import Callable

from apps.bench.soak import shown
from apps.bench.soak_lives import Held, Sample, is_steady, lives

SECONDS = range(0, 3600, 2)
Figure = Callable[[float], float]  # of the second


def samples(launchers: dict[int, tuple[range, Figure]], workers: Callable[[float], int] = lambda _: 2) -> list[Sample]:
    """Return an hour in which each launcher held this much during its life, and each worker 30 MB."""
    found = []
    for second in SECONDS:
        crowd = workers(second)
        held = [Held("worker", 100 + number, 30.0, 5 + crowd, 4) for number in range(crowd)]
        for pid, (while_alive, megabytes) in launchers.items():
            if second in while_alive:
                held.insert(0, Held("launcher", pid, megabytes(second), 9 + 3 * crowd, 4))
        found.append(Sample(second, tuple(held), 0.2 + 0.1 * crowd, 5 * crowd, second))
    return found


def grown(found: list[Sample]) -> list[tuple[str, int, list[str]]]:
    return [(life.what, life.pid, life.grown) for life in lives(found) if life.grown]


def test_a_launcher_that_grows_is_seen_though_another_one_follows_it() -> None:
    grows = samples(
        {
            1: (range(2000), lambda second: 29 + 6 * second / 2000),
            2: (range(2000, 3600), lambda second: 29 + 8 * (second - 2000) / 1600),
        }
    )
    assert grown(grows) == [("launcher", 1, ["MB"]), ("launcher", 2, ["MB"])]
    assert not is_steady(lives(grows))


def test_what_warms_up_and_stays_has_not_grown() -> None:
    flat = samples({1: (range(2000), lambda second: min(20 + second, 35)), 2: (range(2000, 3600), lambda _: 36.0)})
    assert grown(flat) == [] and is_steady(lives(flat))


def test_files_and_threads_that_come_with_workers_have_not_grown_and_others_have() -> None:
    more = samples({1: (range(3600), lambda _: 30.0)}, lambda second: 2 + (second % 100 > 50) + (second > 2400))
    assert grown(more) == []
    leaking = [
        Sample(each.second, each.processes, each.store_mb, each.store_files + int(each.second) // 300, 0.0)
        for each in more
    ]
    assert grown(leaking) == [("store", 0, ["files"])]
    launchers = [
        Sample(each.second, (Held("launcher", 1, 30.0, 15 + int(each.second) // 300, 4),), 1.0, 9, 0.0) for each in more
    ]
    assert grown(launchers) == [("launcher", 1, ["files"])]


def test_lives_that_are_too_short_are_not_judged_and_without_a_launchers_nothing_is() -> None:
    short = samples({pid: (range(290 * pid, 290 * (pid + 1)), lambda second: 29 + second % 290) for pid in range(9)})
    found = lives(short)
    assert [life.is_judged for life in found if life.what == "launcher"] == [False] * 9
    assert grown(short) == [] and not is_steady(found)
    assert not is_steady(lives([])) and not is_steady(lives(short[:1]))


def test_of_one_moment_the_largest_of_each_kind_is_shown() -> None:
    held = (Held("worker", 1, 30.0, 5, 4), Held("worker", 2, 29.0, 6, 4))
    assert shown(Sample(0.0, held, 1.0, 9, 0.0)) == "worker 30.0 MB 5 files 4 threads, store 1.00 MB 9 files"
