"""The benchmark's counts of progress: which of them grow with the number of workers, and which do not."""

from typing import Any

import pytest

from apps.bench.rescaling_shapes import SHAPES, stateful
from apps.bench.rescaling_workers import WORKERS, Sizes, of_shapes

NUMBERS = (2, 4, 8, 16)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return WORKERS.measure(Sizes(workers=",".join(map(str, NUMBERS)), epochs=4))


def test_every_kind_of_dataflow_is_counted_with_every_number_of_workers(record: dict[str, Any]) -> None:
    assert {shape: [point["workers"] for point in points] for shape, points in of_shapes(record).items()} == {
        shape: [*NUMBERS] for shape in SHAPES
    }
    table = WORKERS.text(record)
    assert all(shape in table for shape in SHAPES)


def test_a_worker_tells_as_much_however_many_others_there_are(record: dict[str, Any]) -> None:
    for points in of_shapes(record).values():
        assert max(point["batches"] for point in points) < 2 * min(point["batches"] for point in points)


def test_the_state_does_not_grow_with_the_workers_but_for_a_number_for_each(record: dict[str, Any]) -> None:
    [name] = [name for name, shape in SHAPES.items() if shape is stateful]
    few, *_, many = of_shapes(record)[name]
    assert many["pointstamps"] <= 2 * few["pointstamps"], "of eight times the workers"
    assert 0 < many["snapshot"] - few["snapshot"] < 16 * (many["workers"] - few["workers"])


@pytest.mark.slow
def test_messages_grow_with_the_square_of_the_workers_and_in_a_tree_with_their_number(record: dict[str, Any]) -> None:
    for points in of_shapes(record).values():
        few, many = points[1], points[-1]
        assert many["messages"] > 8 * few["messages"], "four times as many workers"
        assert many["tree"] < 8 * few["tree"]


def test_it_can_be_drawn(record: dict[str, Any]) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    WORKERS.draw(record, figure)
    assert len(figure.axes) == 4
