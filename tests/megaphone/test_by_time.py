"""A ByTime is a dict that knows its least time, under any changes, and keeps few removed times."""

from hypothesis import given
from hypothesis import strategies as st

from megaflow.megaphone.base.by_time import ByTime

times = st.integers(0, 30)


@given(steps=st.lists(st.tuples(st.sampled_from(["add", "take", "take the least"]), times), max_size=200))
def test_it_agrees_with_a_plain_dict(steps: list[tuple[str, int]]) -> None:
    queue: ByTime[list[int]] = ByTime(lambda time: [time])
    model: dict[int, list[int]] = {}
    for number, (what, time) in enumerate(steps):
        least = min(model, default=None)
        if what == "add":
            queue[time].append(number)
            model.setdefault(time, [time]).append(number)
        else:
            gone = least if what == "take the least" and least is not None else time
            assert queue.take(gone) == model.pop(gone, None)
        queue._check()
        assert queue == model and queue.least() == min(model, default=None)
