"""A reader outside the job finds the states of a checkpoint, even if the job continues meanwhile."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from megaflow.durable.local_folder import LocalFolder
from megaflow.durable.reading import OperatorStates, find_operator, open_checkpoint
from megaflow.durable.recovery import Recovery
from megaflow.durable.restored import StateDescriptor
from megaflow.durable.store import Store
from megaflow.errors import StoreDamaged, StoreError
from megaflow.megaphone.base.bins import BinStore, mix
from tests.durable.kept_histories import KeptHistory, no_waiting_for_the_disk, words

__all__ = ["no_waiting_for_the_disk"]  # a fixture for all tests here
BINS = 4


@pytest.mark.parametrize("seed", range(20))
def test_the_states_are_those_of_the_model_and_of_a_worker_that_recovers(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    history = KeptHistory(tmp_path, BINS)
    for _ in range(rng.randrange(1, 9)):
        keys = rng.choices(range(12), k=rng.randrange(8))
        whole = rng.sample(range(BINS), rng.randrange(BINS + 1))
        history.checkpoint({key: rng.choice([None, rng.random()]) for key in keys}, whole, rng.sample(range(12), 3))
    history.close()
    for checkpoint in sorted(history.at)[-3:]:
        folder = LocalFolder(tmp_path)
        commit = open_checkpoint(folder, checkpoint)
        bins = dict(OperatorStates(folder, commit, find_operator(commit, "count"), history.bin_of_key).by_bin())
        assert {key: state for states in bins.values() for key, state in states.items()} == history.at[checkpoint]
        descriptor = StateDescriptor("count", BINS, lambda bins, hash: history.bin_of_key)
        recovered = Recovery(Store(folder), commit, {}).restore(descriptor, range(BINS))
        assert bins == recovered.states
        states = OperatorStates(folder, commit, find_operator(commit, "count"), history.bin_of_key)
        assert [states.find(key) for key in range(13)] == [history.at[checkpoint].get(key) for key in range(13)]
        folder.close_folder()


class Disturbed(LocalFolder):
    """A folder whose job continues just before its files are opened."""

    def __init__(self, path: Path, history: KeptHistory, times: int) -> None:
        super().__init__(path)
        self._history = history
        self._times = times

    def keep_open(self, names: Iterable[str]) -> None:
        if self._times:
            self._times -= 1
            go_on(self._history)
        super().keep_open(names)


def go_on(history: KeptHistory) -> None:
    """Write checkpoints until the store has removed all present segments."""
    for _ in range(4):
        history.checkpoint({"rose": history.states["rose"] + 1}, whole=range(BINS))


def read(folder: LocalFolder, states: OperatorStates) -> dict[Any, Any]:
    return {key: state for _, found in states.by_bin() for key, state in found.items()}


def test_a_job_that_goes_on_before_its_files_are_open_is_followed(tmp_path: Path) -> None:
    history = words(tmp_path)
    folder = Disturbed(tmp_path, history, times=3)
    commit = open_checkpoint(folder)
    assert commit.checkpoint == 15
    states = OperatorStates(folder, commit, find_operator(commit, "count"), history.bin_of_key)
    assert read(folder, states) == history.at[15]
    folder.close_folder()
    history.close()


def test_a_job_that_goes_on_later_takes_nothing_away(tmp_path: Path) -> None:
    history = words(tmp_path)
    folder = LocalFolder(tmp_path)
    commit = open_checkpoint(folder)
    go_on(history)
    states = OperatorStates(folder, commit, find_operator(commit, "count"), history.bin_of_key)
    go_on(history)
    assert read(folder, states) == history.at[3]
    folder.close_folder()
    history.close()


def test_a_checkpoint_that_the_job_has_removed_is_not_there(tmp_path: Path) -> None:
    history = words(tmp_path)
    folder = Disturbed(tmp_path, history, times=1)
    with pytest.raises(StoreError, match="has no checkpoint 2; it has 5, 6, 7"):
        open_checkpoint(folder, 2)
    folder.close_folder()
    history.close()


def test_a_segment_that_is_missing_is_named(tmp_path: Path) -> None:
    words(tmp_path).close()
    (tmp_path / "i1-w0-000002.seg").unlink()
    folder = LocalFolder(tmp_path)
    with pytest.raises(StoreDamaged, match=r"000000000004\.commit names i1-w0-000002\.seg, which is missing"):
        open_checkpoint(folder)
    assert open_checkpoint(folder, 1).checkpoint == 1
    folder.close_folder()


def test_an_operator_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    words(tmp_path).close()
    folder = LocalFolder(tmp_path)
    commit = open_checkpoint(folder)
    with pytest.raises(StoreError, match=r"3 has no operator 'cuont'; did you mean 'count'\? It has: count"):
        find_operator(commit, "cuont")
    folder.close_folder()


def test_another_hash_is_refused(tmp_path: Path) -> None:
    history = words(tmp_path, hash=lambda key: len(str(key)))
    folder = LocalFolder(tmp_path)
    commit = open_checkpoint(folder)
    with pytest.raises(StoreError, match=r"'count' had key .* in bin \d, but its hash gives bin \d, so no"):
        other = BinStore(BINS, lambda key: mix(len(str(key))))
        OperatorStates(folder, commit, find_operator(commit, "count"), other.bin_of_key)
    assert OperatorStates(folder, commit, find_operator(commit, "count"), history.bin_of_key).find("rose") == 3
    folder.close_folder()
    history.close()
