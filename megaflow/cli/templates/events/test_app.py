"""Visits and late clicks are the same while processes join and leave, and after a crash."""

import json
from typing import Any

from megaflow.testing import Join, Kill, SimulatedCluster, seeds

from app import dataflow


def click(minute: int, user: str, page: str) -> str:
    """Return a line of the input."""
    return json.dumps({"at": f"2026-03-01T{10 + minute // 60}:{minute % 60:02}:00Z", "user": user, "page": page})


LINES = [click(0, "ann", "/"), click(6, "ann", "/tea"), click(5, "ann", "/milk"), click(50, "bob", "/"),
         click(95, "bob", "/tea"), click(10, "ann", "/late")]  # fmt: skip
EXPECTED = [
    ("ann", "2026-03-01T10:00:00+00:00", "2026-03-01T10:06:00+00:00", ["/", "/milk", "/tea"]),
    ("bob", "2026-03-01T10:50:00+00:00", "2026-03-01T10:50:00+00:00", ["/"]),
    ("bob", "2026-03-01T11:35:00+00:00", "2026-03-01T11:35:00+00:00", ["/tea"]),
]


@seeds(3)  # seeds 0, 1 and 2; each decides another order of steps
def test_clicks_out_of_order_make_visits(seed: int) -> None:
    cluster = SimulatedCluster(seed, processes=2)
    cluster.at(record=3, do=Join())
    late: list[Any] = []
    visits = cluster.run(dataflow, lines=LINES, outputs={"late": late})
    assert sorted(visits) == EXPECTED
    assert late == [("ann", "/late")]


@seeds(3)
def test_a_visit_is_sent_once_after_a_crash(seed: int) -> None:
    cluster = SimulatedCluster(seed, processes=2, durable=True)  # as with --state
    cluster.at(record=3, do=Kill())
    visits = cluster.run(dataflow, lines=LINES, outputs={"late": []}, close_windows=True)
    assert sorted(visits) == EXPECTED
