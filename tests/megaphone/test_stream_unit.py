"""The unit of a stream's timestamps: learnt from a timestamp, a record or a state, and spelled as stores spell it."""

from datetime import UTC, datetime
from typing import Any

import pytest

from megaflow.errors import ProgramError
from megaflow.megaphone.base.event_unit import EventUnit
from megaflow.megaphone.base.stream_unit import StreamUnit

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
PAIRS = [(7, ("a", 1)), (9, ("b", 2))]


def unit_of(first: Any) -> StreamUnit:
    """Return an undeclared unit on the worker that has read this timestamp."""
    unit = StreamUnit()
    unit.micros(first)
    return unit


def sent(unit: StreamUnit) -> list[Any]:
    return [value for _, value in unit.spell_values(PAIRS)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("first", "known"), [(NOON, EventUnit.DATETIME), (1.5, EventUnit.SECONDS)])
def test_the_owner_of_a_key_learns_the_unit_from_its_records(first: Any, known: EventUnit) -> None:
    owner = StreamUnit()
    owner.read({*map(type, sent(unit_of(first)))})
    assert owner.known is known


@pytest.mark.parametrize(("first", "known"), [(NOON, EventUnit.DATETIME), (1.5, EventUnit.SECONDS)])
def test_an_exchange_brings_the_same_records_and_the_unit(first: Any, known: EventUnit) -> None:
    receiver = StreamUnit()
    assert receiver.unspell(unit_of(first).spell([*PAIRS])) == PAIRS
    assert receiver.known is known


def test_a_state_in_datetimes_ends_in_true_as_in_stores() -> None:
    state: list[Any] = [None, 60_000_000, {}]
    for _ in range(2):
        unit_of(NOON).spell_state(state)
        assert state == [None, 60_000_000, {}, True]
    owner = StreamUnit()
    owner.read({int}, state)
    assert owner.known is EventUnit.DATETIME


def test_a_state_in_seconds_has_no_mark_and_teaches_nothing() -> None:
    state: list[Any] = [None, 60_000_000, {}]
    unit_of(1.5).spell_state(state)
    owner = StreamUnit()
    owner.read({int}, state)
    assert (state, owner.known) == ([None, 60_000_000, {}], None)


def test_a_declared_unit_does_not_travel() -> None:
    declared = StreamUnit(EventUnit.DATETIME)
    state: list[Any] = [None, 60_000_000, {}]
    declared.spell_state(state)
    assert sent(declared) == [(7, 1), (9, 2)] and state == [None, 60_000_000, {}]
    declared.read({*map(type, sent(declared))})
    assert declared.known is EventUnit.DATETIME


@pytest.mark.parametrize(("first", "other"), [(NOON, 1.5), (1.5, NOON)])
def test_records_in_two_units_are_refused(first: Any, other: Any) -> None:
    with pytest.raises(ProgramError, match="one kind of timestamps"):
        unit_of(first).read({*map(type, sent(unit_of(other)))})


def test_units_that_agree_are_known_together() -> None:
    one, other = StreamUnit(), StreamUnit()
    one.agree([other])
    other.micros(NOON)
    assert one.known is EventUnit.DATETIME and not one.is_declared
