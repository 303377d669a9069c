"""Calendar windows close with the same records as in plain Python."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow import tumbling
from megaflow.event_time.calendar_panes import CalendarPanes
from megaflow.megaphone.base.event_unit import GREATEST, NEVER
from megaflow.testing import Kill, SimulatedCluster, seeds
from tests.event_time.naive_windows import NaiveWindows, days_in
from tests.event_time.test_panes import Steps, accumulators, agree, steps
from tests.examples import many

HOUR = 3_600_000_000


@settings(max_examples=many(200), deadline=None)
@given(
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kathmandu"]),
    st.sampled_from([datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 24, tzinfo=UTC)]),
    st.sampled_from([0, 3, 25]),
    steps,
    st.randoms(use_true_random=False),
)
def test_days_close_with_the_records_of_each(
    zone: str, begin: datetime, lateness: int, given: Steps, random: Any
) -> None:
    base = round(begin.timestamp()) * 1_000_000
    made = [([(base + time * HOUR, ahead * HOUR) for time, ahead in records], rise * HOUR) for records, rise in given]
    keeper = CalendarPanes(tumbling("1D", tz=zone), accumulators(), lateness * HOUR)
    naive = NaiveWindows(days_in(zone), lateness * HOUR)
    agree(keeper, naive, made, lambda records: random.sample(records, len(records)))


def test_a_day_that_would_end_after_the_year_9999_ends_with_it() -> None:
    panes = CalendarPanes(tumbling("1M", tz="America/New_York"), accumulators(), 10**9)
    state, late, _ = panes.take(None, [(GREATEST, "last")], GREATEST - 1)
    assert late == [] and state is not None and panes.deadline(state) == GREATEST
    state, closed = panes.close(state, GREATEST)
    assert state is None and len(closed) == 1


def test_open_windows_keep_their_ends_if_the_zone_has_other_rules() -> None:
    state, *_ = CalendarPanes(tumbling("1D", tz="Europe/Berlin"), accumulators(), 0).take(None, [(0, "a")], NEVER)
    later = CalendarPanes(tumbling("1D", tz="America/New_York"), accumulators(), 0)
    state, *_ = later.take(state, [(0, "b")], NEVER)
    assert state is not None
    _, closed = later.close(state, GREATEST)
    assert [(start // HOUR, end // HOUR) for start, end, _ in closed] == [(-19, 5), (-1, 23)]


@seeds(4)
def test_days_survive_kills_moves_and_the_end_of_a_run(seed: int) -> None:
    random, zone = Random(seed), ZoneInfo("Europe/Berlin")
    begin = datetime(2026, 3, 27, tzinfo=UTC)
    moments = [begin + timedelta(minutes=60 * hour + random.randrange(60)) for hour in range(24 * 5)]
    lines = [f"{random.choice('abcd')} {moment.isoformat()}" for moment in moments]

    def dataflow(flow: Any) -> Any:
        words = flow.lines().map(str.split)
        pairs = words.map(lambda pair: (pair[0], datetime.fromisoformat(pair[1])))
        stamped = pairs.event_time(lambda pair: pair[1], out_of_order=3600)
        return stamped.window(tumbling("1D", tz="Europe/Berlin"), bins=8).count()

    cluster = SimulatedCluster(seed, 2, durable=True)
    cluster.disturb(3)
    cluster.at(record=random.randrange(60), do=Kill())
    found = cluster.run(dataflow, lines=[lines[: random.randrange(20, 100)]])
    cluster.at(record=random.randrange(10), do=Kill())
    found += cluster.run(dataflow, lines=[lines], close_windows=True)
    days = Counter((line[0], datetime.fromisoformat(line[2:]).astimezone(zone).date()) for line in lines)
    assert sorted(((key, window.start.date()), count) for key, window, count in found) == sorted(days.items())
