"""`megaflow.quick_dataclass` compared with Python's own decorator: objects of both behave the same."""

import copy
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, astuple, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from megaflow.megaphone.base.bins import stable_hash
from megaflow.quick_dataclass import dataclass as quick
from megaflow.timely.log import OperatorShut


def bodies() -> list[type]:
    """Return classes to decorate, new ones each time."""

    class Empty:
        pass

    class One:
        value: Any

    class Two:
        number: int
        name: str

    class Defaults:
        number: int
        name: str = "none"
        parts: dict[str, int] = field(default_factory=dict)
        secret: bytes = field(default=b"", repr=False)

        @property
        def double(self) -> int:
            return 2 * self.number

    class Named:
        number: int = 1
        made: list[int] = field(init=False, default_factory=list)
        told: str = field(init=False, default="no")
        hidden: int = field(default=3, compare=False)
        name: str = field(default="none", kw_only=True)

    class Checked:
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError(self.number)

    return [Empty, One, Two, Defaults, Named, Checked]


ARGUMENTS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((-1,), {}),
    (([],), {}),
    ((1, "a"), {}),
    ((1,), {"name": "a"}),
    ((1, "a", {"x": 1}, b"key"), {}),
    ((), {"number": 2}),
    ((), {"wrong": 2}),
    ((1, 2, 3, 4, 5), {}),
]
DONE: list[Callable[[Any], Any]] = [
    repr,
    hash,
    astuple,
    lambda made: made == copy.copy(made),
    lambda made: made == copy.deepcopy(made),
    lambda made: made == astuple(made),
    lambda made: made != replace(made),
    lambda made: replace(made, number=7),
    lambda made: [setattr(made, each.name, 3) for each in fields(made)],
    lambda made: [delattr(made, each.name) for each in fields(made) if each.init],
    lambda made: [each.name for each in fields(made)],
    lambda made: is_dataclass(made),
    lambda made: type(made).__match_args__,
    lambda made: made.double,
    lambda made: hasattr(made, "__dict__"),
    lambda made: {made: 1}[replace(made)],
]


def outcome(do: Callable[..., Any], *given: Any, **named: Any) -> object:
    """Return the result or error as a text, because the two classes have one name but are not equal."""
    try:
        return repr(do(*given, **named))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("number", range(len(bodies())), ids=[each.__name__ for each in bodies()])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("slots", [True, False])
@pytest.mark.parametrize("more", [{}, {"eq": False, "repr": False}], ids=str)
def test_both_decorators_make_the_same(number: int, frozen: bool, slots: bool, more: dict[str, bool]) -> None:
    chosen = {"frozen": frozen, "slots": slots} | more
    ours, theirs = (decorate(**chosen)(bodies()[number]) for decorate in (quick, dataclass))
    by_identity = more == {"eq": False, "repr": False}
    made = 0
    for given, named in ARGUMENTS:
        expected = outcome(theirs, *given, **named)
        assert is_shown(outcome(ours, *given, **named)) == is_shown(expected)
        if isinstance(expected, str):
            made += 1
            for do in DONE[by_identity:]:  # repr comes first
                one, other = ours(*given, **named), theirs(*given, **named)
                assert is_shown(outcome(do, one)) == is_shown(outcome(do, other))
    assert made


def is_shown(outcome: object) -> str:
    """Return the outcome without addresses, which appear in Python's repr and hashes of objects."""
    return re.sub("0x[0-9a-f]+|^-?[0-9]{9,}$", "…", str(outcome))


def test_equal_values_of_two_classes_are_not_equal() -> None:
    one, other = (quick(frozen=True, slots=True)(bodies()[2]) for _ in range(2))
    assert one(1, "a") == one(1, "a") != one(1, "b")
    assert one(1, "a") != other(1, "a")


def test_a_field_cannot_be_set() -> None:
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'number'"):
        quick(frozen=True, slots=True)(bodies()[2])(1, "a").number = 2


def test_a_method_that_would_be_lost_is_refused() -> None:
    class Shown:
        number: int

        def __repr__(self) -> str:
            return "shown"

    with pytest.raises(AssertionError, match="Shown has its own __repr__"):
        quick(frozen=True, slots=True)(Shown)


@dataclass(frozen=True)
class NamedShut(OperatorShut):
    """A program may derive a frozen dataclass from one of megaflow's."""

    name: str


def test_an_object_is_pickled_derived_from_and_a_key() -> None:
    shut = OperatorShut(0, 60)
    assert pickle.loads(pickle.dumps(shut)) == shut
    assert stable_hash(shut) == stable_hash(OperatorShut(0, 60)) != stable_hash(OperatorShut(0, 61))
    named = NamedShut(0, 60, "first")
    assert named == NamedShut(0, 60, "first") != NamedShut(0, 60, "second")
    assert (named.operator, named.name) == (60, "first")
    with pytest.raises(FrozenInstanceError):
        named.name = "other"  # type: ignore[misc]


@quick(slots=True)
class Request:
    number: int
    done: int = field(default=0, kw_only=True)


@quick(slots=True)
class Removal(Request):
    workers: tuple[int, ...]


def test_a_class_has_the_fields_of_its_base_class() -> None:
    removal = Removal(1, (2, 3), done=4)
    assert repr(removal) == "Removal(number=1, done=4, workers=(2, 3))"
    assert removal == replace(removal, done=4) != replace(removal, workers=())
    assert removal != Request(1, done=4)
    assert pickle.loads(pickle.dumps(removal)) == removal
    with pytest.raises(TypeError, match="unhashable"):
        hash(removal)


@quick(frozen=True, slots=True)
class OfChange:
    change: int


@quick(frozen=True, slots=True)
class Abort(OfChange):
    reason: str


@quick(frozen=True, slots=True)
class Settled(OfChange):
    pass


def test_a_frozen_class_inherits_from_a_frozen_class() -> None:
    abort = Abort(3, "late")
    assert repr(abort) == "Abort(change=3, reason='late')"
    assert abort == replace(abort, change=3) == pickle.loads(pickle.dumps(abort)) != replace(abort, reason="")
    assert {abort: 1}[Abort(3, "late")] == 1
    assert Settled(3) == Settled(3) != OfChange(3)
    with pytest.raises(FrozenInstanceError):
        abort.change = 4  # type: ignore[misc]
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        quick(slots=True)(type("Open", (OfChange,), {}))


def test_records_are_compiled_when_the_first_object_is_made() -> None:
    """Python's own decorator compiles six methods of each class when a module is imported."""
    program = """
import builtins
compiled, run = [], exec
def counted(source, *rest):
    compiled.append(source)
    run(source, *rest)
builtins.exec = counted
from megaflow.control.messages import CommitBatch, Split
compiled.clear()
Split(1, "path", 0, 10), Split(2, "path", 10, 20)
print(len(compiled))
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["1"]
