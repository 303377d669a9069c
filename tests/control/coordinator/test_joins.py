"""Requests for processes that wait for a slot. The simulation has whole joins."""

from typing import Any
from unittest.mock import MagicMock

import pytest

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.events import Asked, Reply
from megaflow.control.coordinator.members.joins import CANCELED, Joins
from megaflow.control.launcher_messages import CancelStarts, Started, StartFailed, StartWaits
from megaflow.control.messages import AddProcesses, CancelQueued, Done, Refused, Request
from megaflow.errors import CommandRefused


def asking(joins: Joins, count: int) -> None:
    joins.ask(Asked("one", Request(1, AddProcesses(count))), AddProcesses(count), 0.0)


def canceling(joins: Joins, out: list[Any]) -> list[Any]:
    out.clear()
    joins.cancel_queued(Asked("other", Request(2, CancelQueued())))
    return out


def test_queued_processes_are_canceled_and_their_request_is_refused() -> None:
    stream = CommandStream()
    joins = Joins(MagicMock(), stream, 30.0, lambda ids: None)
    asking(joins, 2)
    with pytest.raises(CommandRefused, match="no process waits"):
        joins.cancel_queued(Asked("other", Request(2, CancelQueued())))
    joins.launched(StartWaits(0, 2, "2 queued: no free slot"), 1.0)
    assert canceling(joins, stream.out) == [CancelStarts(CANCELED), Reply("other", Done(2, 2))]
    stream.out.clear()
    joins.launched(StartFailed(CANCELED, 0), 2.0)
    [answer] = [each.message for each in stream.out if isinstance(each, Reply) and isinstance(each.message, Refused)]
    assert "canceled" in answer.reason and not joins.adds


def test_only_processes_without_a_slot_are_canceled() -> None:
    stream = CommandStream()
    joins = Joins(MagicMock(), stream, 30.0, lambda ids: None)
    asking(joins, 3)
    joins.launched(StartWaits(0, 2, "2 queued: no free slot"), 1.0)
    joins.launched(Started((("host", 1),), 0, (7,)), 1.0)
    assert Reply("other", Done(2, 2)) in canceling(joins, stream.out)
