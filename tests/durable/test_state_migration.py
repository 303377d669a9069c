"""Each operator finds its own states in a store by name, or the resume is refused with a remedy."""

from dataclasses import replace
from typing import Any

import pytest

from megaflow.durable.commits import Commit, OperatorCut
from megaflow.durable.restored import ANY_FORM, Form, NamedForm, Restored, StateDescriptor, Terms
from megaflow.durable.state_migration import inherited, upgrade
from megaflow.errors import ProgramError, StoreError
from megaflow.event_time.accumulators import Accumulators, Sum
from megaflow.event_time.kept_windows import WindowsForm
from megaflow.event_time.windows import session, tumbling

COUNT, TOTAL = OperatorCut("count", "", (3, None)), OperatorCut("sum", "", (3,), version=2)
COMMIT = Commit(7, 3, 41, 2, operators=(COUNT, TOTAL), dropped=("old",))


def descriptors(*names: str, **versions: int) -> list[StateDescriptor]:
    terms = {name: Terms(version, lambda key, state, version: state) for name, version in versions.items()}
    return [StateDescriptor(name, 2, lambda bins, hash: hash or len, terms.get(name, Terms(2))) for name in names]


def find(*names: str, renamed: tuple[tuple[str, str], ...] = (), dropped: tuple[str, ...] = ()) -> dict[str, Any]:
    return inherited(COMMIT, descriptors(*names, count=1, counts=1), renamed, dropped)


def test_operators_go_on_by_name_and_new_ones_begin_with_nothing() -> None:
    assert find("count", "sum", "new") == {"count": COUNT, "sum": TOTAL}


def test_a_renamed_or_dropped_operator_is_found_or_left_and_the_second_time_too() -> None:
    assert find("counts", "sum", renamed=(("count", "counts"),)) == {"counts": COUNT, "sum": TOTAL}
    assert find("count", dropped=("sum",)) == {"count": COUNT}
    assert find("count", "sum", renamed=(("words", "count"),), dropped=("old",)) == {"count": COUNT, "sum": TOTAL}


@pytest.mark.parametrize(
    "names, renamed, dropped, said",
    [
        ("count", (), (), "has the state of operator 'sum', but the program has no such operator; or give an "),
        ("counts sum", (), (), "but the program has no such operator; did you mean 'counts'. Then add --rename-"),
        ("sum words", (), (), "such operator; if it has a new name .'words'., add --rename-state count=words; or give"),
        ("sum a b", (), (), "the program has no such operator; if it has a new name .'a', 'b'., add --rename-state"),
        ("count sum", (("count", "cuont"),), (), "no operator 'cuont'; did you mean 'count'. Operators: count, sum"),
        ("count sum x", (("count", "x"),), (), "--rename-state count=x: the program still has operator 'count', "),
        ("sum", (("count", "sum"),), (), "count=sum: the store already has states of both 'count' and 'sum'; use"),
        ("count sum x", (("cont", "x"),), (), "cont=x: the store has no operator 'cont'; did you mean 'count'"),
        ("count sum", (), ("sum",), "--drop-state sum: the program has an operator 'sum', whose state would"),
        ("count sum", (), ("smu",), "--drop-state smu: the store has no operator 'smu'; did you mean 'sum'. Operators"),
    ],
)
def test_what_would_go_to_none_or_twice_is_refused(names: str, renamed: Any, dropped: Any, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        find(*names.split(), renamed=renamed, dropped=dropped)


def test_states_of_a_later_version_are_refused_and_those_of_an_earlier_one_without_an_upgrade() -> None:
    older = inherited(COMMIT, descriptors("count", "sum", count=1, sum=2), (), ())
    newer = descriptors("count", "sum", count=1, sum=1)
    assert older.keys() == {"count", "sum"}
    with pytest.raises(StoreError, match="operator 'sum' in the store are of version 2, but the program has vers"):
        inherited(COMMIT, newer, (), ())
    with pytest.raises(StoreError, match=r"of version 1, but the program has version 2: give upgrade="):
        inherited(COMMIT, descriptors("count", "sum"), (), ())


def test_an_upgrade_replaces_or_forgets_states_and_says_which_it_fails_at() -> None:
    def double(key: str, state: int, version: int) -> int | None:
        return None if state == 3 else state * version * 2 // (state != 4)

    [descriptor] = [StateDescriptor("count", 2, lambda bins, hash: hash or len, Terms(2, double))]
    restored = Restored({0: {"a": 1, "b": 3}, 1: {}}, {})
    upgrade(restored, descriptor, 1)
    assert restored.states == {0: {"a": 2}, 1: {}}
    with pytest.raises(ProgramError, match=r"'count': upgrade.* raised ZeroDivisionError: .*, for key 'c' and a"):
        upgrade(Restored({1: {"c": 4}}, {}), descriptor, 1)


def windows_of(given: Any) -> Form:
    return WindowsForm(given, Accumulators([Sum("window")]))


@pytest.mark.parametrize(
    "kept, form, version",
    [
        ("", windows_of(tumbling(20)), 1),  # of an earlier megaflow
        ("", NamedForm("counts"), 1),
        ("counts", NamedForm("counts"), 1),
        ("sums", NamedForm("exact sums", "sums", float), 1),
        ("counts", ANY_FORM, 1),
        ("counts", NamedForm("sums"), 2),
        (windows_of(tumbling(10)).text(), windows_of(tumbling(20)), 2),
        (windows_of(session(10)).text(), windows_of(session(20)), 1),
    ],
)
def test_states_of_a_form_that_fits_are_found(kept: str, form: Form, version: int) -> None:
    commit = replace(COMMIT, operators=(replace(COUNT, form=kept),))
    [descriptor] = descriptors("count")
    descriptor = replace(descriptor, terms=Terms(version, lambda key, state, version: state, form=form))
    assert inherited(commit, [descriptor], (), ()).keys() == {"count"}


@pytest.mark.parametrize(
    "kept, form",
    [
        ("counts", NamedForm("sums")),
        ("counts", windows_of(tumbling(20))),
        (windows_of(tumbling(10)).text(), windows_of(tumbling(20))),
        (windows_of(tumbling(10)).text(), NamedForm("sums")),
        (windows_of(tumbling(10)).text(), ANY_FORM),
    ],
)
def test_states_of_another_form_are_refused(kept: str, form: Form) -> None:
    commit = replace(COMMIT, operators=(replace(COUNT, form=kept),))
    [descriptor] = descriptors("count")
    with pytest.raises(StoreError, match=r"'count' in the store are of .*, but the program has .*version=2 and"):
        inherited(commit, [replace(descriptor, terms=Terms(form=form))], (), ())
