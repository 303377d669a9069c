"""Counts by epoch in real processes: bins move, one process is killed, and the same command resumes to the right
counts.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run
from tests.results import check_equal, comparing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

COUNTS = """
def dataflow(flow):
    words = flow.lines().flat_map(str.split)
    return words.count_by_value(name="counts")
"""


def test_counts_move_are_looked_at_and_go_on_after_a_kill(start: Callable[..., Run], tmp_path: Path) -> None:
    app, text, out = tmp_path / "counts_app.py", tmp_path / "text.txt", tmp_path / "out.jsonl"
    app.write_text(COUNTS)
    text.write_text("".join(f"all word{number % 700} word{number % 11}\n" for number in range(60_000)))
    command = [str(app), "--lines", str(text), "--output", f"jsonl:{out}", "--state", str(tmp_path / "store")]
    run = start(*command, "--processes", "2", "--rate", "500", "--restarts", "0", "--checkpoint-every", "0.2")
    run.reading()
    moved = run.control("move-bins", "--bins", "0-255", "--to", "1", "--strategy", "batched", "--batch", "16")
    assert moved.returncode == 0 and moved.stdout.startswith("moved 128 bins"), moved.stdout + moved.stderr
    got = run.control("get", "counts", "all", "--json")
    assert json.loads(got.stdout)["state"] > 0, got.stdout + got.stderr
    os.kill(run.status()["workers"][1]["pid"], signal.SIGKILL)
    code, _, said = run.end()
    assert code == 75, said

    code, _, said = start(*command, "--processes", "3").end()
    assert code == 0, said
    last: dict[str, tuple[int, int]] = {}
    for line in out.read_text().splitlines():
        (word, count), time = (output := json.loads(line))["record"], output["time"]
        with comparing():
            assert (count, time) > last.get(word, (0, -1)) and time > last.get(word, (0, -1))[1], f"{word!r} at {time}"
        last[word] = count, time
    check_equal({word: count for word, (count, _) in last.items()}, Counter(text.read_text().split()))
