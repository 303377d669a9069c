"""States go back to the bins that they came from, or to none."""

import pytest

from megaflow.durable.blocks import BlockKind, pack
from megaflow.durable.restored import restore
from megaflow.errors import StoreError


def test_keys_that_belong_to_another_bin_by_now_are_refused() -> None:
    chain = [(1, [pack(BlockKind.BIN, "count", 0, [2, 4], ["two", "four"])])]
    assert restore(chain, "count", 5, lambda key: key % 2, {0, 1}).states == {0: {2: "two", 4: "four"}}
    with pytest.raises(StoreError, match="operator 'count' had key 2 in bin 0, but now it belongs to bin 1: give the"):
        restore(chain, "count", 5, lambda key: 1 - key % 2, {0, 1})
