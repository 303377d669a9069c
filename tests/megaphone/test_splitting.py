"""However a batch is split, each record goes to the owner of its bin, and one key's records stay together in order.

Columns of pairs read like a list of pairs, and travel; what a pair is does not depend on where it goes.
"""

from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProgramError, ProtocolError
from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.splitting import ByKey, ByRecord, Pairs
from megaflow.program import Worker
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.codec.lowering import lower
from tests.timely.workers import EVERY, run

BINS = 8
KEYS = [f"key{number}" for number in range(12)]
WORKER = 1  # the one that splits

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
        [{f"k{n % 7}": 0, n: 0} for n in range(20)],
        [f"{n % 7}{n % 3}" for n in range(20)],
    ],
)
def test_whatever_unpacks_into_two_is_a_pair_on_any_number_of_workers(rows: list[Any], workers: int) -> None:
    def main(worker: Worker) -> Any:
        with worker.dataflow() as scope:
            stream = scope.to_stream(rows if worker.index == 0 else [])
            return stream.stateful_state_machine(lambda key, value, state: ((state or 0) + 1, [(key, value)])).capture()

    results = run(workers, main)
    assert sorted(map(repr, (record for result in results for _, batch in result for record in batch))) == sorted(
        repr((key, value)) for key, value in rows
    )


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize("first", [[], [("a", 1), ("b", 2)]])
def test_what_is_no_pair_is_refused_alike_by_any_number_of_workers_and_it_is_the_record_that_is_named(
    first: list[Any], workers: int
) -> None:
    wrong: list[Any] = [("c", 1, 2), ({}, 1), *([] if first else [map(str, (1, 2))])]
    for record in wrong:

        def main(worker: Worker, record: Any = record) -> None:
            with worker.dataflow() as scope:
                stream = scope.to_stream([*first, record, ("d", 1)] if worker.index == 0 else [])
                stream.stateful_state_machine(lambda key, value, state: (1, []))

        with pytest.raises(ProgramError, match=r"records must be|cannot be a key") as caught:
            run(workers, main)
        assert caught.value.__notes__[0].endswith(f"record {record!r}")
