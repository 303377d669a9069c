"""Timers in real processes: each fires once, at its time, while its bin moves to and fro."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run
from tests.results import check_equal

pytestmark = pytest.mark.cluster

ALARMS = """
def alarm(key, time, records, state, timers):
    outputs = []
    for record in records:
        if isinstance(record, tuple):
            outputs.append(("due", record[0]))
        else:
            timers.at(time + 1 + record % 40, (record,))
            outputs.append(("seen", record))
    return (state or 0) + 1, outputs

def pair(number, time, seen, due, since, timers):
    return (time, []) if seen else (None, [(number, time - since)])

def dataflow(flow):
    events = flow.lines().map(int).map(lambda number: (number % 500, number)).stateful_unary(alarm)
    def side(what):
        return events.filter(lambda event: event[0] == what).map(lambda event: (event[1], None))
    return side("seen").stateful_binary(side("due"), pair).distribute(lambda output: output[0])
"""


@pytest.mark.slow
def test_each_timer_is_due_once_at_its_time_while_all_bins_move(start: Callable[..., Run], tmp_path: Path) -> None:
    app, numbers, out = tmp_path / "alarms.py", tmp_path / "numbers.txt", tmp_path / "out.jsonl"
    app.write_text(ALARMS)
    numbers.write_text("\n".join(map(str, range(100_000))))
    run = start(str(app), "--lines", str(numbers), "--rate", "800", "--processes", "2", "--output", f"jsonl:{out}")
    run.reading()
    for words in (["--bins", "0-255", "--to", "1", "--strategy", "batched", "--batch", "16"], ["--balance"]):
        moved = run.control("move-bins", *words)
        assert moved.returncode == 0 and moved.stdout.startswith("moved 128 bins"), moved.stdout + moved.stderr
    assert {operator["name"] for operator in run.status()["operators"]} == {"alarm", "pair", "distribute"}
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    assert code == 0, said
    waited = dict(json.loads(line)["record"] for line in out.read_text().splitlines())
    read = int(said[-1].split()[1])
    assert read > 500
    check_equal((len(waited), len(out.read_text().splitlines())), (read, read), "each once")
    check_equal(waited, {number: 1 + number % 40 for number in waited})
