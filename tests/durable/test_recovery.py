"""What a store has of an operator is restored as it was, under another name, number of bins, hash and version, too."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import Hash, Heir, Terms
from megaflow.errors import StoreError
from megaflow.megaphone.bins import BinStore
from tests.durable.kept_operator import BINS, KeptOperator


def backwards(key: str) -> int:
    return stable_hash(key[::-1])


def restored(kept: KeptOperator, heir: Heir, renamed: dict[str, str]) -> dict[Any, Any]:
    """The states, put together from two workers; all is where it belongs."""
    recovery = Recovery(kept.store, kept.commit, renamed)
    bin_of_key = heir.binning(heir.bins, None)
    found: dict[Any, Any] = {}
    timers = []
    for worker in 0, 1:
        mine = range(worker, heir.bins, 2)
        found_here = recovery.restore(heir, mine)
        for bin, states in found_here.states.items():
            assert bin in mine and all(bin_of_key(key) == bin for key in states)
            assert not found.keys() & states.keys()
            found.update(states)
        for bin, due in found_here.timers.items():
            assert bin in mine and all(bin_of_key(key) == bin for _, key, _ in due)
            timers += due
    assert timers == kept.timers
    return found


def heir(hash: Hash, bins: int = BINS, name: str = "count", **terms: Any) -> Heir:
    def binning(count: int, other: Hash | None) -> Callable[[Any], int]:
        return BinStore(count, other or hash).bin_of_key

    return Heir(name, bins, binning, Terms(**{"version": 3} | terms))


@pytest.mark.parametrize("seed", range(30))
def test_states_are_restored_whatever_else_the_operator_has_become(seed: int) -> None:
    kept = KeptOperator(seed)
    for bins in (BINS, 4, 64):
        assert restored(kept, heir(stable_hash, bins), {}) == kept.states
        assert restored(kept, heir(backwards, bins, rehash=stable_hash), {}) == kept.states
        assert restored(kept, heir(stable_hash, bins, rehash=backwards), {}) == kept.states  # it has been done
        assert restored(kept, heir(stable_hash, bins, "counts"), {"count": "counts"}) == kept.states
    other = KeptOperator(seed, backwards)
    assert restored(other, heir(stable_hash, 4, rehash=backwards), {}) == other.states
    higher = heir(stable_hash, version=5, upgrade=lambda key, state, version: (state, version))
    assert restored(kept, higher, {}) == {key: (state, 3) for key, state in kept.states.items()}


def test_all_is_written_anew_only_where_an_operator_has_become_another() -> None:
    kept = KeptOperator(1)
    recovery = Recovery(kept.store, kept.commit, {"count": "count"})
    assert not recovery.changes(heir(stable_hash)) and not recovery.changes(heir(stable_hash, name="new"))
    assert not recovery.changes(heir(stable_hash, rehash=backwards))
    upgrade = partial(max, 1)
    higher = heir(stable_hash, version=4, upgrade=upgrade)
    for other in heir(stable_hash, 32), heir(backwards, rehash=stable_hash), higher:
        assert recovery.changes(other)
    assert Recovery(kept.store, kept.commit, {"count": "counts"}).changes(heir(stable_hash, name="counts"))


def test_a_hash_that_places_keys_elsewhere_is_refused_unless_it_is_said_from_which() -> None:
    recovery = Recovery(KeptOperator(2).store, KeptOperator(2).commit, {})
    assert recovery.misplaced(heir(stable_hash)) is None and recovery.misplaced(heir(stable_hash, 32)) is None
    assert recovery.misplaced(heir(backwards, rehash=stable_hash)) is None
    for wrong in heir(backwards), heir(backwards, rehash=backwards), heir(backwards, 32):
        assert recovery.misplaced(wrong) is not None
        with pytest.raises(StoreError, match=r"operator 'count' had key 'k\d+' in bin .*: give the old hash= a"):
            recovery.restore(wrong, range(wrong.bins))
