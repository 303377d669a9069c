"""However a batch is split, each record goes to the owner of its bin, and one key's records stay together in order."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.megaphone.bins import BinStore
from megaflow.megaphone.splitting import ByKey, ByRecord

BINS = 8
KEYS = [f"key{number}" for number in range(12)]
WORKER = 1  # the one that splits

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
