"""Reconfigurations under way: the workers that they occupy, and the parts of their accounts."""

from megaflow.control.coordinator.base.events import Asked, Reply
from megaflow.control.coordinator.moves.reconfigurations import Reconfigurations
from megaflow.control.messages import Accepted, BeginPlan, Done, Request
from megaflow.control.reports import LedgerEntry, StepReport
from megaflow.megaphone.base.routing import Map, Move

ASKED = Asked("client", Request(7, None))


def test_workers_are_bound_by_bins_and_by_what_is_not_done() -> None:
    moves = Reconfigurations((0, 0, 1, 1))
    assert "owns 2 bins" in (moves.binds((0,)) or "") and moves.binds((2,)) is None
    assert moves.add(ASKED, [Move(2, 0), Move(3, 0), Move(0, 2), Move(0, 0)], 5, 1.0) == Reply("client", Accepted(7, 5))
    assert moves.table == (0, 0, 0, 0)
    assert "epoch 5" in (moves.binds((1,)) or "") and "epoch 5" in (moves.binds((2,)) or "")
    (pending,) = moves.passed(None, 1.5)
    moves.finish(pending)
    assert moves.binds((1, 2)) is None and not moves.pending
    moves.add(ASKED, [Map((0, 0, 0, 1)), Map((0, 0, 0, 0))], 6, 1.0)
    assert moves.binds((1,)) is not None
    assert moves.binds((3,)) is None
    plan = BeginPlan(moves.table, (0, 0, 0, 3), "fluid", None, 0.0, "pid 1")
    moves.plans.keep(moves.plans.begun("client", plan, moves.table), "client")
    assert "plan 0 gives" in (moves.binds((3,)) or "")


def test_an_account_is_given_once_and_adds_up_the_ledgers() -> None:
    moves = Reconfigurations((0, 0), operators=2)
    moves.add(ASKED, [Move(0, 1)], 5, 1.0)
    moved = (("count", 5, 10), ("join", 5, 20), ("count", 4, 40))  # two operators share the table
    entries = [LedgerEntry(operator, 0, epoch, 0, 1, size, 1, 0.1) for operator, epoch, size in moved]
    moves.note(entries)
    assert list(moves.ledger) == entries
    (pending,) = moves.pending.values()
    pending.seconds = 0.5
    account = StepReport(epoch=5, bins=1, bytes=30, keys=2, seconds=0.5, operators=2)
    assert moves.finish(pending) == [Reply("client", Done(7, account))] and moves.finish(pending) == []
