"""Equal keys have equal hashes everywhere, bins fill evenly, and a store's states are those of its bins."""

import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import os
import subprocess
import sys
import tracemalloc
import types
import uuid
import zoneinfo
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from megaflow.errors import BuildError, ProgramError, UsageError
from megaflow.megaphone.base.bins import BinStore, check_bins, mix, stable_hash
from tests.simulation.by_hand import bin_of


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Name(enum.StrEnum):
    ADA = "ada"


class Point(NamedTuple):
    x: Any
    y: Any


class Words(str):
    pass


@dataclasses.dataclass(frozen=True)
class Item:
    shop: str
    number: float
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Folded:
    word: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Folded) and self.word.lower() == other.word.lower()

    def __hash__(self) -> int:
        return hash(self.word.lower())


@dataclasses.dataclass(frozen=True, eq=False)
class BoxedBelow(Item):
    more: int = 0


@dataclasses.dataclass
class Changeable:
    word: str


zones = st.none() | st.sampled_from(
    [
        datetime.UTC,
        datetime.timezone(datetime.timedelta(hours=-5)),
        zoneinfo.ZoneInfo("Europe/Zurich"),
        zoneinfo.ZoneInfo("America/New_York"),
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.integers(-3, 3).map(float),
    st.floats(allow_nan=False),
    st.integers(-3, 3).map(complex),
    st.complex_numbers(allow_nan=False),
    st.integers(-3, 3).map(decimal.Decimal),
    st.fractions(max_denominator=4),
    st.decimals(allow_nan=False),
    st.text(max_size=2),
    st.sampled_from(["ada", Words("ada"), Name.ADA, Colour.RED, Level.LOW, Mode.READ, Mode.READ | Mode.WRITE]),
    st.binary(max_size=1),
    st.uuids(),
    st.dates(),
    st.datetimes(datetime.datetime(2020, 10, 24), datetime.datetime(2020, 10, 26), timezones=zones),
    st.times(timezones=zones),
    st.timedeltas(),
)
keys = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(tuple),
        st.builds(Point, inner, inner),
        st.frozensets(inner, max_size=3),
        st.builds(Item, st.sampled_from("ab"), st.sampled_from([1, 1.0, True, 2])),
    ),
    max_leaves=5,
)


@given(keys, keys)
@example(0.0, -0.0)
@example(2**61 - 1 + 5, float(2**61))
@example(Item("a", 1, "x"), Item("a", True, "y"))
@example(Point(1, "a"), (1.0, "a"))
def test_equal_keys_have_equal_hashes(a: Any, b: Any) -> None:
    assert 0 <= stable_hash(a) < 2**64
    if a == b:
        assert stable_hash(a) == stable_hash(b)


@given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_hashes_alike_in_all_numeric_types(number: Any) -> None:
    equals = [number, decimal.Decimal(number), fractions.Fraction(number)]
    if -(2**53) < number < 2**53:
        equals += [float(number), complex(number)]
    if number in (0, 1):
        equals += [bool(number)]
    assert len({stable_hash(equal) for equal in equals}) == 1


@pytest.mark.parametrize("plain", [True, 7, 0.5, 1j, "a", "a\0", "", b"a", b"a\0", b""], ids=repr)
def test_a_scalar_of_numpy_hashes_as_pythons(plain: Any) -> None:
    kind = {bool: numpy.bool_, str: numpy.str_, bytes: numpy.bytes_}.get(type(plain), numpy.asarray(plain).dtype.type)
    assert type(kind(plain)).__module__ == "numpy"
    assert stable_hash(kind(plain)) == stable_hash(plain) and stable_hash((kind(plain),)) == stable_hash((plain,))


@given(
    st.datetimes(datetime.datetime(2020, 1, 1), datetime.datetime(2020, 12, 31), timezones=st.just(datetime.UTC)), zones
)
def test_an_instant_hashes_alike_in_all_zones(instant: datetime.datetime, zone: datetime.tzinfo | None) -> None:
    other = instant.astimezone(zone or datetime.timezone(datetime.timedelta(minutes=7)))
    assume(other == instant)  # in a repeated hour, Python calls a time unequal to those of all other zones
    assert stable_hash(other) == stable_hash(instant)


def test_extreme_datetimes_have_a_hash() -> None:
    for clock in (datetime.datetime.min, datetime.datetime.max):
        for hours in (-23, 0, 23):
            stable_hash(clock.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=hours))))


@given(st.lists(scalars, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_the_order_of_a_set_does_not_matter(items: list[Any], rng: Any) -> None:
    one = frozenset(items)
    rng.shuffle(items)
    assert stable_hash(one) == stable_hash(frozenset(items))


def test_nan_has_no_hash_wherever_it_hides() -> None:
    nan = float("nan")
    nans = [nan, -nan, decimal.Decimal("nan"), complex(nan), complex(0, nan), numpy.float64(nan), numpy.float32(nan)]
    nans.append(decimal.Decimal("sNaN"))
    hidden = [(nan, 1), ("a", (1, (nan,))), frozenset({nan}), Point("a", nan), Item("a", nan), (Item("a", nan),)]
    for key in (*nans, *hidden):
        with pytest.raises(UsageError, match=r"^stable_hash\(.*[nN]a[nN].*\): NaN cannot be a key or part of a key"):
            stable_hash(key)
    stable_hash(Item("a", 1.0, note=nan))  # type: ignore[arg-type]  # a field that is not compared


def test_different_keys_have_different_hashes() -> None:
    different = [None, 0, 1, -2, 0.5, "a", "A", b"b", (7,), (7, 0), ("a", "b"), ("b", "a"), ("ab",)]
    different += [frozenset([1]), frozenset([1, 2]), Colour.RED, Mode.READ, Item("a", 1), Item("b", 1)]
    different += [datetime.date(2020, 1, 1), datetime.timedelta(1), uuid.UUID(int=7), "\ud800", Name.ADA]
    hashes = collections.Counter(map(stable_hash, different))
    assert hashes.most_common(1)[0][1] == 1


def test_generated_equality_is_known_by_its_code_not_its_file() -> None:
    before = stable_hash(Item("a", 1))
    code = Item.__eq__.__code__.replace(co_filename="<dynamic-code>")
    moved = dataclasses.make_dataclass("Item", ["shop", "number"], frozen=True)
    moved.__eq__ = types.FunctionType(code, {})  # type: ignore[method-assign]
    assert stable_hash(moved("a", 1)) == before
    namespace: dict[str, Any] = {}
    exec("def equal(self, other):\n return self.shop == other.shop\n", namespace)  # its file is "<string>"
    other = dataclasses.make_dataclass("Item", ["shop", "number"], frozen=True)
    other.__eq__ = namespace["equal"]  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="no stable hash"):
        stable_hash(other("a", 1))


SCRIPT = """
import datetime, decimal, enum, uuid, dataclasses
from megaflow.megaphone.base.bins import stable_hash
class Colour(enum.Enum):
    RED = 1
@dataclasses.dataclass(frozen=True)
class Item:
    shop: str
    number: float
print([stable_hash(key) for key in [
    "word", b"word", 5, -1, 2**70, 0.1, None, True, ("a", (1, None)), frozenset(map(str, range(50))), Colour.RED,
    Item("a", 2.5), uuid.UUID(int=5), datetime.datetime(2020, 1, 1), decimal.Decimal("0.1"), 1j,
    "\\ud800",
]])
"""


def test_the_hash_is_the_same_in_every_process() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(outputs) == 1


def test_the_hash_is_the_same_in_every_version() -> None:
    """Processes of different versions may meet, and stored tables refer to these bins. Change them only on purpose."""
    assert [bin_of(stable_hash(key), 8) for key in ("to", "be", 0, 1, 2, None, ("a", 1))] == [
        159,
        3,
        0,
        171,
        214,
        128,
        164,
    ]


@pytest.mark.parametrize(
    "key",
    [
        [],
        {},
        set(),
        bytearray(b"a"),
        object(),
        len,
        lambda: 0,
        Changeable("a"),
        Folded("a"),
        BoxedBelow("a", 1),
        (1, []),
    ],
    ids=lambda key: type(key).__name__,
)
def test_a_key_without_stable_hash_is_refused_with_the_remedy(key: object) -> None:
    with pytest.raises(UsageError, match=r"of type .* has no stable hash.*pass hash="):
        stable_hash(key)


WORDS = [a + b + c for a in "abcdefghijklmnop" for b in "aeiou" for c in "bdfghklmnprst"]


@pytest.mark.parametrize(
    "population",
    [
        range(20_000),
        range(0, 20_000 * 4096, 4096),
        [n << 44 for n in range(20_000)],
        [n * 0.25 for n in range(20_000)],
        range(-20_000, 0),
        [str(n) for n in range(20_000)],
        [f"user-{n:06}" for n in range(20_000)],
        [(word, n % 20) for n, word in enumerate(WORDS * 20)],
        [uuid.UUID(int=n) for n in range(20_000)],
        [datetime.date.fromordinal(700_000 + n) for n in range(20_000)],
        [n.to_bytes(4) for n in range(20_000)],
    ],
    ids=lambda population: type(population[0]).__name__,
)
def test_keys_spread_over_the_bins_as_if_drawn_at_random(population: Any) -> None:
    distinct = list(dict.fromkeys(population))
    check_spread([stable_hash(key) >> 56 for key in distinct])
    check_spread([stable_hash(key) % 256 for key in distinct])


def test_few_words_use_most_bins_they_could() -> None:
    used = {bin_of(stable_hash(word), 8) for word in WORDS}
    assert len(used) > 240


@pytest.mark.parametrize(
    "user", [lambda n: n, lambda n: n << 56, lambda n: n * 2**32 + 1, lambda n: -n, lambda n: n << 60]
)
def test_a_users_hash_is_mixed(user: Any) -> None:
    distinct = {user(n) & (2**64 - 1) for n in range(4000)}
    check_spread([mix(value) >> 56 for value in distinct])


def check_spread(bins: list[int]) -> None:
    """Return the chi-squared statistic with 255 degrees of freedom: mean 255, deviation 22.6. Too even is fine."""
    counts = collections.Counter(bins)
    expected = len(bins) / 256
    assert sum((counts[bin] - expected) ** 2 for bin in range(256)) / expected < 255 + 6 * 22.6


@pytest.mark.parametrize("bins", [0, -1, 3, 255, 2**21, True, 2.0, "256", None])
def test_a_number_of_bins_is_a_power_of_two(bins: Any) -> None:
    with pytest.raises(BuildError, match="power of two"):
        check_bins(bins)


@pytest.mark.parametrize("log2", range(21))
def test_every_hash_falls_into_a_bin(log2: int) -> None:
    assert check_bins(1 << log2) == log2
    assert bin_of(0, log2) == 0 and bin_of(2**64 - 1, log2) == 2**log2 - 1


class StoreAgainstDict(RuleBasedStateMachine):
    """A store beside a plain dict of its keys. Every bin that has left is in the model's `away`."""

    def __init__(self) -> None:
        super().__init__()
        self.store = BinStore(4)
        self.model: dict[Any, Any] = {}
        self.away: dict[int, list[tuple[Any, Any]]] = {bin: [] for bin in range(4)}

    @rule(key=keys, state=st.integers())
    def fold(self, key: Any, state: Any) -> None:
        if self.store.bin_of_key(key) in self.away:
            with pytest.raises(AssertionError, match="does not own"):
                self.store.create(key, state)
            return
        if key in self.store.states:
            self.store.states[key] = state
        else:
            assert key not in self.model
            self.store.create(key, state)
        self.model[key] = state

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.model)))
        self.store.forget(key)
        del self.model[key]

    @rule(bin=st.integers(0, 3))
    def take(self, bin: int) -> None:
        if bin in self.away:
            return
        taken = self.store.take(bin)
        expected = [(key, state) for key, state in self.model.items() if self.store.bin_of_key(key) == bin]
        pairs = list(taken.pairs)
        assert sorted(pairs, key=repr) == sorted(expected, key=repr) and not taken.timers
        for key, _ in pairs:
            del self.model[key]
        self.away[bin] = pairs

    @rule(bin=st.integers(0, 3), size=st.integers(1, 3))
    def install(self, bin: int, size: int) -> None:
        if bin not in self.away:
            return
        pairs = self.away.pop(bin)
        self.store.install(bin, pairs[:size])
        for start in range(size, len(pairs), size):
            self.store.install(bin, pairs[start : start + size])
        self.model.update(pairs)

    @invariant()
    def agree(self) -> None:
        self.store._check()
        assert self.store.states == self.model
        assert sorted(self.store.bins) == [bin for bin in range(4) if bin not in self.away]


TestStoreAgainstDict = StoreAgainstDict.TestCase


def test_a_users_hash_that_gives_no_int_is_refused() -> None:
    store = BinStore(4, hash=lambda key: str(key))  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match=r"hash\('a'\) gave 'a' of type str"):
        store.bin_of_key("a")


def test_a_users_hash_of_small_ints_does_not_fill_one_bin() -> None:
    store = BinStore(256, hash=lambda key: int(key))
    assert len({store.bin_of_key(key) for key in range(1000)}) > 200


def test_a_key_that_arrives_twice_is_a_bug() -> None:
    store = BinStore(1)
    store.install(0, [("a", 1)])
    with pytest.raises(AssertionError, match="twice"):
        store.install(0, [("a", 2)])


def test_a_bin_of_many_small_states_is_taken_out_in_the_memory_that_it_had() -> None:
    tracemalloc.start()
    try:
        store = BinStore(1)
        store.install(0, [(key, None) for key in range(30_000)])
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        taken = store.take(0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert list(taken.pairs) == [(key, None) for key in range(30_000)]
    assert peak < 1.1 * before


def test_hash_that_differs_between_processes_is_named() -> None:
    seeds = iter((0, 1))  # as of two processes
    store = BinStore(256, hash=lambda key: stable_hash((key, next(seeds))))
    store.bins[store.bin_of_key("w")] = {}  # where the sender's hash places the key
    with pytest.raises(ProgramError, match="gave another number for the key 'w' in another process"):
        store.create("w", 1)
