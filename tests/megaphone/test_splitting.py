"""However a batch is split, each record goes to its bin's owner, and a key's records stay together in order.

Columns of pairs read like a list of pairs, and travel. A value counts as a pair or not wherever it is sent.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import BuildError, ProgramError, ProtocolError
from megaflow.event_time.windows import tumbling
from megaflow.megaphone.base.bins import BinStore
from megaflow.megaphone.router.splitting import ByKey, ByRecord, Pairs
from megaflow.program import Worker
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.codec.lowering import lower
from tests.timely.workers import EVERY, run

BINS = 8
KEYS = [f"key{number}" for number in range(12)]
WORKER = 1  # the worker that splits

scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=9), st.floats(allow_nan=False))
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.tuples(scalars), st.dictionaries(st.text(), scalars))
batches = st.lists(st.lists(st.tuples(st.sampled_from(KEYS), st.integers()), min_size=1), max_size=6)
owners = st.sampled_from([(0, 1), (0, 1, 2, 3), (0, 2, 3)])  # of one other worker, of several; of others only
tables = st.lists(
    owners.flatmap(lambda ids: st.lists(st.sampled_from(ids), min_size=BINS, max_size=BINS).map(tuple)),
    min_size=1,
    max_size=3,
)


@given(batches=batches, tables=tables)
@pytest.mark.parametrize("kind", [ByKey, ByRecord])
def test_each_record_is_in_the_part_of_its_owner_in_order(
    kind: Any, batches: list[list[Any]], tables: list[Any]
) -> None:
    hash = (lambda pair: KEYS.index(pair[0])) if kind is ByRecord else KEYS.index
    store = BinStore(BINS, hash)
    for bin in range(BINS):
        store.install(bin, [])
    splitter = kind(store, WORKER, "mine")
    for number, batch in enumerate(batches):
        table = tables[number % len(tables)]
        found: dict[int, list[Any]] = {}
        for worker, part in splitter.split(batch, table):
            found.setdefault(worker, []).extend(part)
        for worker in range(4):
            mine = [pair for pair in batch if table[store.bin_of_key(pair if kind is ByRecord else pair[0])] == worker]
            for key in KEYS:
                expected = [pair for pair in mine if pair[0] == key]
                assert [pair for pair in found.get(worker, []) if pair[0] == key] == expected
            assert len(found.get(worker, [])) == len(mine)


@pytest.mark.parametrize("kind", [ByKey, ByRecord])
def test_a_batch_stays_as_it_is_where_all_bins_are_here(kind: Any) -> None:
    batch = [("a", 1), ("b", 2)]
    [(worker, part)] = kind(BinStore(2), WORKER, "mine").split(batch, (WORKER, WORKER))
    assert worker == WORKER and part is batch


@given(content=st.lists(st.tuples(scalars, values), max_size=12), start=st.integers(-13, 13), step=st.integers(1, 4))
def test_columns_read_like_the_list_of_pairs_that_they_are(content: list[Any], start: int, step: int) -> None:
    pairs = Pairs([key for key, _ in content], [value for _, value in content])
    assert list(pairs) == content and len(pairs) == len(content) and bool(pairs) == bool(content)
    assert pairs[start::step] == content[start::step]
    assert [pairs[index] for index in range(len(content))] == content


@given(content=st.lists(st.tuples(scalars, values), max_size=12))
def test_columns_arrive_as_they_were_sent(content: list[Any]) -> None:
    arrived = decode(encode((3, Pairs([key for key, _ in content], [value for _, value in content]))))[1]
    assert type(arrived) is Pairs
    assert [*map(repr, arrived)] == [*map(repr, content)], "types included: True is not 1"


@pytest.mark.parametrize("columns", [[["a"], []], [["a"], ["b"], ["c"]], [("a",), ["b"]], ["a", "b"], 7, None, {}])
def test_columns_that_are_not_two_lists_of_one_length_are_refused(columns: Any) -> None:
    tag, name, _ = lower(Pairs([], []))
    with pytest.raises(ProtocolError, match="columns of pairs"):
        decode(msgpack.packb([tag, name, lower(columns)]))


class Row(NamedTuple):
    """A pair with names."""

    key: str
    value: int


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize(
    "rows",
    [
        [[f"k{n % 7}", n] for n in range(20)],
        [Row(f"k{n % 7}", n) for n in range(20)],
    ],
)
def test_lists_of_two_and_named_tuples_are_pairs(rows: list[Any], workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            stream = scope.to_stream(rows if worker.index == 0 else [])
            return stream.stateful_state_machine(lambda key, value, state: ((state or 0) + 1, [(key, value)])).capture()

    results = run(workers, main)
    assert sorted(map(repr, (record for result in results for _, batch in result for record in batch))) == sorted(
        repr((key, value)) for key, value in rows
    )


class Two:
    """An object that unpacks like a pair, but is not one."""

    def __iter__(self) -> Iterator[str]:
        return iter(("key", "value"))


PLAIN = (lambda record: 1, tumbling(60))  # a timestamp function and windows

KEYED: dict[str, Callable[[Any, Any], Any]] = {  # operator -> builds it on a stream with a key function
    "stateful_state_machine": lambda stream, how: stream.stateful_state_machine(lambda *given: (1, []), **how),
    "stateful_unary": lambda stream, how: stream.stateful_unary(lambda *given: (1, []), **how),
    "left": lambda stream, how: stream.stateful_binary(nothing(stream), lambda *given: (1, []), **how),
    "right": lambda stream, how: nothing(stream).stateful_binary(
        stream, lambda *given: (1, []), **{f"right_{name}": f for name, f in how.items()}
    ),
    "count_by_key": lambda stream, how: stream.count_by_key(**how),
    "sum_by_key": lambda stream, how: stream.sum_by_key(**how),
    "aggregate_by_key": lambda stream, how: stream.aggregate_by_key(0, lambda a, b: 1, lambda a, b: 1, **how),
    "window": lambda stream, how: stream.event_time(PLAIN[0]).window(PLAIN[1], **how).count(),
    "ttl": lambda stream, how: stream.stateful_state_machine(lambda *given: (1, []), ttl=60, **how),
    "ttl by event time": lambda stream, how: stream.event_time(PLAIN[0]).stateful_state_machine(
        lambda *given: (1, []), ttl=60, **how
    ),
    "aggregate": lambda stream, how: stream.aggregate(lambda *given: 1, lambda *given: 1, **how),
    "state_machine": lambda stream, how: stream.state_machine(lambda *given: (1, []), **how),
}


def nothing(stream: Any) -> Any:
    """A stream without records."""
    return stream.filter(lambda record: False)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("operator", KEYED)
@pytest.mark.parametrize("record", ["DE", {"country": "DE", "n": 1}, {1, 2}, b"ab", Two()], ids=type)
def test_what_merely_unpacks_is_no_pair(record: Any, operator: str, workers: int) -> None:
    """The record is in the middle of a batch, after records whose key is known."""

    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            pairs: list[Any] = [("D", 1), ("country", 1), ["D", 2]]
            KEYED[operator](scope.to_stream([*pairs, record, *pairs] if worker.index == 0 else []), {})

    with pytest.raises(ProgramError, match=r"records must be \(key, value\) pairs, but one is .*key=lambda") as caught:
        run(workers, main)
    assert repr(record) in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("operator", KEYED)
def test_functions_make_pairs_of_any_records(operator: str, workers: int) -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            records = [{"country": "DE", "n": 1}] * 3 if worker.index == 0 else []
            how = {"key": lambda record: record["country"], "value": lambda record: record["n"]}
            KEYED[operator](scope.to_stream(records), how)

    run(workers, main)


@pytest.mark.parametrize("workers", [1, 2])
def test_without_a_value_function_the_value_is_the_record(workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            words = scope.to_stream(["DE", "FR", "DE"] if worker.index == 0 else [])
            first = lambda word: word[0]  # noqa: E731
            return words.stateful_state_machine(lambda key, value, state: (1, [(key, value)]), key=first).capture()

    results = run(workers, main)
    found = sorted(record for result in results for _, batch in result for record in batch)
    assert found == [("D", "DE"), ("D", "DE"), ("F", "FR")]


def test_a_value_function_alone_is_refused() -> None:
    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            scope.to_stream([("a", 1)]).sum_by_key(value=len)  # type: ignore[call-overload]

    with pytest.raises(BuildError, match=r"sum_by_key .*: value= needs key="):
        run(1, main)


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize("first", [[], [("a", 1), ("b", 2)]])
def test_what_is_no_pair_is_refused_alike_by_any_number_of_workers_and_it_is_the_record_that_is_named(
    first: list[Any], workers: int
) -> None:
    wrong: list[Any] = [("c", 1, 2), ({}, 1), map(str, (1, 2)), "DE", b"ab", {"a": 1, "b": 2}, {1, 2}, range(2), Two()]
    for record in wrong:

        def main(worker: Worker, record: Any = record) -> None:
            with worker.dataflow() as scope:
                stream = scope.to_stream([*first, record, ("d", 1)] if worker.index == 0 else [])
                stream.stateful_state_machine(lambda key, value, state: (1, []))

        with pytest.raises(ProgramError, match=r"records must be|cannot be a key") as caught:
            run(workers, main)
        assert caught.value.__notes__[0].endswith(f"record {record!r}")
