"""Dicts, objects and lists of equal shape travel as columns, with the same result as one by one."""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.timely.communication.codec import lowering, references, tags, user_types
from megaflow.timely.communication.codec.class_names import ClassName, classes_in
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.codec.lowering import lower, lower_shared
from tests.simulation import object_graphs
from tests.simulation.object_graphs import described
from tests.timely.communication.codec.registrations import undone
from tests.timely.communication.codec.test_round_trip import (
    Both,
    Loose,
    Name,
    Pairs,
    Plain,
    Point,
    Slotted,
    Tight,
    Tighter,
    columnar,
    hashable_scalars,
    same,
    texts,
)

fields = st.one_of(
    st.integers(-9, 2**40), st.floats(), texts, st.none(), st.booleans(), hashable_scalars, columnar,
    st.lists(st.integers(0, 9), max_size=3), st.dictionaries(texts, st.integers(), max_size=2),
)  # fmt: skip
SHAPES: list[Callable[[Any, Any], Any]] = [
    lambda a, b: {"a": a, "b": b},
    lambda a, b: {"b": b, "a": a},
    lambda a, b: {"a": a, Name.ADA: b},
    lambda a, b: {"a": a, "ada": b},
    lambda a, b: {"a": a},
    lambda a, b: [a, b],
    lambda a, b: [a],
    lambda a, b: (a, b),
    lambda a, b: {"outer": {"a": a, "b": b}},
    lambda a, b: {"more": [{"a": a}, {"a": b}]},
    Loose, Tight, Point,
    lambda a, b: Tighter(a),
    lambda a, b: Plain(a),
    lambda a, b: Slotted(a),
    lambda a, b: Both(a, b=b),
    lambda a, b: Both(a, b=b, c=a),
]  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """Draw values of nearly one shape, with fields of nearly one kind."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2))
    kinds = [draw(st.sampled_from([st.integers(-9, 9), texts, st.floats(), fields])) for _ in range(2)]
    count = draw(st.integers(4, 9))
    odd = draw(st.integers(0, 3 * count))  # the place of a value that may have the second shape
    return [shapes[-1 if at == odd else 0](draw(kinds[0]), draw(kinds[1])) for at in range(count)]


@given(batches(), st.booleans())
def test_a_batch_arrives_as_it_does_one_by_one(batch: list[Any], shared: bool) -> None:
    arrived = decode(encode(batch, shared=shared), shared=shared)
    assert same(arrived, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "COLUMN_LENGTH_MIN", 1 << 60)
        assert same(decode(encode(batch, shared=shared), shared=shared), arrived)


def test_what_is_referred_to_twice_stays_one_and_what_is_equal_stays_two() -> None:
    for seed in range(600):
        object_graphs.run(seed)


def test_rows_that_refer_to_one_another_stay_one() -> None:
    chain: list[Any] = [{"next": "end"}]
    while len(chain) < 40:
        chain.append({"next": chain[-1]})
    for batch in (chain, chain[::-1], [*chain, *chain]):
        arrived = decode(encode(batch, shared=True), shared=True)
        assert described(arrived) == described(batch)


def test_more_rows_are_referred_to_again_than_an_array_holds() -> None:
    rows = [{"n": n} for n in range(tags.ARRAY_LENGTH_MAX)]
    first, again = decode(encode([rows, rows[::-1]], shared=True), shared=True)
    assert first == rows and all(left is right for left, right in zip(first, reversed(again)))


class Filled:
    """Has slots and also a `__dict__`."""

    __slots__ = ("__dict__", "a")

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b


class Hashed:
    """Hashes its content, so a half-built object has no hash."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and other.value == self.value


def test_no_row_is_hashed_before_it_is_whole() -> None:
    rows = [Hashed(0)]
    for _ in range(5):
        rows.append(Hashed(frozenset(rows)))
    for batch in (rows, rows[::-1], [{row: 1} for row in rows]):
        assert decode(encode(batch, shared=True), shared=True) == batch


def calls_of_lower(value: Any) -> int:
    calls = 0

    def counted(value: Any, depth: int = 0) -> Any:
        nonlocal calls
        calls += 1
        return lower(value, depth)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "lower", counted)
        encode(value)
        encode(value, shared=True)
    return calls


@pytest.mark.parametrize("shape", [SHAPES[0], *SHAPES[5:15], Filled])
def test_no_python_code_runs_per_element_of_a_batch(shape: Callable[[Any, Any], Any]) -> None:
    assert calls_of_lower([("key", shape(number, "b")) for number in range(700)]) < 10
    assert calls_of_lower([[f"key{number}" for number in range(700)], [shape(n, "b") for n in range(700)]]) < 10


def test_what_differs_in_shape_is_lowered_once() -> None:
    rows: list[Any] = [{"a": number, "b": [number]} for number in range(100)]
    for odd in ({"b": 1, "a": 2}, {"a": 1}, {"a": 1, "b": 2, "c": 3}, {}, {"a": 1, 2: 3}, [1], None):
        for place in (0, 1, 50, 99):
            assert calls_of_lower([*rows[:place], odd, *rows[place + 1 :]]) <= 2 * 201
    nested: Any = 1
    for depth in range(40):
        nested = [[nested], ["a"], [2.5], [None], [b""]] if depth % 2 else [{"a": nested}, {"b": 1}, {"c": 2}, {"d": 3}]
    assert calls_of_lower(nested) < 4000


def test_columns_take_fewer_bytes_than_one_by_one() -> None:
    batch = [(f"key{n}", {"count": n, "total": n / 2, "name": f"w{n}"}) for n in range(1000)]
    assert len(encode(batch)) < 26 * len(batch)
    assert len(encode([("key", [1] * 20)] * 1000)) < 90 * len(batch)


@pytest.mark.parametrize("shared", [False, True])
def test_what_contains_itself_many_times_is_refused(shared: bool) -> None:
    cyclic: list[Any] = []
    cyclic += [cyclic] * 4096
    dicts: list[Any] = [{"to": None, "all": None} for _ in range(50)]
    for number, each in enumerate(dicts):
        each["to"], each["all"] = dicts[number - 1], dicts
    loose = [Loose(None) for _ in range(50)]
    for number, one in enumerate(loose):
        one.a, one.b = loose[number - 1], [loose] * 5
    for value in (cyclic, dicts, loose):
        with pytest.raises(CannotTravel, match="contains itself"):
            encode(value, shared=shared)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Loose(1, open), ["field 'b'", "builtin_function_or_method", "register(Loose"]),
        (Plain(Plain(open)), ["field 'value'", "Plain"]),
        ({"a": open}, ["builtin_function_or_method"]),
        (Pairs(a=1), ["Pairs"]),
        (Point(open), ["builtin_function_or_method"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_named_in_a_batch_as_it_is_alone(value: Any, words: list[str]) -> None:
    messages = set()
    for wrapped in (value, [value] * 3, [value] * 4, [type(value)(1) if type(value) is Point else value] + [value] * 4):
        for shared in (False, True):
            with pytest.raises(CannotTravel) as caught:
                encode(wrapped, shared=shared)
            messages.add(str(caught.value))
    [message] = messages
    assert all(word in message for word in words)


def test_a_batch_in_which_one_lacks_a_field_cannot_travel() -> None:
    batch = [Loose(number) for number in range(9)]
    del batch[4].b
    with pytest.raises(CannotTravel, match="no value for b"):
        encode(batch)
    batch = [Loose(number) for number in range(9)]
    for each in batch:
        del each.b
    with pytest.raises(CannotTravel, match="no value for b"):
        encode(batch)


@dataclasses.dataclass
class Watched:
    """Runs code when `doubled`, which is no field, is set."""

    value: int

    @property
    def doubled(self) -> int:
        return self.value * 2

    @doubled.setter
    def doubled(self, value: int) -> None:
        raise AssertionError("the decoder ran a setter")

    def __setattr__(self, name: str, value: object) -> None:
        if value == 99:
            raise AssertionError("the decoder ran __setattr__")
        object.__setattr__(self, name, value)


def test_no_code_of_a_class_runs_for_a_batch() -> None:
    shape = [tags.DATACLASS, __name__, "Watched"]
    columns = [[tags.LIST, [99, 99, 3]], [tags.LIST, [4, 5, 6]]]
    arrived = decode(msgpack.packb([tags.ROWS, [*shape, ["value", "other"]], columns]))
    assert [vars(each) for each in arrived] == [{"value": a, "other": b} for a, b in ((99, 4), (99, 5), (3, 6))]
    arrived = decode(msgpack.packb([tags.ROWS, [*shape, ["value", "doubled"]], columns]))
    assert [each.doubled for each in arrived] == [198, 198, 6]
    for name in ("kind", "__init__", "__class__", "_Slotted__private__"):
        shape = [tags.OBJECT, Both.__module__, "Both", ["_Slotted__private", name]]
        if name in ("__init__", "__class__"):
            with pytest.raises(ProtocolError, match="arrived with a field"):
                decode(msgpack.packb([tags.ROWS, shape, columns]))
        else:
            assert [vars(each) for each in decode(msgpack.packb([tags.ROWS, shape, columns]))] == [
                {name: 4}, {name: 5}, {name: 6}]  # fmt: skip


def test_rows_that_are_referred_to_are_numbered_only_where_that_is_asked_for() -> None:
    rows = [{"n": n} for n in range(5)]
    for value in ([rows, rows[3]], [rows, rows], [[[r] for r in rows], rows[2]]):
        encoded = encode(value, shared=True)
        with pytest.raises(ProtocolError, match="two references to one object"):
            decode(encoded)
        assert decode(encoded, shared=True) == value == decode(encode(value))
    made = [tags.ROWS, [tags.LIST], [[tags.LIST, [1, 2]]]]
    for anchors in ([0], [2, 0], ["a", 0], [0, []], 5, "a", [0, 0, 1]):
        with pytest.raises(ProtocolError):
            decode(msgpack.packb([*made, anchors]), shared=True)


def test_the_classes_of_a_batch_are_known_before_it_moves() -> None:
    for make in (Loose, Tight, Point, Plain):
        for wrap in (lambda v: v, lambda v: [v, v], lambda v: {"a": v}, lambda v: ("k", {"a": [1], "b": {"c": v}})):
            met: set[ClassName] = set()
            classes_in(lower_shared([wrap(make(number)) for number in range(9)]), met)
            assert [(module, name) for _, module, name in met] == [(make.__module__, make.__name__)]


def test_a_class_that_is_registered_after_it_has_travelled_travels_as_registered() -> None:
    batch = [Plain(number) for number in range(5)]
    assert same(decode(encode(batch)), batch)
    with undone():
        lowering.lower_as(Plain, "plain", lambda plain: plain.value)
        user_types.decoders["plain"] = lambda value: ("registered", value)
        assert decode(encode(batch)) == [("registered", number) for number in range(5)]
    assert same(decode(encode(batch)), batch)


def test_a_value_that_refers_to_nothing_twice_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references.Met, "__init__", _only_with_rows)
    encode([("key", {"a": [n], "b": Loose(n), "c": [2**70], "d": [(n,), ()]}) for n in range(99)], shared=True)


def _only_with_rows(self: references.Met) -> None:
    self.rows, self.nodes, self._count = True, {}, 0  # type: ignore[misc]
