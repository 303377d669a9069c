"""Clients begin plans, step, die and continue in any order: one client runs a plan at a time, and the rest is known."""

from random import Random
from typing import Any

import pytest

from megaflow.control.coordinator.moves.plans import Plans
from megaflow.control.messages import BeginPlan, KeptPlan
from megaflow.errors import CommandRefused
from megaflow.megaphone.base.routing import RoutingTable, difference
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

BINS = 6


def begin(table: RoutingTable, target: RoutingTable) -> BeginPlan:
    return BeginPlan(table, target, "fluid", None, 0.5, "somebody")


@pytest.mark.parametrize("seed", range(60))
def test_only_the_runner_changes_owners_and_what_is_left_leads_to_the_target(seed: int) -> None:
    rng, plans = Random(seed), Plans()
    table: RoutingTable = tuple(rng.choices(range(3), k=BINS))
    runner: str | None = None  # what plans should report
    target: RoutingTable | None = None
    number = -1
    for _ in range(300):
        client = rng.choice("abc")
        other = runner not in (None, client)
        before = (plans.kept, plans.status(table))
        try:
            match rng.choice(["begin", "step", "step", "step", "resume", "gone", "plain"]):
                case "begin":
                    wanted: RoutingTable = tuple(rng.choices(range(3), k=BINS))
                    stale = rng.random() < 0.2
                    made_from = (9, *table[1:]) if stale else table
                    kept = plans.keep(plans.begun(client, begin(made_from, wanted), table), client)
                    assert not other and not stale and wanted != table and kept.number == number + 1
                    number, runner, target = kept.number, client, wanted
                case "resume":
                    kept = plans.keep(plans.resumed(client, client), client)
                    assert not other and target is not None and (kept.target, kept.runner) == (target, client)
                    assert kept.number == number + 1, "what the one before has asks for is refused"
                    number, runner = kept.number, client
                case "step":
                    plans.check_step(client, number)
                    assert not other and target is not None
                    bin, _, owner = difference(table, target)[0]
                    table = (*table[:bin], owner, *table[bin + 1 :])
                    plans.stepped(client, number, table)
                    runner = client
                    if table == target:
                        runner = target = None
                case "plain":
                    plans.check_step(client, None)
                    assert not other
                    plans.stepped(client, None, table)
                    number += runner is None and target is not None  # any other client is refused
                case "gone":
                    plans.gone(client)
                    runner = None if runner == client else runner
        except CommandRefused:
            assert (plans.kept, plans.status(table)) == before
        record = plans.status(table)
        assert (record is None) == (target is None)
        if record is not None and target is not None:
            assert record.left == len(difference(table, target)) > 0
            assert record.running == (runner is not None)
        assert (plans.binds((0, 1, 2)) is None) == (runner is None)


def test_what_is_kept_travels_and_another_coordinator_goes_on_from_it() -> None:
    plans = Plans()
    plans.keep(plans.begun("a", begin((0, 0), (1, 1)), (0, 0)), "a")
    plans.check_step("a", 0)
    plans.stepped("a", 0, (1, 0))
    kept: Any = decode(encode(plans.kept))
    assert isinstance(kept, KeptPlan) and kept == plans.kept
    successor = Plans(kept)
    record = successor.status((1, 0))
    assert record is not None and (record.left, record.running) == (1, False)
    successor.check_step("a again", 0)
    successor.stepped("a again", 0, (1, 1))
    assert successor.status((1, 1)) is None
    assert successor.keep(successor.begun("b", begin((1, 1), (0, 0)), (1, 1)), "b").number == 1


def test_whom_a_plan_that_is_carried_out_gives_bins_may_not_leave() -> None:
    plans = Plans()
    plans.keep(plans.begun("a", begin((0, 0), (0, 2)), (0, 0)), "a")
    assert plans.binds((1,)) is None and "plan 0 gives bins to worker 2" in (plans.binds((1, 2)) or "")
    plans.gone("a")
    assert plans.binds((1, 2)) is None
