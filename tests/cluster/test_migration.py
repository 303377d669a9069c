"""Bins larger than every buffer move between real processes, and take as much memory as their state.

Property 30, first half. Memory is what Python has allocated, by tracemalloc. Unlike the resident set, it does not
depend on the allocator or the machine.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from megaflow.megaphone.base.chunks import CHUNK_BYTES
from tests.cluster.processes import programs
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

PATIENCE_SECONDS = 480.0

PROGRAM = """
import json, sys, time, tracemalloc
from megaflow import Map, Move
from megaflow.program import execute_from_args
from megaflow.timely import InputHandle

def own(key, size):
    word = b"%d," % key
    return (word * (size // len(word) + 1))[:size]

SHARED = {}

def shared(key, size):
    return SHARED.setdefault(size, own(0, size))

def main(worker):
    make, strategy, bins, keys, size = globals()[worker.args[0]], worker.args[1], *map(int, worker.args[2:])
    records, commands = InputHandle(), InputHandle()
    right = []

    def fold(key, value, state):
        if state is None:
            return make(key, size), []
        return state, [state == make(key, size)]

    tracemalloc.start()
    with worker.dataflow() as scope:
        stream = scope.input_from(records).stateful_state_machine(fold, control=scope.input_from(commands), bins=bins)
        probe = stream.inspect(lambda record: right.append((worker.index, record))).probe()

    def step_to(moment, slow=False):
        records.advance_to(moment)
        commands.advance_to(moment)
        while probe.less_than(moment):
            if slow and worker.index == 1:
                time.sleep(0.05)  # so that what is sent at once would have to wait somewhere
            worker.step_or_park(0.02)

    def send_all():
        if worker.index == 0:
            records.send_batch([(key, 0) for key in range(keys)])

    send_all()
    step_to(1)
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    moves = [Move(bin, 1) for bin in range(0, bins, 2)] if strategy == "fluid" else [Map((1,) * bins)]
    for number, move in enumerate(moves):
        if worker.index == 0:
            commands.send(move)
        step_to(2 + number, slow=True)
    after, peak = tracemalloc.get_traced_memory()
    send_all()
    step_to(commands.time + 1)
    view = worker.stateful[0]
    rows = view.take_ledger()
    facts = {
        "before": before, "after": after, "peak": peak, "keys": view.keys(), "right": right.count((1, True)),
        "outputs": len(right), "rows": len(rows), "moved": sum(row.keys for row in rows),
        "bytes": sum(row.bytes for row in rows),
    }
    sys.stdout.write(json.dumps(facts) + "\\n")

if __name__ == "__main__":
    execute_from_args(main)
"""


@dataclass
class Facts:
    """What a worker reports of a migration; memory in bytes."""

    before: int
    after: int
    peak: int
    keys: int
    right: int  # states found correct here afterwards
    outputs: int
    rows: int  # of the ledger
    moved: int  # keys
    bytes: int


def migrate(folder: Path, states: str, strategy: str, bins: int, keys: int, size: int) -> tuple[Facts, Facts]:
    """Move all bins of worker 0 to worker 1, which is slow; both are processes."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    with programs(folder, program, states, strategy, *map(str, (bins, keys, size))) as started:
        ended = [process.end(PATIENCE_SECONDS) for process in started.processes]
    assert all(each.output for each in ended), "\n".join(each.errors for each in ended)
    source, target = (Facts(**json.loads(each.output)) for each in ended)
    check_equal((source.keys, target.keys, target.right), (0, keys, keys))
    check_equal(source.outputs + target.outputs, keys)
    assert (source.rows, target.rows) == (0, bins // 2)
    return source, target


@pytest.mark.parametrize("strategy", ["fluid", "all at once"])
@pytest.mark.parametrize("bins", [2, 32], ids=["one large bin", "many bins"])
def test_a_migration_needs_a_tenth_and_a_chunk_more_memory_than_the_state(
    tmp_path: Path, bins: int, strategy: str
) -> None:
    facts = migrate(tmp_path, "own", strategy, bins, keys=16_000, size=4_096)
    for each in facts:
        assert each.peak <= 1.1 * max(each.before, each.after) + CHUNK_BYTES, facts
    source, target = facts
    assert source.before > 8 * CHUNK_BYTES and target.bytes == pytest.approx(target.moved * 4_100, rel=0.02)


def test_what_is_much_more_on_its_way_than_it_was_in_memory_does_not_fill_the_sender(tmp_path: Path) -> None:
    """All keys of the source share one state object, and each state travels separately."""
    source, target = migrate(tmp_path, "shared", "all at once", 2, keys=20_000, size=4_096)
    assert target.bytes > 30 * CHUNK_BYTES
    assert source.peak < source.before + 6 * CHUNK_BYTES, source


def test_a_bin_of_more_than_a_hundred_megabytes_moves(tmp_path: Path) -> None:
    """Each of its states is larger than a frame."""
    source, target = migrate(tmp_path, "own", "all at once", 2, keys=800, size=300_000)
    assert target.bytes > 100_000_000
    for each in (source, target):
        assert each.peak <= 1.1 * max(each.before, each.after) + CHUNK_BYTES, (source, target)


def test_a_state_larger_than_every_buffer_moves_in_one_piece(tmp_path: Path) -> None:
    _, target = migrate(tmp_path, "own", "fluid", 4, keys=8, size=20_000_000)
    assert target.moved > 0 and target.bytes >= 20_000_000 * target.moved
