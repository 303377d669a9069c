"""The benchmark of checkpoint bytes: the bytes follow the number of changed keys."""

from typing import Any

import pytest

from apps.bench.checkpoint_bytes import BYTES, Sizes


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return BYTES.measure(Sizes(keys=10_000, changed="1,100,1000,10000", cuts=60))


def test_what_is_written_grows_with_the_keys_that_change(record: dict[str, Any]) -> None:
    written = [point["segments"] for point in record["points"]]
    assert written == sorted(written)
    assert written[0] < record["state"] / 100 < record["state"] / 2 < written[-1] < 2 * record["state"]
    assert all(point["kept"] <= 2.5 for point in record["points"])
    assert f"{record['points'][-1]['kept']:.2f}" in BYTES.text(record)


def test_it_can_be_drawn(record: dict[str, Any]) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    BYTES.draw(record, figure)
    assert len(figure.axes) == 2
