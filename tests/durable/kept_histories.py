"""A store with the history of one operator and its states at each checkpoint, for tests of readers."""

import os
from collections.abc import Callable, Collection
from itertools import count
from typing import Any

import pytest

from megaflow.durable.blocks import BlockKind, CutHeader, pack
from megaflow.durable.commits import Commit, OperatorCut, OutputLength, needed
from megaflow.durable.incarnation import begin
from megaflow.durable.local_folder import open_for_a_job
from megaflow.durable.segments import SegmentRef, segment_name
from megaflow.durable.store import Store
from megaflow.megaphone.base.bins import BinStore, stable_hash
from tests.durable.launchers import make_segments


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do nothing, as no power is lost in these tests."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


class KeptHistory:
    """A job with one worker and one operator, `count`. The caller must close it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        bins: int = 4,
        hash: Callable[[Any], int] = stable_hash,
        kept: int = 3,
        app: str = "wordcount.py:dataflow",
        output: str = "jsonl:out.jsonl",
    ) -> None:
        self.states: dict[Any, Any] = {}
        self.at: dict[int, dict[Any, Any]] = {}  # checkpoint -> states
        self.bin_of_key = BinStore(bins, hash).bin_of_key
        self._output = output
        self._bins = bins
        self._folder = open_for_a_job(path)
        self._store = Store(self._folder)
        self._incarnation = begin(self._store, app, kept)
        self._sequence = count(1)

    def checkpoint(
        self,
        changes: dict[Any, Any],
        whole: Collection[int] = (),
        touched: Collection[Any] = (),
        names: Collection[str] = (),
        **more: Any,
    ) -> Commit:
        """Write a checkpoint of changed keys (None: removed), with the bins in `whole` written whole.

        Keys in `touched` are written as changes even if their bin is in `whole`.
        """
        latest = self._incarnation.latest
        number = latest.checkpoint + 1
        self.states |= changes
        self.states = {key: state for key, state in self.states.items() if state is not None}
        whole = whole if latest.checkpoint else range(self._bins)
        deltas = [key for key in changes if self.bin_of_key(key) not in whole]
        deltas += [key for key in touched if self.bin_of_key(key) in whole and key in self.states]
        blocks = [pack(BlockKind.DELTA, "count", None, deltas, list(map(self.states.get, deltas)))] if deltas else []
        for bin in whole:
            keys = [key for key in self.states if self.bin_of_key(key) == bin and key not in deltas]
            blocks.append(pack(BlockKind.BIN, "count", bin, keys, [self.states[key] for key in keys]))
        files = (segment_name(latest.incarnation, 0, next(self._sequence)) for _ in count())
        written: list[SegmentRef] = []
        for ref, parts in make_segments(CutHeader(number, 10 * number, number - 1 or None, 0), blocks, files):
            self._store.put(ref.name, parts)
            written.append(ref)
        before = latest.operators[0].bases if latest.operators else (None,) * self._bins
        bases = tuple(number if bin in whole else base for bin, base in enumerate(before))
        operators = (OperatorCut("count", "", bases),)
        segments = needed(operators, (*latest.segments, *written))
        fields: dict[str, Any] = {
            "checkpoint": number, "time": 10 * number, "operators": operators, "segments": segments,
            "outputs": (OutputLength(self._output, 0),), **more,
        }  # fmt: skip
        commit = Commit(number=0, incarnation=0, app=latest.app, **{"next_worker": 1, "written_at": 1.0, **fields})
        self._incarnation.commit(commit, names)
        self._incarnation.collect()
        self.at[number] = dict(self.states)
        return self._incarnation.latest

    def close(self) -> None:
        self._folder.close_folder()


def words(path: str | os.PathLike[str], **more: Any) -> KeptHistory:
    """A history of three checkpoints: the words of a rose."""
    history = KeptHistory(path, **more)
    history.checkpoint({"a": 1, "rose": 1, "is": 1, 7: "seven", ("a", 1): 2})
    history.checkpoint({"a": 2, "rose": 2, "is": None})
    history.checkpoint({"rose": 3}, whole=[history.bin_of_key("a")], touched=["a"])
    return history
