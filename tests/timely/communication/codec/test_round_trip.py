"""Values that can travel arrive equal in value and type; others raise a clear error; wrong bytes are refused."""

import collections
import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import pathlib
import random
import re
import string
import struct
import sys
import threading
import tracemalloc
import types
import zoneinfo
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, ProtocolError, UsageError
from megaflow.timely.communication.codec import lowering, tags, user_types
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode, register
from megaflow.timely.order import Product
from tests.examples import many
from tests.timely.communication.codec.registrations import undone


class Colour(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796 an alias
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = 1
    WRITE = 2
    FAR = 1 << 80


class Name(str, enum.Enum):  # noqa: UP042 the older form
    ADA = "ada"


class Point(NamedTuple):
    x: Any
    y: Any = 0


@dataclasses.dataclass
class Loose:
    a: Any
    b: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Tight:
    a: Any
    b: Any = None


@dataclasses.dataclass(slots=True)
class Tighter(Tight.__mro__[1]):  # type: ignore[misc]
    __private: int


class Outer:
    @dataclasses.dataclass
    class Inner:
        value: int


@dataclasses.dataclass
class Noisy:
    """Reports when its code runs."""

    value: int
    made: dataclasses.InitVar[int] = 0

    def __post_init__(self, made: int) -> None:
        self.doubled = self.value * 2
        if made == 99:
            raise AssertionError("the decoder ran __post_init__")


@dataclasses.dataclass
class Stack(list):  # type: ignore[type-arg]
    name: str = ""


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value


class Slotted:
    __slots__ = ("__private", "empty")

    def __init__(self, value: object) -> None:
        self.__private = value


class Both(Slotted):
    """Inherits slots and has a `__dict__`."""

    kind = "both"

    def __init__(self, value: object, **more: object) -> None:
        super().__init__(value)
        vars(self).update(more)


class Odd:
    def __init__(self, value: object) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        raise AssertionError("ran")


class Finalized:
    def __del__(self) -> None:
        pass


@dataclasses.dataclass
class Guarded(Finalized):
    value: int = 0


class Words(str):
    pass


class Pairs(dict):  # type: ignore[type-arg]
    pass


class Subtuple(tuple):  # type: ignore[type-arg]
    pass


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal in value and type, all the way down; the slow and obvious way."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, decimal.Decimal):
        return str(a) == str(b)
    if isinstance(a, (list, tuple, collections.deque)):
        if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
            return False
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        if isinstance(a, collections.defaultdict) and a.default_factory is not b.default_factory:
            return False
        return same(list(a.items()), list(b.items()))
    if isinstance(a, (set, frozenset)):
        return same_sets(list(a), list(b))
    if isinstance(a, (datetime.datetime, datetime.time)):
        return repr(a) == repr(b) and a.fold == b.fold
    if isinstance(a, (Plain, Slotted)):
        return same(list(getattr(a, "__dict__", {}).items()), list(getattr(b, "__dict__", {}).items())) and all(
            same(getattr(a, name, "nothing"), getattr(b, name, "nothing")) for name in ("_Slotted__private", "empty")
        )
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    return bool(a == b)


def same_sets(a: list[Any], b: list[Any]) -> bool:
    for left in a:
        found = next((i for i, right in enumerate(b) if same(left, right)), None)
        if found is None:
            return False
        del b[found]
    return not b


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=8)  # lone surrogates and NUL too
zones = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.sampled_from([zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("Europe/Zurich")]),
    st.builds(datetime.timezone, st.timedeltas(-datetime.timedelta(hours=23), datetime.timedelta(hours=23))),
    st.builds(datetime.timezone, st.just(datetime.timedelta(hours=2)), texts),
)
hashable_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.integers(),
    st.sampled_from([2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**100]),
    st.floats(allow_nan=True),
    st.sampled_from([0.0, -0.0, math.inf, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0]]),
    texts,
    st.binary(max_size=8),
    st.complex_numbers(allow_nan=True),
    st.decimals(allow_nan=True).filter(lambda d: not d.is_snan()),
    st.uuids(),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones, allow_imaginary=True),
    st.timedeltas(),
    st.builds(range, st.integers(), st.integers(), st.integers().filter(bool)),
    st.builds(pathlib.PurePosixPath, texts),
    st.builds(pathlib.PureWindowsPath, texts),
    st.builds(pathlib.Path, texts),
    st.builds(re.compile, st.sampled_from(["a|b", "(?i)x+", "", "\ud800"]), st.sampled_from([0, re.I, re.A | re.M])),
    st.builds(re.compile, st.sampled_from([rb"\d+", b"\xff"]), st.sampled_from([0, re.L, re.S])),
    st.sampled_from([*Colour, *Level, *Mode, *Name, Mode.READ | Mode.FAR, Mode(0), Product(Product(1, 2), 3)]),
)
hashables = st.recursive(
    hashable_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(tuple),
        st.frozensets(inner, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Tight, inner, inner),
    ),
    max_leaves=6,
)
columnar = st.one_of(
    st.lists(st.text(max_size=3), max_size=9),
    st.lists(st.integers(-(2**65), 2**65), max_size=9),
    st.lists(st.integers(-(2**31), 2**31), max_size=9),
    st.lists(st.floats(), max_size=9),
    st.lists(st.booleans() | st.integers(0, 1), max_size=9),
    st.lists(st.tuples(texts, st.integers()), max_size=9),
    st.lists(st.tuples(st.tuples(st.text(max_size=2), hashables), st.floats() | st.integers()), max_size=9),
    st.lists(st.tuples(st.tuples(st.tuples(st.tuples(st.tuples(st.integers()))))), max_size=9),
    st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), max_size=9),
    st.lists(st.fixed_dictionaries({"a": st.integers(), "b": hashables}, optional={"c": texts}), max_size=9),
    st.lists(st.builds(Loose, st.integers(0, 9), texts) | st.builds(Tight, texts, hashables), max_size=6),
    st.lists(st.builds(Both, st.integers(), a=texts, b=st.floats()), max_size=6),
    st.lists(st.builds(Point, st.integers(), hashables), max_size=6),
    st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=9),
    st.lists(st.lists(st.tuples(texts, st.integers(0, 9)), max_size=3), max_size=9),
)
values = st.recursive(
    st.one_of(hashable_scalars, columnar, st.binary(max_size=5).map(bytearray)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=6),
        st.lists(inner, max_size=6).map(tuple),
        st.dictionaries(hashables, inner, max_size=5),
        st.sets(hashables, max_size=5),
        st.frozensets(hashables, max_size=5),
        st.dictionaries(hashables, inner, max_size=3).map(collections.Counter),
        st.builds(
            collections.defaultdict, st.sampled_from([None, int, list, set, dict]), st.dictionaries(hashables, inner)
        ),
        st.builds(collections.deque, st.lists(inner, max_size=4), st.none() | st.integers(4, 9)),
        st.builds(Point, inner, inner),
        st.builds(Loose, inner, inner),
        st.builds(Tight, inner, inner),
        st.builds(Plain, inner),
        st.builds(Slotted, inner),
        st.builds(Both, inner, a=inner, b=inner),
        st.dictionaries(hashables, inner, max_size=3).map(collections.OrderedDict),
    ),
    max_leaves=12,
)


@settings(max_examples=many(400), deadline=None)
@given(values)
@example([True, 1, 1.0])
@example([("a", 1), ("b", True), ("c", 2), ("d", 3)])
@example([(), (), (), ()])
@example(["", "", "", ""])
@example(["\0", "\0\0", "", "a"])
@example(["\ud800", "\udc00", "a", "\ud800\udc00"])
@example(decimal.Decimal("sNaN123"))
def test_what_arrives_equals_what_was_sent_in_value_and_type(value: Any) -> None:
    assert same(decode(encode(value)), value)


def test_a_buffer_of_any_kind_is_decoded() -> None:
    packed = encode((3, [("to", 1)] * 10))
    assert decode(bytearray(packed)) == decode(memoryview(packed)) == (3, [("to", 1)] * 10)


def test_lists_longer_than_one_array_arrive_whole() -> None:
    for length in (tags.ARRAY_LENGTH_MAX, tags.ARRAY_LENGTH_MAX + 1, 3 * tags.ARRAY_LENGTH_MAX):
        for value in (list(range(length)), [(str(i), i) for i in range(length)], [None, ()] * length):
            assert decode(encode(value)) == value
        assert decode(encode({i: str(i) for i in range(length)})) == {i: str(i) for i in range(length)}


def test_the_parts_of_a_very_long_list_are_nested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tags, "ARRAY_LENGTH_MAX", 10)
    value = [None, 1, "a", (2, [3])] * 300
    assert decode(encode(value)) == value


def test_the_order_of_a_dict_is_kept() -> None:
    value = dict.fromkeys((3, "a", (1,), 2.5, None))
    assert list(decode(encode(value))) == list(value)


def test_what_a_dataclass_stores_beside_its_fields_arrives_and_no_code_of_it_runs() -> None:
    noisy = Noisy(4)
    noisy.made = 99
    arrived = decode(encode(noisy))
    assert type(arrived) is Noisy and vars(arrived) == vars(noisy) and arrived.doubled == 8


def test_private_slots_and_nested_classes_travel() -> None:
    assert decode(encode(Tighter(3))) == Tighter(3)
    assert decode(encode(Outer.Inner(5))) == Outer.Inner(5)


def test_a_product_is_an_ordinary_dataclass() -> None:
    assert decode(encode([Product(1, 2), Product(Product(1, 2), 3)])) == [Product(1, 2), Product(Product(1, 2), 3)]


def test_types_of_msgpack_itself_do_not_slip_through() -> None:
    value = [msgpack.ExtType(1, b"a"), msgpack.ExtType(5, bytes(4))]  # a NamedTuple, as it happens
    assert same(decode(encode(value)), value)


def test_an_enum_alias_arrives_as_the_member() -> None:
    assert decode(encode([Colour.CRIMSON, Level.LOW, Name.ADA])) == [Colour.RED, Level.LOW, Name.ADA]
    assert decode(encode(Name.ADA)) is Name.ADA


def test_a_list_of_tuples_travels_as_columns() -> None:
    packed = encode((3, [("word", 7)] * 700))
    assert len(packed) < 700 * (4 + 1 + 4) + 40
    calls = []
    lower = lowering.lower
    try:
        lowering.lower = lambda value, depth=0: (calls.append(value), lower(value, depth))[1]
        encode((3, [("word", 7)] * 700))
    finally:
        lowering.lower = lower
    assert len(calls) < 5


def local_class() -> Any:
    @dataclasses.dataclass
    class Local:
        value: int = 0

    return Local()


cyclic: list[Any] = []
cyclic.append(cyclic)
cyclic_dict: dict[str, Any] = {}
cyclic_dict["self"] = [cyclic_dict] * 5
deep: Any = None
for _ in range(tags.DEPTH_MAX + 2):
    deep = (deep,)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Odd(1), ["Odd", "__reduce__", "dataclass", "register(Odd, encode, decode)"]),
        (Finalized(), ["Finalized", "__del__", "register(Finalized)"]),
        (Guarded(), ["Guarded", "__del__"]),
        (decimal.Context(), ["Context", "not in a module of the program", "register(Context, encode, decode)"]),
        (string.Template("a"), ["Template", "not in a module of the program", "register(Template)"]),
        (Plain(threading.Lock()), ["_thread.lock", "field 'value'", "register(Plain, encode, decode)"]),
        (Plain(Plain(open)), ["builtin_function_or_method", "Plain", "field 'value'"]),
        (Words("a"), ["Words", "register"]),
        ([Words("a")] * 9, ["Words"]),
        (["a", "b", "c", Words("a")], ["Words"]),
        ([("a", 1)] * 9 + [Subtuple(("a", 1))], ["Subtuple"]),
        (Pairs(a=1), ["Pairs"]),
        (Stack("s"), ["Stack"]),
        (memoryview(b"a"), ["memoryview"]),
        (msgpack.Timestamp(1), ["Timestamp"]),
        (object(), ["object"]),
        (len, ["builtin"]),
        (lambda: 1, ["function"]),
        (int, ["type"]),
        (local_class(), ["Local", "top level"]),
        (collections.defaultdict(lambda: 0), ["defaultdict", "factory"]),
        (re.compile("a" * 1001), ["regular expression", "1001"]),
        (iter([]), ["list_iterator"]),
        (cyclic, ["contains itself"]),
        (cyclic_dict, ["contains itself"]),
        (deep, ["deeper than 100"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_named_with_the_remedy(value: Any, words: list[str]) -> None:
    for wrapped in (value, [value], {"a": (1, value)}):
        with pytest.raises(CannotTravel) as caught:
            encode(wrapped)
        for word in words:
            assert word in str(caught.value)


def test_a_dataclass_without_one_of_its_values_cannot_travel() -> None:
    loose = Loose(1)
    del loose.a
    with pytest.raises(CannotTravel, match="no value for a"):
        encode(loose)


@pytest.mark.parametrize(
    "make", [lambda v: [v], lambda v: (v, 1), lambda v: {1: v}, lambda v: Tight(v), lambda v: collections.deque([v])]
)
def test_nesting_up_to_the_limit_arrives_and_beyond_it_is_refused(make: Any) -> None:
    value: Any = 1
    depth = 0
    with pytest.raises(CannotTravel, match="deeper"):
        while True:
            assert decode(encode(value)) == value
            value = make(value)
            depth += 1
    assert tags.DEPTH_MAX <= depth <= tags.DEPTH_MAX + 2


def test_columns_within_columns_arrive_however_deep() -> None:
    value: Any = 1
    for _ in range(7):
        value = [(value, "a"), (value, "b"), (value, "c"), (value, "d")]
        assert decode(encode(value)) == value
    value = tuple(range(4))
    for _ in range(20):
        value = (value,)
    assert decode(encode([value] * 9)) == [value] * 9


def test_a_registered_type_travels_by_the_users_functions() -> None:
    with undone():
        register(Plain, lambda plain: (plain.value, [plain.value] * 5), lambda parts: Plain(parts[0]))
        arrived = decode(encode([Plain(3), (Plain(4),)]))
        assert type(arrived[0]) is Plain and arrived[0].value == 3 and arrived[1][0].value == 4
        packed = encode(Plain(1))
    with pytest.raises(ProtocolError, match="register"):
        decode(packed)


def test_a_type_that_travels_already_cannot_be_registered() -> None:
    for kind in (int, str, dict, datetime.datetime):
        with pytest.raises(UsageError, match="already"):
            register(kind, repr, repr)  # type: ignore[arg-type]


# Hostile bytes


@settings(max_examples=many(500), deadline=None)
@given(st.binary(max_size=60))
def test_random_bytes_are_a_value_or_a_protocol_error(data: bytes) -> None:
    decode_or_refuse(data)


@settings(max_examples=many(500), deadline=None)
@given(values, st.randoms(use_true_random=False))
def test_changed_encodings_are_a_value_or_a_protocol_error(value: Any, rng: random.Random) -> None:
    data = bytearray(encode(value))
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(data) + 1)
        match rng.randrange(3):
            case 0:
                data[place : place + rng.randrange(4)] = b""
            case 1:
                data[place:place] = rng.randbytes(rng.randrange(4))
            case _:
                data[place : place + 1] = rng.randbytes(1)
    decode_or_refuse(bytes(data))


trees = st.recursive(
    st.none()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=9)
    | st.sampled_from([__name__, "Loose", "Point", "Colour", "Plain", "Both", "PosixPath", "<f8"])
    | st.sampled_from(["os", "system", "builtins", "list", "a", "b"]),
    lambda inner: (
        st.builds(lambda tag, rest: [tag, *rest], st.integers(0, 45), st.lists(inner, max_size=6))
        | st.lists(inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=many(800), deadline=None)
@given(trees)
def test_well_packed_trees_without_sense_are_a_value_or_a_protocol_error(tree: Any) -> None:
    decode_or_refuse(msgpack.packb(tree, default=lambda value: 0))


def decode_or_refuse(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decode(data)


@pytest.mark.parametrize(
    "tree",
    [
        [tags.DATACLASS, "subprocess", "Popen", ["args"], [tags.LIST, ["true"]]],
        [tags.DATACLASS, "os", "system", [], [tags.LIST, []]],
        [tags.NAMED_TUPLE, "builtins", "tuple", [tags.LIST, []]],
        [tags.ENUM, "builtins", "dict", "pop"],
        [tags.ENUM, "antigravity", "A", "B"],
        [tags.FLAG, __name__, "Colour", 1],
        [tags.NAMED_TUPLE, __name__, "Point", [tags.LIST, [1]]],
        [tags.DATACLASS, __name__, "Loose", ["a"], [tags.LIST, [1]]],
        [tags.DATACLASS, __name__, "Tight", ["a", "b", "c"], [tags.LIST, [1, 2, 3]]],
        [tags.DATACLASS, __name__, "Stack", ["name"], [tags.LIST, ["x"]]],
        [tags.BYTEARRAY, 2**40],
        [tags.COLUMNS, [[tags.LIST, [1, 2]], [tags.LIST, [1]]]],
        [tags.DICT, [tags.LIST, [1, 2]], [tags.LIST, [1]]],
        [tags.SET, [tags.LIST, [[tags.LIST, []]]]],
        [tags.ZONE_INFO, "../../etc/passwd"],
        [tags.TIME, 25, 0, 0, 0, 0, None],
        [tags.PATTERN, "a" * 1001, 0],
        [tags.PATTERN, "[\0-\uffff]" * 33, int(re.I)],
        [tags.PATTERN, "a", int(re.DEBUG)],
        [tags.PATTERN, "(", 0],
        [tags.PATTERN, [tags.LIST, []], 0],
        [tags.PATH, "PosixPath", 1],
        [tags.PATH, "Path", "a"],
        [tags.RANGE, [tags.LIST, [1, 2]]],
        [tags.RANGE, [tags.LIST, [1.0, 2, 3]]],
        [tags.RANGE, [tags.LIST, [1, 2, [tags.NAMED_TUPLE, __name__, "Point", [tags.LIST, [1, 2]]]]]],
        [tags.ORDERED_DICT, [tags.LIST, [1, 2]], [tags.LIST, [1]]],
        [tags.ROWS, [tags.DICT, ["a", "b"]], [[tags.LIST, [1, 2]], [tags.LIST, [1]]]],
        [tags.ROWS, [tags.DICT, ["a", "a"]], [[tags.LIST, [1]], [tags.LIST, [1]]]],
        [tags.ROWS, [tags.DICT, ["a"]], [[tags.LIST, [1]], [tags.LIST, [1]]]],
        [tags.ROWS, [tags.DICT, [1]], [[tags.LIST, [1]]]],
        [tags.ROWS, [tags.DICT, []], []],
        [tags.ROWS, [tags.SET], [[tags.LIST, [1]]]],
        [tags.ROWS, [tags.LIST], [[tags.LIST, [1, 2]], [tags.LIST, [1]]]],
        [tags.ROWS, [tags.LIST], [[tags.LIST, [1]]], [0, 0]],
        [tags.ROWS, [tags.NAMED_TUPLE, __name__, "Point"], [[tags.LIST, [1]]]],
        [tags.ROWS, [tags.NAMED_TUPLE, "builtins", "tuple"], [[tags.LIST, [1]]]],
        [tags.ROWS, [tags.DATACLASS, "subprocess", "Popen", ["args"]], [[tags.LIST, ["true"]]]],
        [tags.ROWS, [tags.DATACLASS, __name__, "Loose", ["a"]], [[tags.LIST, [1]]]],
        [tags.ROWS, [tags.DATACLASS, __name__, "Loose", ["a", "b"]], [[tags.LIST, [1, 2]], [tags.LIST, [1]]]],
        [tags.ROWS, [tags.DATACLASS, __name__, "Loose", ["a", "b", 1]], [[tags.LIST, [1]]] * 3],
        [tags.ROWS, [tags.DATACLASS, __name__, "Tight", ["a", "b", "c"]], [[tags.LIST, [1]]] * 3],
        [tags.LISTS, [tags.LIST, [2, -1]], [tags.LIST, [1]]],
        [tags.LISTS, [tags.LIST, [2]], [tags.LIST, [1]]],
        [tags.LISTS, [tags.LIST, []], [tags.LIST, [1]]],
        [tags.LISTS, [tags.LIST, [True]], [tags.LIST, [1]]],
        [tags.LISTS, [tags.LIST, [[tags.LIST, []]]], [tags.LIST, []]],
        [tags.LISTS, [tags.LIST, [1]], [tags.LIST, [1]], [0, 0]],
        [tags.LISTS, [tags.LIST, [2**40]], [tags.LIST, [1]]],
        [99],
        [],
        {},
        msgpack.ExtType(1, b""),
    ],
    ids=str,
)
def test_a_tree_that_encode_does_not_make_is_refused(tree: Any) -> None:
    imported = set(sys.modules)
    with pytest.raises(ProtocolError):
        decode(msgpack.packb(tree))
    assert set(sys.modules) == imported


def test_trailing_and_missing_bytes_are_refused() -> None:
    packed = encode([("a", 1)] * 5)
    for wrong in (packed + b"\0", packed[:-1], b""):
        with pytest.raises(ProtocolError):
            decode(wrong)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff" * 2000,
        b"\xdd\x00\x00\xff\xff" * 2000 + bytes(65536),
        b"\xdc\x10\x00" * 1100 + bytes(65536),
        b"\xc6\xff\xff\xff\xff",
        b"\x92\x01\x91" * 300,
        msgpack.packb([tags.STRS, bytes(100_000)]),
    ],
)
def test_hostile_lengths_claim_bounded_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        decode_or_refuse(data)
        assert tracemalloc.get_traced_memory()[1] < 48 * 2**20
    finally:
        tracemalloc.stop()


def test_a_class_is_found_without_running_the_getattr_of_its_module() -> None:
    module = types.ModuleType("lazy")
    module.__getattr__ = lambda name: pytest.fail("ran")  # type: ignore[method-assign]
    sys.modules["lazy"] = module
    try:
        with pytest.raises(ProtocolError, match="imported no such class"):
            user_types.find_class("lazy", "Thing")
    finally:
        del sys.modules["lazy"]


# Shared references ----------------------------------------------------------------------------


@given(st.lists(values, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_objects_that_are_referred_to_twice_stay_one_and_the_rest_equal(parts: list[Any], rng: random.Random) -> None:
    shared = [[rng.choice(parts)], {"k": rng.choice(parts)}, bytearray(b"b"), collections.deque(parts), Loose(parts)]
    chosen = [rng.choice(shared) for _ in range(8)]
    value = [*parts, (chosen, {index: [part, (part, index)] for index, part in enumerate(chosen)}), chosen]
    arrived = decode(encode(value, shared=True), shared=True)
    assert same(arrived, value)
    found, (again, nested) = arrived[-1], arrived[-2]
    assert again is found
    assert all(nested[index][0] is nested[index][1][0] is part for index, part in enumerate(found))
    firsts = [[id(part) for part in each].index(id(part)) for each in (chosen, found) for part in each]
    assert firsts[:8] == firsts[8:], "those that were one are one, and those that were two are two"


def test_what_only_equals_another_stays_apart() -> None:
    first, second = decode(encode([[], []], shared=True), shared=True)
    assert first is not second
    made = [decode(encode([(1, [n])], shared=True), shared=True)[0][1] for n in range(3)]  # no memory of earlier calls
    assert made == [[0], [1], [2]]


def test_an_object_that_is_made_for_the_encoding_alone_is_not_taken_for_an_earlier_one() -> None:
    """The next object gets its id as soon as it is gone."""
    with undone():
        register(Plain, lambda plain: [plain.value], lambda parts: Plain(parts[0]))
        arrived = decode(encode([Plain(n) for n in range(100)], shared=True), shared=True)
    assert [plain.value for plain in arrived] == list(range(100))


def test_lists_within_lists_that_are_one_take_no_more_than_one() -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    encoded = encode(value, shared=True)
    assert len(encoded) < 1000
    arrived = decode(encoded, shared=True)
    while arrived:
        assert arrived[0] is arrived[1]
        arrived = arrived[0]


def test_references_are_taken_only_where_they_are_asked_for() -> None:
    part: list[int] = []
    encoded = encode([part, part], shared=True)
    assert encode([part, part]) == encode([[], []])
    with pytest.raises(ProtocolError, match="two references to one object"):
        decode(encoded)
    for tree in [tags.SHARED, 0], [tags.ANCHOR, 0, [tags.LIST, [[tags.SHARED, 0]]]], [tags.SHARED, [1]], [tags.ANCHOR]:
        with pytest.raises(ProtocolError):
            decode(msgpack.packb(tree), shared=True)
    assert decode(encoded, shared=True) == [[], []]


def test_threads_share_nothing() -> None:
    met: list[bool] = []
    part = [1]

    def elsewhere(plain: Plain) -> None:
        thread = threading.Thread(target=lambda: met.append(encode([part, part]) == encode([[1], [1]])))
        thread.start()
        thread.join()

    with undone():
        register(Plain, elsewhere, Plain)
        encode([part, Plain(1)], shared=True)
    assert met == [True]
