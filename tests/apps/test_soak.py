"""What a soak takes for growth: the last quarter of its time against the second, whatever happens in between."""

from apps.bench.soak import Held, Sample, Soak, has_grown


def sample(second: float, launcher_mb: float, worker_files: int) -> Sample:
    workers = [Held("worker", 2, 30.0, 5, 4), Held("added", 3, 31.0, worker_files, 4)]
    return Sample(second, (Held("launcher", 1, launcher_mb, 9, 4), *workers[: 1 + int(second) % 2]), 1.0, 10, second)


def test_what_grows_all_the_time_has_grown_and_what_comes_and_goes_has_not() -> None:
    soak = Soak([sample(second, 40.0 + second / 4, 20 + second % 5) for second in range(101)])
    changes = soak.changes()
    assert changes["launcher MB"] == (49.25, 62.0) and changes["store files"] == (10.0, 10.0)
    assert [name for name, (early, late) in changes.items() if has_grown(name, early, late)] == ["launcher MB"]


def test_figures_that_nobody_has_are_left_out() -> None:
    soak = Soak([Sample(second, (), 1.0, 10, 0.0) for second in (0.0, 1.0, 2.0, 3.0)])
    assert list(soak.changes()) == ["store MB", "store files"]
