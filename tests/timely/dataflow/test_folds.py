"""Every operator that folds by key keeps a single output record whole, and refuses NaN in keys."""

import dataclasses
import datetime
import decimal
import enum
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from megaflow.errors import ProgramError, UsageError
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import example
from megaflow.timely.dataflow.folds import check_key

Fold = Callable[[Any, Any, Any], Any]  # (key, values, state) -> (state, outputs)
OPERATORS = ["stateful_state_machine", "stateful_unary", "stateful_binary", "state_machine"]
every_operator = pytest.mark.parametrize("operator", OPERATORS)


def folded(operator: str, stream: Stream[Any], fold: Fold, **options: Any) -> Stream[Any]:
    """Fold the stream with this operator; `fold` receives the values that arrive together."""
    if operator == "stateful_unary":
        return stream.stateful_unary(lambda key, time, values, state, timers: fold(key, values, state), **options)
    if operator == "stateful_binary":
        nothing = stream.filter(lambda record: False)
        return stream.stateful_binary(
            nothing, lambda key, time, left, right, state, timers: fold(key, left, state), **options
        )
    method = stream.state_machine if operator == "state_machine" else stream.stateful_state_machine
    return method(lambda key, value, state: fold(key, [value], state), **options)


def run(operator: str, records: list[Any], fold: Fold, workers: int = 1, **options: Any) -> list[Any]:
    """Return the outputs of records that arrive at times 0, 1, …"""

    def build(worker: Any, records: Any, commands: Any) -> Any:
        return folded(operator, records, fold, **options)

    return [output for _, output in EngineCluster(1, workers).run(build, {0: list(enumerate(records))})]


# Outputs ---------------------------------------------------------------------------------------


class Sale(NamedTuple):
    item: str
    price: int


@every_operator
@pytest.mark.parametrize(
    ("outputs", "split"),
    [
        (("a", 1), "one record for each item"),
        (("a",), "one record for each item"),
        (Sale("pen", 2), "one record for each item"),
        ("word", "one record for each character"),
        ("", "one record for each character"),
        (b"abc", "one record for each byte, an int"),
        (bytearray(b"abc"), "one record for each byte, an int"),
        ({"a": 1}, "one record for each key, without its value"),
        (defaultdict(int), "one record for each key, without its value"),
        (OrderedDict(a=1), "one record for each key, without its value"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("earlier", [0, 3])
def test_one_record_in_the_place_of_a_list_is_refused_at_its_first_occurrence_with_the_remedy(
    operator: str, outputs: Any, split: str, earlier: int
) -> None:
    calls = []

    def fold(key: str, values: list[int], state: int | None) -> Any:
        calls.append(values)
        return 1, outputs if values[0] == earlier else [(key, 1)]

    with pytest.raises(ProgramError) as caught:
        run(operator, [("a", number) for number in range(6)], fold)
    text = str(caught.value)
    assert len(calls) == earlier + 1
    assert split in text and f"return state, [{outputs!r}]" in text and type(outputs).__name__ in text
    (note,) = caught.value.__notes__
    assert f"time {earlier}, " in note
    assert note.endswith(f"record ('a', {earlier})" if operator.endswith("state_machine") else "key 'a'")


@every_operator
def test_a_table_in_the_place_of_a_list_is_refused(operator: str) -> None:
    frame = pd.DataFrame({"a": [1]})
    with pytest.raises(ProgramError, match=r"the names of its columns\. Return a list .*outputs\.to_dict\('records'\)"):
        run(operator, [("a", 1)], lambda key, values, state: (1, frame))


def two() -> Iterator[int]:
    yield 1
    yield 2


@every_operator
@pytest.mark.parametrize(
    "outputs",
    [lambda: [1, 2], two, lambda: iter([1, 2]), lambda: map(int, "12"), lambda: {1, 2}, lambda: deque([1, 2]),
     lambda: range(1, 3), lambda: {1: 0, 2: 0}.keys(), lambda: np.array([1, 2])],
)  # fmt: skip
def test_any_other_iterable_is_as_good_as_a_list(operator: str, outputs: Callable[[], Any]) -> None:
    assert sorted(run(operator, [("a", 0)], lambda key, values, state: (1, outputs()))) == [1, 2]


@every_operator
def test_an_empty_tuple_is_no_output(operator: str) -> None:
    assert run(operator, [("a", 0), ("a", 1)], lambda key, values, state: (1, ())) == []


@every_operator
@pytest.mark.parametrize("returned", [None, 5, (1, 2, 3), (1, None), (1, 5)], ids=repr)
def test_what_is_no_pair_of_state_and_outputs_is_refused_as_ever(operator: str, returned: Any) -> None:
    with pytest.raises(ProgramError, match=r"must return \(new state, outputs\)"):
        run(operator, [("a", 0)], lambda key, values, state: returned)


# NaN in keys -----------------------------------------------------------------------------------


class Reading(NamedTuple):
    sensor: str
    value: float


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    note: float = dataclasses.field(default=0.0, compare=False)


class Weight(float, enum.Enum):
    LOST = float("nan")
    LIGHT = 1.5


class Box:
    """Compares its content as a tuple does, so it equals itself."""

    __slots__ = ("content",)

    def __init__(self, content: Any) -> None:
        self.content = content

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and (self.content,) == (other.content,)

    def __hash__(self) -> int:
        return 7


NAN = float("nan")
HIDDEN = [
    NAN, -NAN, np.float64("nan"), np.float32("nan"), decimal.Decimal("NaN"), complex(NAN, 0), complex(0, NAN),
    decimal.Decimal("sNaN"), ("a", decimal.Decimal("sNaN")),
    (NAN, 1), (1, ("a", (NAN,))), frozenset({NAN}), (frozenset({("a", NAN)}),), Reading("a", NAN), Point(NAN),
    (Point(complex(NAN)),), Weight.LOST,
]  # fmt: skip
HIDDEN_FROM_STABLE_HASH = [np.datetime64("NaT"), pd.NaT, Box(NAN), Box([("a", NAN)]), (Box(Point(NAN)),)]


@pytest.mark.parametrize("key", [*HIDDEN, *HIDDEN_FROM_STABLE_HASH], ids=lambda key: type(key).__name__)
def test_nan_is_found_wherever_it_hides(key: Any) -> None:
    with pytest.raises(UsageError, match=r"the key .*: NaN cannot be a key"):
        check_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "nan", b"nan", 0.0, -0.0, float("inf"), None, (), (1, "a", (2.5, None)), frozenset({1.5}), Reading("a", 1.0),
        Point(1.0, NAN), Weight.LIGHT, Box([1, 2.5]), Box(np.array([1.0, 2.0])), datetime.datetime.now(datetime.UTC),
        object(), len, Box, np.float64(1), np.datetime64("2024-01-01"), pd.Timestamp("2024-01-01"), 1j,
        decimal.Decimal("Infinity"),
    ],
    ids=lambda key: type(key).__name__,
)  # fmt: skip
def test_a_key_without_nan_passes(key: Any) -> None:
    check_key(key)


@every_operator
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("hash", [None, lambda key: 7], ids=["stable_hash", "hash="])
@pytest.mark.parametrize("state", [1, None])
def test_nan_in_a_key_is_refused_with_the_record_by_any_number_of_workers(
    operator: str, workers: int, hash: Any, state: Any
) -> None:
    options = {} if hash is None else {"hash": hash}
    for key in (NAN, (NAN, 1), frozenset({NAN}), Point(NAN)):
        with pytest.raises(UsageError, match="NaN cannot be a key") as caught:
            run(operator, [(1.5, 0), (key, 41)], lambda key, values, state: (state, []), workers, **options)
        (note,) = caught.value.__notes__
        assert note.endswith((f"record {(key, 41)!r}", f"key {key!r}"))


@every_operator
def test_a_signalling_nan_is_refused_with_the_record(operator: str) -> None:
    key = decimal.Decimal("sNaN")
    with pytest.raises(UsageError, match="NaN cannot be a key") as caught:
        run(operator, [(1.5, 0), (key, 41)], lambda key, values, state: (state, []), 2)
    (note,) = caught.value.__notes__
    assert note.endswith((f"record {(key, 41)!r}", f"key {key!r}"))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_aggregate_refuses_nan_in_a_key(workers: int) -> None:
    def build(worker: Any, records: Any, commands: Any) -> Any:
        return records.aggregate(lambda key, value, total: (total or 0) + value, lambda key, total: (key, total))

    with pytest.raises(UsageError, match="NaN cannot be a key") as caught:
        EngineCluster(1, workers).run(build, {0: [(0, (1.5, 0)), (0, ((NAN, 1), 41))]})
    assert caught.value.__notes__[-1].endswith("record ((nan, 1), 41)")


def test_a_timer_of_a_key_with_nan_is_refused_though_it_has_no_state() -> None:
    def fold(key: Any, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        timers.at(time + 1, None)
        return None, []

    with pytest.raises(UsageError, match="NaN cannot be a key"):
        example(lambda scope: scope.to_stream([((NAN, 1), 0)]).stateful_unary(fold, hash=lambda key: 7).capture())


def test_a_record_with_nan_can_be_distributed_by_a_hash_that_leaves_it_out() -> None:
    for workers in (1, 2):

        def build(worker: Any, records: Any, commands: Any) -> Any:
            return records.distribute(lambda record: record[0])

        outputs = EngineCluster(1, workers).run(build, {0: [(0, (1, NAN)), (0, (2, NAN))]})
        assert sorted(number for _, (number, _) in outputs) == [1, 2]


@every_operator
def test_zeros_of_either_sign_and_equal_numbers_of_any_type_are_one_key_still(operator: str) -> None:
    def fold(key: Any, values: list[Any], count: int | None) -> Any:
        count = (count or 0) + len(values)
        return count, [count]

    for keys in ([0.0, -0.0, 0, False], [1, 1.0, True, decimal.Decimal(1), complex(1)]):
        assert run(operator, [(key, 0) for key in keys], fold, workers=2) == list(range(1, len(keys) + 1))
