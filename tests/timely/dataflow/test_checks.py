"""MEGAFLOW_CHECK=aliasing finds each fold that changes an emitted value, and no other. Switched off, it does not exist.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from megaflow.errors import BuildError, ProgramError
from megaflow.megaphone.folds.stateful import StateMachine
from megaflow.timely import example
from megaflow.timely.dataflow.checks import checked, wanted
from tests.timely.dataflow.test_folds import every_operator, run


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_CHECK", "aliasing")


@dataclasses.dataclass
class Basket:
    items: list[Any]


def appended(make: Callable[[list[Any]], Any]) -> Callable[..., Any]:
    """Return a fold that appends to its state, a list, in place. `make(state)` makes one output."""

    def fold(key: str, values: list[Any], state: Any) -> Any:
        state = state if state is not None else []
        state += values
        return state, [make(state)]

    return fold


def in_a_set(key: str, values: list[Any], state: Any) -> Any:
    state = state or (set(), 0)
    state[0].update(values)
    return (state[0], state[1] + 1), [(key, state[0])]


def in_a_basket(key: str, values: list[Any], state: Any) -> Any:
    state = state or Basket([])
    state.items.extend(values)
    return state, [(key, state)]


def deep_inside(key: str, values: list[Any], state: Any) -> Any:
    state = state or {"last": {}, "all": deque()}
    state["last"]["value"] = values
    return state, [{"of": key, "seen": (1, [state["last"]])}]


def by_a_generator(key: str, values: list[Any], state: Any) -> Any:
    state = state if state is not None else []

    def outputs() -> Iterator[Any]:
        for value in values * 2:
            state.append(value)
            yield key, state

    return state, outputs()


def now_and_then(key: str, values: list[Any], state: Any) -> Any:
    state = state if state is not None else []
    state += values
    return state, [state] if values == [0] else ()


def forgotten_at_last(key: str, values: list[Any], state: Any) -> Any:
    state = state if state is not None else []
    state += values
    return (None, []) if values == [1] else (state, [state])


def part_of_an_array(key: str, values: list[Any], state: Any) -> Any:
    state = numpy.zeros(4) if state is None else state
    state += 1
    return state, [(key, state[:2])]


@every_operator
@pytest.mark.parametrize(
    "fold",
    [
        appended(lambda state: state),
        appended(lambda state: ("k", state)),
        appended(lambda state: ("k", (1, [state]))),
        appended(lambda state: {"pages": state}),
        appended(Basket),
        in_a_set, in_a_basket, deep_inside, by_a_generator, now_and_then, forgotten_at_last,
        part_of_an_array,
    ],
)  # fmt: skip
@pytest.mark.usefixtures("checking")
def test_a_state_that_is_changed_in_place_after_it_was_given_is_found(operator: str, fold: Any) -> None:
    records = [(key, number) for number in range(3) for key in "ab"]
    with pytest.raises(ProgramError, match=r"the fold for key 'a' returned .* a state that is changed") as caught:
        run(operator, records, fold)
    assert "Return a copy, as in return state, [(key, list(state))]" in str(caught.value)
    (note,) = caught.value.__notes__
    assert note.startswith("in operator ") and ("record ('a', " in note or note.endswith("key 'a'"))


@pytest.mark.usefixtures("checking")
def test_the_error_shows_what_the_output_was_and_what_it_has_become() -> None:
    with pytest.raises(ProgramError, match=r"returned \[1\] as an output or in one, and it is now \[1, 2\]"):
        run("stateful_state_machine", [("a", 1), ("a", 2)], appended(lambda state: ("k", state)))


@pytest.mark.usefixtures("checking")
def test_one_call_that_gives_its_changing_state_for_each_record_is_found() -> None:
    def fold(key: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        state, outputs = state if state is not None else [], []
        for value in values:
            state.append(value)
            outputs.append((key, state))
        return state, outputs

    with pytest.raises(ProgramError, match=r"key 'a' returned \('a', \[1, 2\]\) twice in one call"):
        example(lambda scope: scope.to_stream([("a", 1), ("a", 2)]).stateful_unary(fold).capture())


@every_operator
@pytest.mark.parametrize(
    "fold",
    [
        appended(list),
        appended(tuple),
        appended(lambda state: ("k", state[-1])),
        lambda key, values, state: ((new := [*(state or []), *values]), [(key, new)]),
        lambda key, values, state: ((same := state or ["never changed"]), [(key, same), (values[0], same)]),
        lambda key, values, state: ((state or 0) + 1, ((key, [value]) for value in values)),
        lambda key, values, state: (None, [values]),
        lambda key, values, state: (values, ()),
        lambda key, values, state: (print, [len]) if False else ({"n": 1}, [print, Basket]),
    ],
)
@pytest.mark.usefixtures("checking")
def test_a_fold_that_gives_copies_or_makes_its_states_anew_is_not_accused(
    operator: str, fold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [(key, number) for number in range(4) for key in "ab"]
    watched = run(operator, records, fold)
    monkeypatch.delenv("MEGAFLOW_CHECK")
    assert repr(watched) == repr(run(operator, records, fold))


@pytest.mark.usefixtures("checking")
@every_operator
@pytest.mark.parametrize("returned", [None, 5, (1, None), (1, 5), (1, ("a", 2))], ids=repr)
def test_what_is_wrong_with_a_fold_without_the_check_is_said_with_it_too(operator: str, returned: Any) -> None:
    with pytest.raises(ProgramError, match=r"the fold (is called as|returned)|must return"):
        run(operator, [("a", 0)], lambda key, values, state: returned)


def with_shared(make: Callable[[], Any], change: Callable[[Any, list[Any]], Any]) -> Callable[..., Any]:
    """Return a fold whose states all start as the same object. `change(state, values)` returns the next state."""
    default = make()

    def fold(key: str, values: list[Any], state: Any) -> Any:
        return change(default if state is None else state, values), []

    return fold


def appending(state: Any, values: list[Any]) -> Any:
    state += values
    return state


def appending_deep(state: Any, values: list[Any]) -> Any:
    state["all"][0].items.extend(values)
    return state


def once_more(state: Any, values: list[Any]) -> Any:
    return ({**state, "n": values}, state) if isinstance(state, dict) else appending_deep(state[1], values)


@every_operator
@pytest.mark.parametrize(
    "fold",
    [
        with_shared(list, appending),
        with_shared(lambda: {"all": [Basket([])]}, appending_deep),
        with_shared(lambda: {"all": [Basket([])]}, lambda state, values: appending_deep(dict(state), values)),
        with_shared(lambda: {"all": [Basket([])]}, once_more),
    ],
)
@pytest.mark.usefixtures("checking")
def test_states_of_two_keys_that_share_what_changes_are_found(operator: str, fold: Any) -> None:
    records = [(key, number) for number in range(3) for key in "ab"]
    with pytest.raises(ProgramError, match=r"the fold for key '.' changed the state of key '.' from .* to ") as caught:
        run(operator, records, fold)
    assert "Make a new object for each key" in str(caught.value)
    (note,) = caught.value.__notes__
    assert "record ('" in note or "key '" in note


@pytest.mark.usefixtures("checking")
def test_the_error_shows_both_keys_and_the_state_before_and_now() -> None:
    with pytest.raises(ProgramError, match=r"key 'b' changed the state of key 'a' from \[1\] to \[1, 2\]"):
        run("stateful_state_machine", [("a", 1), ("b", 2)], with_shared(list, appending))


@pytest.mark.usefixtures("checking")
def test_a_part_of_a_record_that_two_keys_keep_is_found() -> None:
    def fold(key: str, value: list[int], state: Any) -> Any:
        if state is not None:
            state += value
        return state or value, []

    shared = [1]
    records = [("a", shared), ("b", shared), ("a", [2])]
    with pytest.raises(ProgramError, match=r"key 'a' changed the state of key 'b' from \[1\] to \[1, 2\]"):
        example(lambda scope: scope.to_stream(records).stateful_state_machine(fold).capture())


@every_operator
@pytest.mark.parametrize(
    "fold",
    [
        with_shared(lambda: {"limit": [3]}, lambda state, values: {"of": [state, *values]}),  # shared, never changed
        with_shared(lambda: [3], lambda state, values: state),
        with_shared(list, lambda state, values: [*state, *values]),
        with_shared(list, lambda state, values: None),
        lambda key, values, state: (appending([] if state is None else state, values), []),
        lambda key, values, state: ((state or 0) + 1, []),
    ],
)
@pytest.mark.usefixtures("checking")
def test_states_that_share_what_never_changes_are_not_accused(operator: str, fold: Any) -> None:
    run(operator, [(key, number) for number in range(4) for key in "abc"], fold)


def test_the_fold_itself_is_called_when_the_check_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fold() -> None: ...

    for off in ("", " ", ","):
        monkeypatch.setenv("MEGAFLOW_CHECK", off)
        assert checked("mine", fold) is fold and wanted() == frozenset()
    monkeypatch.setenv("MEGAFLOW_CHECK", " aliasing ,")
    assert checked("mine", fold) is not fold and wanted() == {"aliasing"}


def test_a_check_that_there_is_not_is_refused_with_the_names_of_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MEGAFLOW_CHECK", "aliasing,typo")
    with pytest.raises(BuildError, match=r"there is no check 'typo'; available: aliasing"):
        example(lambda scope: scope.to_stream([1]).capture())


def test_each_kind_of_fold_is_checked() -> None:
    assert StateMachine.__init__.__code__.co_names.count("checked") == 1
