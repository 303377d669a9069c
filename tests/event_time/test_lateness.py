"""Lateness by bucket, compared with the sorted list of all values."""

from math import ceil

from hypothesis import example, given
from hypothesis import strategies as st

from megaflow.event_time.lateness import LatenessHistogram, bucket_of, greatest_of
from megaflow.event_time.record_bounds import apart, with_bound
from megaflow.megaphone.base.event_unit import GREATEST, LEAST

LATE = st.integers(0, 60).flatmap(lambda bits: st.integers(1, 1 << bits))  # all sizes equally likely
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0)


def counted(latenesses: list[int]) -> LatenessHistogram:
    seen = LatenessHistogram()
    below = seen.counting(slack=0)
    for late in latenesses:
        below(-late, 0)
    seen.settle()
    return seen


@given(LATE)
@example(GREATEST - LEAST)
def test_a_bucket_spans_less_than_a_sixteenth_of_what_is_in_it(late: int) -> None:
    bucket = bucket_of(late)
    assert late <= greatest_of(bucket) <= late + late // 16 and bucket < 1000
    assert bucket_of(greatest_of(bucket)) == bucket == bucket_of(greatest_of(bucket) + 1) - 1


@given(st.lists(LATE, min_size=1))
def test_quantiles_are_those_of_a_sorted_list_within_a_bucket(latenesses: list[int]) -> None:
    seen, all = counted(latenesses), sorted(latenesses)
    assert (seen.records, seen.greatest) == (len(all), all[-1])
    for q in QUANTILES:
        right = all[max(ceil(q * len(all)), 1) - 1]
        assert right <= seen.quantile(q) <= min(right + right // 16, all[-1])


@given(st.lists(LATE), st.lists(LATE))
def test_what_two_workers_have_counted_adds_up(first: list[int], second: list[int]) -> None:
    both = LatenessHistogram()
    for latenesses in (first, second):
        seen = counted(latenesses)
        both.merge(*seen.take())
        assert (seen.take(), seen.quantile(0.5)) == (((), 0), 0), "it is taken once"
    right = counted(first + second)
    assert (both.counts, both.greatest) == (right.counts, right.greatest)


def test_only_what_is_late_by_more_than_the_slack_carries_its_bound() -> None:
    below = LatenessHistogram().counting(slack=10)
    assert below(90, 100) == 90
    assert below(89, 100) == with_bound(89, 90) and apart(below(89, 100)) == (89, 90)
