"""Writes the small store in `stores/`: python -m tests.durable.make_store tests/durable/stores/vN.

There is one store for each version of the format. An existing one is never written again, because it shows that later
versions of megaflow can read it.
"""

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

from megaflow.durable.blocks import Block, BlockKind, CutHeader, pack, pack_timers
from megaflow.durable.commits import COMMIT_FORMAT, Commit, OperatorCut, OutputLength, SinkToken, SplitRemainder, needed
from megaflow.durable.incarnation import begin
from megaflow.durable.local_folder import LOCK, open_for_a_job
from megaflow.durable.segments import SegmentRef, segment_name
from megaflow.durable.store import Store
from megaflow.event_time.windows import Window
from tests.durable.launchers import make_segments


def cuts(format: int = COMMIT_FORMAT) -> dict[int, list[Block]]:
    """Return the blocks of each checkpoint."""
    keys, states = ["ann", Window(1, 2)], [Window(60, 120), [Window(0, n) for n in range(4)]]  # NamedTuples
    named = [pack(BlockKind.DELTA, "named", None, keys, states)]
    return {
        1: [
            pack(BlockKind.BIN, "count", 0, ["a", "rose"], [1, 2]),
            pack(BlockKind.BIN, "count", 1, ["is"], [{"n": 1, "at": 2.5}]),
            pack_timers("sessions", 1, [(12, "ann", ("over", 3))]),
        ],
        2: [
            pack(BlockKind.DELTA, "count", None, ["rose", "is"], [3, None]),
            pack_timers("sessions", None, [(20, "bob", None)]),
            *(named if format >= 3 else []),
        ],
    }


def commit_of(checkpoint: int, format: int = COMMIT_FORMAT) -> Commit:
    """Return a commit. The store sets its number, incarnation and segments."""
    commit = commit_of_format_1(checkpoint)
    if format < 2:
        return commit
    count, sessions = commit.operators
    commit = replace(commit, operators=(count, replace(sessions, version=3)), dropped=("words",))
    if format < 3:
        return commit
    named = OperatorCut("named", "", (None, None), form="windows: tumbling(60.000000) with count")
    return replace(commit, operators=(*commit.operators, named))


def commit_of_format_1(checkpoint: int) -> Commit:
    return Commit(
        number=0, checkpoint=checkpoint, time=10 * checkpoint, incarnation=0, app="sessions.py", written_at=1.75e9,
        next_worker=2,
        operators=(OperatorCut("count", "state_machine", (1, 1)), OperatorCut("sessions", "unary", (1, 1))),
        splits=(SplitRemainder(0, "/data/a.txt", 100 * checkpoint, 1000, "c0ffee"),), spark=(("3f2a", 7),),
        outputs=(OutputLength("jsonl:out.jsonl", 50 * checkpoint),),
        tokens=(SinkToken("db", checkpoint, b"\x00\xff"),),
        table=(0, 1), plan=b"\x01", watermark=9,
    )  # fmt: skip


def main(path: str) -> None:
    folder = open_for_a_job(path)
    store = Store(folder)
    incarnation = begin(store, "sessions.py")
    names = (segment_name(1, 0, sequence) for sequence in count(1))
    segments: tuple[SegmentRef, ...] = ()
    for checkpoint, blocks in cuts().items():
        [(ref, parts)] = make_segments(CutHeader(checkpoint, 10 * checkpoint, checkpoint - 1 or None, 0), blocks, names)
        store.put(ref.name, parts)
        commit = commit_of(checkpoint)
        segments = needed(commit.operators, (*segments, ref))
        incarnation.commit(replace(commit, segments=segments))
        incarnation.collect()
    folder.close_folder()
    (Path(path) / LOCK).unlink()


if __name__ == "__main__":
    main(sys.argv[1])
