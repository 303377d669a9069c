"""The table and the picture of the cost of losses, for given figures."""

import pytest

from apps.bench.durable_losses import LOSSES, ROWS
from apps.bench.durable_restart import AGAIN, STILL

RECORD = {
    "points": [
        {"keys": keys, "row": row, AGAIN: [keys / 1e6, 9.0, 0.0], STILL: [1.0]}
        for keys in (1000, 250_000)
        for row, *_ in ROWS
    ],
    "rate": 5000,
}


def test_the_medians_are_shown() -> None:
    assert "250,000" in LOSSES.text(RECORD) and "0.25" in LOSSES.text(RECORD)


def test_it_can_be_drawn() -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    LOSSES.draw(RECORD, figure)
    assert len(figure.axes) == 1
