"""The next input to read: by event time where it is known, otherwise in turn. No input waits for nothing."""

from collections import Counter, deque
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.watermark_messages import Partition
from megaflow.job.worker.reading.reading_turns import SPARK, Lane, ReadingTurns, in_order

LANES: list[Lane] = [("split", "a"), ("split", "b"), ("partition", "c"), ("pushed", "d"), SPARK]
BOUNDS = st.dictionaries(st.sampled_from(LANES), st.integers(0, 9))


class Known:
    """Event time in the test's hands."""

    are_wanted = True

    def __init__(self, bounds: dict[Partition, int]) -> None:
        self.bounds = bounds
        self.idle: set[Partition] = set()

    def bound(self, partition: Partition) -> int | None:
        return self.bounds.get(partition)

    def is_idle(self, partition: Partition) -> bool:
        return partition in self.idle


def only(lane: Lane) -> Sequence[Partition]:
    return [lane]


def turns_of(lanes: Sequence[Lane], known: Known | None) -> ReadingTurns:
    turns = ReadingTurns()
    turns.progress = known
    for each in lanes:
        turns.add(each)
    return turns


@given(turns=st.permutations(LANES), bounds=BOUNDS, full=st.sets(st.sampled_from(LANES)))
def test_first_that_has_something_is_the_slowest_or_has_no_bound(
    turns: list[Lane], bounds: dict[Lane, int], full: set[Lane]
) -> None:
    order = in_order(turns, bounds)
    assert Counter(order) == Counter(turns), "all are asked, so nobody waits for one that has nothing"
    chosen = next((each for each in order if each in full), None)
    assert (chosen is None) == (not full)
    if chosen in bounds:
        assert bounds[chosen] == min(bounds[each] for each in full & bounds.keys())


@given(
    bounds=BOUNDS,
    steps=st.lists(st.tuples(st.sets(st.sampled_from(LANES), min_size=1), st.integers(0, 3)), max_size=60),
)
def test_inputs_without_a_bound_wait_for_each_other_input_once(
    bounds: dict[Lane, int], steps: list[tuple[set[Lane], int]]
) -> None:
    known = Known(bounds)  # type: ignore[arg-type]
    turns = turns_of(LANES, known)
    passed = dict.fromkeys(LANES, 0)
    for full, more in steps:
        order = turns.order(only)
        place = next(place for place, each in enumerate(order) if each in full)
        chosen = order[place]
        turns.took(place, chosen, 0.0)
        if chosen in bounds:
            bounds[chosen] += more
        for each in LANES:
            passed[each] = 0 if each == chosen or each not in full or each in bounds else passed[each] + 1
            assert passed[each] < len(LANES), f"{each} has waited for {passed[each]} batches"


@given(
    spans=st.lists(st.integers(1, 50), min_size=2, max_size=4),
    gaps=st.lists(st.integers(0, 3), max_size=300),
    lag=st.integers(1, 2),
)
def test_inputs_that_have_batches_stay_together(spans: list[int], gaps: list[int], lag: int) -> None:
    lanes: list[Lane] = [("split", str(number)) for number in range(len(spans))]
    read, known = dict.fromkeys(lanes, 0), Known(dict.fromkeys(lanes, 0))  # type: ignore[arg-type]
    turns, under_way = turns_of(lanes, known), deque[tuple[Lane, int]]()
    for gap in gaps:
        place = 0 if turns.order(only)[0] != SPARK else 1
        lane = turns.order(only)[place]
        turns.took(place, lane, 0.0)
        read[lane] += spans[int(lane[1])] + gap
        under_way.append((lane, read[lane]))
        if len(under_way) > lag:
            done, bound = under_way.popleft()
            known.bounds[done] = bound
        ahead = max(read.values()) - min(read.values())
        assert ahead <= (lag + 1) * (max(spans) + 3), f"{read}: more than the batches under way and one"


def test_an_empty_input_holds_no_other_until_it_has_lines() -> None:
    slow, fast = LANES[:2]
    turns = turns_of([slow, fast], Known({slow: 1, fast: 9}))
    assert turns.order(only)[1:] == [slow, fast]
    turns.took(2, fast, 5.0)
    assert not turns.are_held("split"), "the slow one was asked, and has nothing"
    place = [*turns.order(only)].index(slow)
    turns.took(place, slow, 6.0)
    assert turns.are_held("split")
    turns.order(only)
    turns.found_none(8.0)
    assert not turns.are_held("split")
    place = [*turns.order(only)].index(fast)
    assert turns.took(place, fast, 9.0) == 2.0, "for two seconds it was held"


def test_new_file_has_the_bound_of_the_one_before() -> None:
    files, other = LANES[:2]
    known = Known({other: 5})
    turns = turns_of([files, other], known)

    def first(next: int) -> Lane:
        order = turns.order(lambda lane: [] if lane == SPARK else [("split", next) if lane == files else lane])
        return next_of(order)

    def next_of(order: Sequence[Lane]) -> Lane:
        return next(each for each in order if each != SPARK)

    while (lane := first(1)) != files:
        turns.took([*turns.order(only)].index(lane), lane, 0.0)
    turns.took([*turns._order].index(files), ("split", 1), 0.0)
    known.bounds["split", 1] = 7  # it is seen when the next file is looked at
    assert first(2) == other, "7 is ahead of 5"
    known.bounds[other] = 8
    assert first(2) == files
    known.bounds["split", 2] = 9
    assert first(2) == other


def test_an_idle_input_is_read_in_turn() -> None:
    lanes = LANES[:2]
    known = Known({lanes[0]: 5, lanes[1]: 7})
    known.idle.add(lanes[0])
    turns, taken = turns_of(lanes, known), Counter[Lane]()
    for _ in range(30):
        lane = turns.order(only)[0]
        taken[lane] += 1
        turns.took(0, lane, 0.0)
    assert taken[lanes[0]] == taken[lanes[1]] == 10, "it holds nobody, and nobody holds it"


def test_barred_file_is_held_until_its_limit_rises() -> None:
    file, other = LANES[:2]
    turns = turns_of([file, other], Known({file: 50, other: 90}))
    turns.limits = {"a": 49, "b": 100}
    place = [*turns.order(only)].index(other)
    assert turns.barred == {file}
    turns.took(place, other, 1.0)
    turns.order(only)
    turns.found_none(3.0)
    assert turns.are_held("split")
    turns.limits = {"a": 50}
    place = [*turns.order(only)].index(file)
    assert not turns.barred and turns.took(place, file, 5.0) == 4.0, "it was held for 4 seconds"
    turns.limits = {"a": 0}
    assert turns.order(only) and turns.barred
    turns.limits = {}
    assert turns.order(only) and not turns.barred


def test_only_files_are_barred() -> None:
    turns = turns_of(LANES, Known(dict.fromkeys(LANES, 9)))
    turns.limits = dict.fromkeys("abcd", 8)
    turns.order(only)
    assert turns.barred == {*LANES[:2]}


def test_many_partitions_are_looked_at_once_in_as_many_batches() -> None:
    looked = 0

    def partitions(lane: Lane) -> Sequence[Partition]:
        nonlocal looked
        looked += lane == ("partition", "c")
        return [("partition", -number) for number in range(1, 101)] if lane[0] == "partition" else []

    turns = turns_of(LANES, Known({("partition", -7): 3}))
    for _ in range(200):
        lane = turns.order(partitions)[0]
        turns.took(0, lane, 0.0)
    assert looked == 2
