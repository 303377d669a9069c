"""A joining process gets its share of the unread files."""

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run
from tests.results import check_equal, comparing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

FILES, LINES, RATE = 8, 1500, 100  # two minutes if it is not stopped
SHARE = 60  # lines

ORDERED = """
def order(name, number, last):
    assert number == (-1 if last is None else last) + 1, f"line {number} of {name} comes after line {last}"
    return number, [(name, number)]

def dataflow(flow):
    pairs = flow.lines().map(lambda line: (line.split()[0], int(line.split()[1])))
    return pairs.stateful_state_machine(order, bins=16)
"""


def test_a_process_that_joins_eight_files_reads_as_many_lines(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "ordered.py").write_text(ORDERED)
    folder, out = tmp_path / "in", tmp_path / "out.jsonl"
    folder.mkdir()
    for file in range(FILES):
        (folder / f"part{file}").write_text("".join(f"part{file} {line}\n" for line in range(LINES)))
    words = [str(tmp_path / "ordered.py"), "--lines", str(folder), "--output", f"jsonl:{out}", "--rate", str(RATE)]
    run = start(*words)
    run.reading()
    done = run.control("add-workers", "1", "--balance")
    assert done.returncode == 0, done.stderr
    first = run.status_when(lambda each: len(each["workers"]) == 2 and each["workers"][1]["lines"] > 0)
    last = run.status_when(lambda each: each["workers"][1]["lines"] >= first["workers"][1]["lines"] + SHARE)
    old, new = (last["workers"][each]["lines"] - first["workers"][each]["lines"] for each in (0, 1))
    assert old <= 2 * new, "each reads half of the rate, but for when they were asked"
    assert run.control("stop").returncode == 0
    code, _, said = run.end()
    with comparing():
        assert not any("comes after line" in line for line in said), said
    assert code == 0, said
    numbers = defaultdict(list)
    for line in out.read_text().splitlines():
        name, number = json.loads(line)["record"]
        numbers[name].append(number)
    check_equal(numbers, {name: list(range(len(some))) for name, some in numbers.items()})
    with comparing():
        assert sum(map(len, numbers.values())) >= first["workers"][0]["lines"]
