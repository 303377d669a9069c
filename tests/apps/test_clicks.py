"""The generated clicks are as out of order as promised, and the plain loops over them are right."""

from collections import Counter
from pathlib import Path

import pytest

from apps.bench.clicks import MS, Click, faults, read_clicks, sessions_of, tops_of, write_clicks
from apps.click_sessions import GAP_SECONDS, OUT_OF_ORDER

HOUR_MS = 3_600_000


def click(id: int, ms: int, user: str = "ann", page: str = "/1") -> Click:
    return Click(id, ms, user, "tea", page)


@pytest.mark.parametrize("seed", range(3))
def test_each_file_is_out_of_order_by_so_much_and_late_clicks_by_hours(tmp_path: Path, seed: int) -> None:
    paths = write_clicks(tmp_path / "clicks", 2000, seed, 0.01)
    for path in paths:
        latest = 0
        for each in read_clicks([path]):
            if each.id < 2000:
                assert each.ms >= latest - OUT_OF_ORDER * MS
                latest = max(latest, each.ms)
            else:
                assert each.ms < latest - HOUR_MS
    ids = sorted(each.id for each in read_clicks(paths))
    assert ids == list(range(len(ids))) and len(ids) > 2010


def test_late_clicks_are_alone(tmp_path: Path) -> None:
    clicks = list(read_clicks(write_clicks(tmp_path / "clicks", 2000, 0, 0.01)))
    for late in clicks:
        if late.id >= 2000:
            others = [each for each in clicks if each.user == late.user and each is not late]
            assert all(abs(each.ms - late.ms) >= GAP_SECONDS * MS for each in others)


def test_a_session_ends_before_the_click_that_is_a_gap_behind() -> None:
    gap = GAP_SECONDS * MS
    clicks = [click(0, gap), click(1, 0), click(2, 2 * gap - 1), click(3, 5, "bob")]
    wanted = [("ann", 0, 0, 1), ("ann", gap, 2 * gap - 1, 2), ("bob", 5, 5, 1)]
    assert sessions_of(clicks) == Counter(wanted)


def test_the_ten_most_clicked_pages_of_a_minute_are_in_order() -> None:
    clicks = [click(0, 59_999, page=f"/{page}") for page in range(12) for _ in range(1 + page % 3)]
    [(category, minute, pages)] = tops_of(clicks)
    assert (category, minute) == ("tea", 0)
    assert [name for name, _ in pages] == ["/11", "/2", "/5", "/8", "/1", "/10", "/4", "/7", "/0", "/3"]


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    paths = write_clicks(tmp_path / "clicks", 500, 0, 0.01)
    all_clicks = list(read_clicks(paths))
    right = [*sessions_of(all_clicks)]
    assert faults(paths, "click_sessions", 500, right, []) == []
    assert "missing" in faults(paths, "click_sessions", 500, right[1:], [])[0]
    assert "wrong" in faults(paths, "click_sessions", 500, [*right, right[0]], [])[0]
    without = [*sessions_of(each for each in all_clicks if each.id != 500)]
    assert faults(paths, "click_sessions", 500, without, [500]) == []
    assert "twice" in faults(paths, "click_sessions", 500, without, [500, 500])[0]
    assert "in time" in faults(paths, "click_sessions", 501, without, [500])[0]
