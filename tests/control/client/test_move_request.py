"""A request becomes a plan: the bins, the steps, and the amount of data that moves."""

from dataclasses import replace
from typing import Any

import pytest

from megaflow.cli.text import NOTHING, plan_text
from megaflow.control.client.move_request import Plan, Selection, make_plan, plan_removal, remaining_plan
from megaflow.control.messages import KeptPlan
from megaflow.control.reports import JobStatus
from megaflow.errors import CommandRefused
from tests.control.status_records import status_of


def status(table: list[int], workers: tuple[int, ...] = (0, 1), *loads: list[dict[str, Any]]) -> JobStatus:
    """The part of a status that plans depend on, with an operator for each of `loads`, at least one."""
    parts: list[dict[str, Any]] = [{"loads": rows} for rows in loads] or [{}]
    return status_of({
        "job": "app", "state": "running", "epoch": 9, "frontier": 8, "pending": [], "plan": None, "changes": [],
        "ledger": [],
        "workers": [{"id": worker, "state": "running", "address": f"h:{worker}", "lines": 0} for worker in workers],
        "operators": [{"name": "count", "bins": len(table), "table": table, **part} for part in parts] if table else [],
    })  # fmt: skip


def load(bin: int, busy: float, records: float = 1.0, keys: int = 10, size: int = 100) -> dict[str, Any]:
    return {"bin": bin, "owner": 0, "records_per_s": records, "busy_ms_per_s": busy, "keys": keys, "bytes": size}


def bins_of(plan: Plan) -> list[list[int]]:
    return [[move.bin for move in step] for step in plan.steps]


def test_a_plan_says_how_many_keys_and_bytes_move_in_all_operators_if_loads_are_known() -> None:
    plan = make_plan(status([0, 0, 1, 1]), Selection(drain=0, strategy="batched", batch=2))
    assert (plan.moves, bins_of(plan), plan.size) == ([(0, 0, 1), (1, 0, 1)], [[0, 1]], None)
    assert plan_text(plan).startswith("would move 2 bins in 1 step:")
    record = status([0, 0, 1, 1], (0, 1), [load(0, 1.0), load(2, 9.0)], [load(0, 0.0, size=50), load(1, 2.0)])
    plan = make_plan(record, Selection(drain=0))
    assert plan.size == (30, 250) and plan_text(plan).startswith("would move 2 bins of each of 2 operators (about 30")
    assert plan_text(make_plan(record, Selection(balance=True))) == NOTHING
    with pytest.raises(CommandRefused, match="no stateful operator"):
        make_plan(status([]), Selection(balance=True))


def test_a_balance_by_load_adds_up_the_operators_and_moves_few_bins() -> None:
    record = status([0, 0, 0, 1], (0, 1), [load(0, 5.0), load(1, 1.0), load(2, 1.0)], [load(1, 3.0), load(3, 1.0)])
    assert make_plan(record, Selection(balance=True, by="load")).moves == [(1, 0, 1)]
    assert make_plan(record, Selection(balance=True)).moves == [(2, 0, 1)]
    with pytest.raises(CommandRefused, match="no load was measured"):
        make_plan(status([0, 0, 0, 1], (0, 1), []), Selection(balance=True, by="load"))


def test_where_no_busy_time_was_measured_records_are_the_load() -> None:
    record = status([0, 0, 1], (0, 1), [load(0, 0.0, 2.0), load(1, 0.0, 7.0)])
    assert bins_of(make_plan(record, Selection(drain=0, strategy="hottest-first"))) == [[1], [0]]


def test_what_is_left_of_a_plan_keeps_its_strategy() -> None:
    kept = KeptPlan(3, (1, 1, 1, 0), "batched", 2, 0.5, 4, "pid 1")
    plan = remaining_plan(status([1, 0, 0, 1]), kept)
    assert (plan.moves, bins_of(plan), plan.gap) == ([(1, 0, 1), (2, 0, 1), (3, 1, 0)], [[1, 2], [3]], 0.5)
    kept = KeptPlan(3, (1, 1, 1, 0), "hottest-first", None, 0.5, 4, "pid 1")
    assert bins_of(remaining_plan(status([1, 0, 0, 1], (0, 1), [load(3, 9.0), load(2, 1.0)]), kept)) == [[3], [2], [1]]


def test_all_workers_of_the_process_are_drained_to_those_that_may_own_bins() -> None:
    record = status([0, 1, 2, 3, 4, 2], (0, 1, 2, 3, 4))
    workers = [replace(worker, address=f"h:{worker.id // 2}") for worker in record.workers]
    workers[4] = replace(workers[4], state="joined")
    plan = plan_removal(replace(record, workers=tuple(workers)), 3)
    assert [move for step in plan.steps for move in step] and {bin for bin, _, _ in plan.moves} == {2, 3, 5}
    assert {target for _, _, target in plan.moves} == {0, 1} and [len(step) for step in plan.steps] == [1, 1, 1]
    assert plan_removal(status([], (0, 1)), 1).steps == []
