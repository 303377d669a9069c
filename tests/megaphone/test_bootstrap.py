"""A newcomer starts from the state that answers its Bootstrap, and applies only the commands after it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProtocolError
from megaflow.megaphone.base.routing import Bootstrap, Map, Move, Numbered, Reconfiguration, RoutingHistory
from megaflow.megaphone.router.bootstrap import RoutingBacklog, RoutingState
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

NEW = 7


def state(next: int) -> RoutingState:
    """Return a state that a server may send."""
    pending = (Reconfiguration(3, (Move(1, 0),)), Reconfiguration(4, (Map((1, 1)), Move(0, 0))))
    return RoutingState((0, 1), 2, pending, (Reconfiguration(5, (Move(0, 1),)),), next)


def read(newcomer: RoutingBacklog, *commands: tuple[int, Any], first: int = 0) -> list[bool]:
    """Let it read (time, command), numbered from `first`; return the requests that it makes."""
    return [newcomer.read(time, Numbered(first + place, command)) for place, (time, command) in enumerate(commands)]


def numbers(newcomer: RoutingBacklog) -> list[int]:
    """Return the numbers of the commands that it has kept."""
    return [numbered.number for _, numbered in newcomer.later]


def test_a_routing_state_travels() -> None:
    arrived = decode(encode(state(9)))
    assert arrived == state(9) and type(arrived.pending[0]) is Reconfiguration
    assert decode(encode(RoutingState((), None, (), (), 0))) == RoutingState((), None, (), (), 0)


def test_its_history_has_the_table_and_what_is_pending_and_goes_on_from_there() -> None:
    history = state(9).history()
    assert [history.at(time) for time in (2, 3, 4)] == [(0, 1), (0, 0), (0, 1)]
    with pytest.raises(AssertionError, match="after the one at 4"):
        history.append(4, [])
    empty = RoutingState((0, 1), 2, (), (), 0).history()
    with pytest.raises(AssertionError, match="reconfiguration at 2 after the one at 2"):
        empty.append(2, [])
    assert isinstance(history, RoutingHistory)


@pytest.mark.parametrize("first", ["the Bootstrap", "the state"])
def test_a_newcomer_starts_when_it_has_read_its_bootstrap_and_has_the_answer(first: str) -> None:
    newcomer = RoutingBacklog(NEW)
    assert newcomer.called is None and newcomer.answer() is None
    if first == "the state":
        newcomer.receive(state(13))
        assert newcomer.answer() is None
    assert read(newcomer, (4, Bootstrap(0, NEW)), first=12) == [False]
    assert newcomer.called == 12
    if first == "the Bootstrap":
        assert newcomer.answer() is None
        newcomer.receive(state(13))
    assert newcomer.answer() == state(13)


@given(below=st.integers(0, 5), above=st.integers(0, 5))
def test_commands_below_its_bootstrap_are_in_the_answer_and_those_above_are_kept(below: int, above: int) -> None:
    newcomer = RoutingBacklog(NEW)
    read(newcomer, *[(1, Move(0, 1))] * below, (2, Bootstrap(0, NEW)), *[(3, Move(0, 1))] * above, first=40)
    assert numbers(newcomer) == list(range(40 + below + 1, 40 + below + 1 + above))


def test_a_state_that_answers_another_bootstrap_is_not_its_own() -> None:
    newcomer = RoutingBacklog(NEW)
    read(newcomer, (1, Bootstrap(0, 8)), (1, Bootstrap(0, NEW)), (1, Bootstrap(1, NEW)))
    newcomer.receive(state(3))
    newcomer.receive(state(1))
    assert newcomer.answer() is None
    newcomer.receive(state(2))
    assert newcomer.answer() == state(2) and numbers(newcomer) == [2]


@pytest.mark.parametrize("command", [Move(0, NEW), Map((0, NEW)), Bootstrap(NEW, 8)], ids=str)
def test_a_command_that_names_it_before_its_bootstrap_is_a_bug_of_who_injects(command: Any) -> None:
    with pytest.raises(ProtocolError, match=r"command 5 at time 3, .* names worker 7, .* not bootstrapped yet"):
        read(RoutingBacklog(NEW), (3, command), first=5)


def test_it_has_to_send_for_what_comes_later_than_the_first_command_that_gives_it_a_bin_and_as_a_server() -> None:
    newcomer = RoutingBacklog(NEW)
    read(newcomer, (1, Bootstrap(0, NEW)))
    commands = [
        ((2, Move(0, 1)), False),
        ((4, Move(0, NEW)), False),
        ((4, Move(1, 1)), False),
        ((5, Move(1, 0)), True),
        ((5, Map((NEW, NEW))), True),
        ((5, Move(0, 1)), True),
        ((6, Bootstrap(0, 8)), False),
        ((6, Bootstrap(NEW, 9)), True),
    ]
    assert read(newcomer, *[command for command, _ in commands], first=1) == [sends for _, sends in commands]
    assert numbers(newcomer) == list(range(1, 9))


def test_commands_that_are_for_sources_are_passed_over() -> None:
    newcomer = RoutingBacklog(NEW)
    assert read(newcomer, (1, "end"), (1, Bootstrap(0, NEW)), (1, {"splits": NEW}), (2, Move(0, 0))) == [False] * 4
    assert numbers(newcomer) == [3]
