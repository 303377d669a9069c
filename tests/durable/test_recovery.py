"""An operator's stored states are restored exactly, even with another name, number of bins, hash or version."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from megaflow import stable_hash
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import Hash, StateDescriptor, Terms
from megaflow.errors import StoreError
from megaflow.megaphone.base.bins import BinStore
from tests.durable.kept_operator import BINS, KeptOperator


def backwards(key: str) -> int:
    return stable_hash(key[::-1])


def restored(kept: KeptOperator, descriptor: StateDescriptor, renamed: dict[str, str]) -> dict[Any, Any]:
    """Return the states of two workers together, and check that each is in its place."""
    recovery = Recovery(kept.store, kept.commit, renamed)
    bin_of_key = descriptor.binning(descriptor.bins, None)
    found: dict[Any, Any] = {}
    timers = []
    for worker in 0, 1:
        mine = range(worker, descriptor.bins, 2)
        found_here = recovery.restore(descriptor, mine)
        for bin, states in found_here.states.items():
            assert bin in mine and all(bin_of_key(key) == bin for key in states)
            assert not found.keys() & states.keys()
            found.update(states)
        for bin, due in found_here.timers.items():
            assert bin in mine and all(bin_of_key(key) == bin for _, key, _ in due)
            timers += due
    assert timers == kept.timers
    return found


def descriptor(hash: Hash, bins: int = BINS, name: str = "count", **terms: Any) -> StateDescriptor:
    def binning(count: int, other: Hash | None) -> Callable[[Any], int]:
        return BinStore(count, other or hash).bin_of_key

    return StateDescriptor(name, bins, binning, Terms(**{"version": 3} | terms))


@pytest.mark.parametrize("seed", range(30))
def test_states_are_restored_whatever_else_the_operator_has_become(seed: int) -> None:
    kept = KeptOperator(seed)
    for bins in (BINS, 4, 64):
        assert restored(kept, descriptor(stable_hash, bins), {}) == kept.states
        assert restored(kept, descriptor(backwards, bins, rehash=stable_hash), {}) == kept.states
        assert restored(kept, descriptor(stable_hash, bins, rehash=backwards), {}) == kept.states  # not rehashed again
        assert restored(kept, descriptor(stable_hash, bins, "counts"), {"count": "counts"}) == kept.states
    other = KeptOperator(seed, backwards)
    assert restored(other, descriptor(stable_hash, 4, rehash=backwards), {}) == other.states
    higher = descriptor(stable_hash, version=5, upgrade=lambda key, state, version: (state, version))
    assert restored(kept, higher, {}) == {key: (state, 3) for key, state in kept.states.items()}


def test_all_is_written_anew_only_where_an_operator_has_become_another() -> None:
    kept = KeptOperator(1)
    recovery = Recovery(kept.store, kept.commit, {"count": "count"})
    assert not recovery.changes(descriptor(stable_hash)) and not recovery.changes(descriptor(stable_hash, name="new"))
    assert not recovery.changes(descriptor(stable_hash, rehash=backwards))
    upgrade = partial(max, 1)
    higher = descriptor(stable_hash, version=4, upgrade=upgrade)
    for other in descriptor(stable_hash, 32), descriptor(backwards, rehash=stable_hash), higher:
        assert recovery.changes(other)
    assert Recovery(kept.store, kept.commit, {"count": "counts"}).changes(descriptor(stable_hash, name="counts"))


def test_a_hash_that_places_keys_elsewhere_is_refused_unless_it_is_said_from_which() -> None:
    recovery = Recovery(KeptOperator(2).store, KeptOperator(2).commit, {})
    assert recovery.misplaced(descriptor(stable_hash)) is None
    assert recovery.misplaced(descriptor(stable_hash, 32)) is None
    assert recovery.misplaced(descriptor(backwards, rehash=stable_hash)) is None
    for wrong in descriptor(backwards), descriptor(backwards, rehash=backwards), descriptor(backwards, 32):
        assert recovery.misplaced(wrong) is not None
        with pytest.raises(StoreError, match=r"operator 'count' had key 'k\d+' in bin .*: give the old hash= a"):
            recovery.restore(wrong, range(wrong.bins))
