"""`megaflow.read_state` reads the states that a job has stored, for tests and notebooks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import StoreError
from tests.durable.kept_histories import no_waiting_for_the_disk, words

__all__ = ["no_waiting_for_the_disk"]  # a fixture for all tests here


def by_length(key: Any) -> int:
    return len(str(key))


def test_all_keys_come_with_their_states_by_bin(tmp_path: Path) -> None:
    history = words(tmp_path)
    found = list(megaflow.read_state(tmp_path, "count"))
    assert dict(found) == {"a": 2, "rose": 3, 7: "seven", ("a", 1): 2}
    bins = [history.bin_of_key(key) for key, _ in found]
    assert bins == sorted(bins)
    assert dict(megaflow.read_state(str(tmp_path), "count", 1))["is"] == 1
    history.close()


def test_the_hash_is_the_operators(tmp_path: Path) -> None:
    history = words(tmp_path, hash=by_length)
    assert dict(megaflow.read_state(tmp_path, "count", hash=by_length)) == history.states
    with pytest.raises(StoreError, match="the program has its own hash="):
        next(megaflow.read_state(tmp_path, "count"))
    history.close()


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda path: megaflow.read_state(path / "none", "count"), "none as a store"),
        (lambda path: megaflow.read_state(path, "sum"), "checkpoint 3 has no operator 'sum'"),
        (lambda path: megaflow.read_state(path, "count", 9), "has no checkpoint 9; it has 1, 2, 3"),
    ],
)
def test_what_is_not_there_is_refused_at_the_first_step(tmp_path: Path, read: Callable[[Path], Any], why: str) -> None:
    words(tmp_path).close()
    states = read(tmp_path)
    with pytest.raises(StoreError, match=why):
        next(states)


def test_a_class_that_is_not_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = words(tmp_path)
    history.checkpoint({"a": Visit("here", 3)})
    assert dict(megaflow.read_state(tmp_path, "count"))["a"] == Visit("here", 3)
    monkeypatch.delattr(f"{__name__}.Visit")
    with pytest.raises(StoreError, match=r"has states of unknown classes \(.*_kept_states\.Visit\)"):
        list(megaflow.read_state(tmp_path, "count"))
    history.close()


class Visit:
    """A state of the program's own."""

    def __init__(self, where: str, times: int) -> None:
        self.where = where
        self.times = times

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)
