"""Other programs read the states that a job has stored: `megaflow.read_state`, and the JSON that Spark reads."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.durable.commits import OperatorCut
from megaflow.errors import MegaflowError, StoreError, UsageError
from megaflow.job.kept_states import STORE, choose_states, read_as_json
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


def test_processes_read_their_bins_of_one_checkpoint_as_json(tmp_path: Path) -> None:
    history = words(tmp_path)
    chosen = choose_states(str(tmp_path))
    assert (chosen.operator, chosen.checkpoint, chosen.bins) == ("count", 3, 4)
    history.checkpoint({"a": 9})
    parts = [list(read_as_json(chosen, bins)) for bins in (range(1), range(1, 4))]
    assert all(bin == 0 for *_, bin in parts[0]) and all(bin > 0 for *_, bin in parts[1])
    found = [(json.loads(key), json.loads(value), bin) for key, value, bin in parts[0] + parts[1]]
    assert sorted(map(repr, found)) == sorted(
        repr((each, state, history.bin_of_key(key)))
        for key, each, state in [("a", "a", 2), ("rose", "rose", 3), (7, 7, "seven"), (("a", 1), ["a", 1], 2)]
    )
    assert dict(each[:2] for each in read_as_json(choose_states(str(tmp_path)), range(4)))['"a"'] == "9"
    history.close()


def test_a_checkpoint_that_the_job_has_removed_is_named(tmp_path: Path) -> None:
    history = words(tmp_path / "one")
    chosen = choose_states(str(tmp_path / "one"))
    for _ in range(4):
        history.checkpoint({"a": 2}, whole=range(4))
    with pytest.raises(StoreError, match=r"has no checkpoint 3; it has 5, 6, 7\. A job has removed the chosen"):
        list(read_as_json(chosen, range(4)))
    history.close()


def test_the_checkpoint_of_another_store_is_not_read(tmp_path: Path) -> None:
    history = words(tmp_path / "kept")
    history.checkpoint({"a": 5}, written_at=2.0)
    history.close()
    chosen = choose_states(str(tmp_path / "kept"))
    (tmp_path / "kept").rename(tmp_path / "old")
    other = words(tmp_path / "kept")
    other.checkpoint({"a": 5}, written_at=3.0)
    other.close()
    with pytest.raises(StoreError, match="has another checkpoint 4 than before"):
        list(read_as_json(chosen, range(4)))


def test_the_store_in_the_checkpoint_of_a_query_is_found(tmp_path: Path) -> None:
    (tmp_path / "query").mkdir()
    words(tmp_path / "query" / STORE).close()
    assert choose_states(f"file:{tmp_path}/query", "count", "1").directory == str(tmp_path / "query" / STORE)
    with pytest.raises(StoreError, match=r"no operator 'cuont'; did you mean 'count'\?"):
        choose_states(str(tmp_path / "query"), "cuont")
    with pytest.raises(StoreError, match="has no checkpoint nightly"):
        choose_states(str(tmp_path / "query"), checkpoint="nightly")


def test_one_of_several_operators_must_be_named(tmp_path: Path) -> None:
    history = words(tmp_path)
    both = (*history.checkpoint({}).operators, OperatorCut("sum", "", (None,)))
    history.checkpoint({}, operators=both)
    with pytest.raises(StoreError, match="has the operators count, sum: name one of them"):
        choose_states(str(tmp_path))
    assert choose_states(str(tmp_path), "sum").bins == 1
    history.checkpoint({}, operators=())
    with pytest.raises(StoreError, match="has no stateful operator"):
        choose_states(str(tmp_path))
    history.close()


def test_an_own_hash_is_refused_when_the_states_are_chosen(tmp_path: Path) -> None:
    words(tmp_path, hash=by_length).close()
    with pytest.raises(StoreError, match="read_state takes a hash"):
        choose_states(str(tmp_path))


def test_a_state_of_an_unknown_class_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = words(tmp_path / "kept")
    history.checkpoint({"a": Visit("here", 3)})
    (tmp_path / "own_module_of_visits.py").write_text("seen = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    chosen = choose_states(str(tmp_path / "kept"), modules=["own_module_of_visits"])
    assert sys.modules.pop("own_module_of_visits").seen
    with pytest.raises(MegaflowError, match=r"Operator 'count', key 'a': .*Visit.*read_state returns the state itself"):
        list(read_as_json(chosen, range(4)))
    assert "own_module_of_visits" in sys.modules
    monkeypatch.delattr(f"{__name__}.Visit")
    value = json.loads(dict(each[:2] for each in read_as_json(chosen, range(4)))['"a"'])
    assert value["types"] == [f"{__name__}.Visit"]
    with pytest.raises(UsageError, match="'no_such_module' cannot be imported"):
        choose_states(str(tmp_path / "kept"), modules=["no_such_module"])
    history.close()


class Visit:
    """A state of the program's own."""

    def __init__(self, where: str, times: int) -> None:
        self.where = where
        self.times = times

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)
