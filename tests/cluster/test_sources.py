"""User-defined sources on real processes: the one in docs/sources.md, waking readers, and failures."""

import json
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.launcher.run.python_function import run
from tests.cluster.processes import Run, wait_until
from tests.results import check_equal
from tests.test_programs_of_the_docs import code_with
from tests.words import says

pytestmark = pytest.mark.cluster

SENSORS = 5


def journals(folder: Path, numbers: range) -> None:
    for sensor in range(SENSORS):
        with (folder / f"{sensor}.journal").open("ab") as file:
            file.write(b"".join(struct.pack("<q", number) for number in numbers))


def totals(output: Path) -> dict[str, list[int]]:
    """Return sensor -> its running totals, in the order of output."""
    found: dict[str, list[int]] = {}
    for line in output.read_text().splitlines():
        name, total = json.loads(line)["record"]
        found.setdefault(name, []).append(total)
    return found


def wanted(numbers: range) -> dict[str, list[int]]:
    sums = [sum(numbers[: count + 1]) for count in range(len(numbers))]
    return {f"{sensor}.journal": sums for sensor in range(SENSORS)}


@pytest.mark.slow
def test_the_source_of_the_readme_goes_on_where_it_was_killed(start: Callable[..., Run], tmp_path: Path) -> None:
    app, folder, output = tmp_path / "sensors.py", tmp_path / "data", tmp_path / "totals.jsonl"
    app.write_text(code_with("class Sensors"))
    assert len(app.read_text().partition("def dataflow")[0].splitlines()) < 40
    folder.mkdir()
    journals(folder, range(500))
    words = [str(app), "--state", str(tmp_path / "state"), "--output", f"jsonl:{output}"]
    first = start(*words, "--processes", "2", "--", str(folder))
    status = first.status_when(lambda status: _is_read(status, 500 * SENSORS))
    places = {each["partition"]: each for worker in status["workers"] for each in worker["partitions"]}
    assert set(places) == {repr(name) for name in wanted(range(1))}
    assert {(each["input"], each["position"], each["lag"]) for each in places.values()} == {("sensors", "4000", None)}
    assert all(worker["partitions"] for worker in status["workers"]), "both read"
    shown = first.control("status").stdout
    assert "input sensors: 2500 read" in shown and "'0.journal'" in shown
    wait_until(lambda: (first.status()["checkpoint"]["number"] or 0) > 0)
    os.kill(first.process.pid, signal.SIGKILL)
    first.end()
    journals(folder, range(500, 700))
    (folder / "over").touch()
    code, _, said = start(*words, "--", str(folder)).end()
    assert code == 0, said
    check_equal(totals(output), wanted(range(700)))
    assert any("resumes from checkpoint" in line for line in said), said
    code, _, said = start(*words, "--", str(folder)).end()
    assert code == 0, said
    check_equal(totals(output), wanted(range(700)), "what has ended is not read again")
    assert "0 lines" in said[-1], said


def _is_read(status: dict[str, Any], lines: int) -> bool:
    return sum(worker["lines"] for worker in status["workers"]) == lines


WAKING = """
import os, threading
from megaflow.connect import Exhausted, Idle

class Waking:
    def discover(self):
        return ["call", "pipe", "time"]
    def open(self, partition, position):
        return Reader(partition, position or 0)

class Reader:
    def __init__(self, partition, position):
        self.partition, self.position, self.idle = partition, position, True
        self.near, self.far = os.pipe()
    def read(self, limit):
        self.idle = not self.idle
        if self.position == 3:
            return Exhausted()
        if self.idle:
            self.position += 1
            if self.partition == "pipe":
                os.read(self.near, 1)
            return [(self.partition, self.position)], self.position
        if self.partition == "pipe":
            threading.Timer(0.02, os.write, (self.far, b"x")).start()
            return Idle(fd=self.near)
        if self.partition == "call":
            return Idle(on_ready=lambda wake: threading.Timer(0.02, wake, ("any", "argument")).start())
        return Idle(after_seconds=0.02)
    def close(self):
        os.close(self.near)
        os.close(self.far)

def dataflow(flow):
    return flow.read(Waking(), "waking")
"""


def test_readers_are_woken_by_a_descriptor_a_call_and_a_time(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(WAKING, names)
    records = run(names["dataflow"], processes=2)
    for partition in ("call", "pipe", "time"):
        check_equal([number for name, number in records if name == partition], [1, 2, 3])


NAMED = """
from megaflow.connect import Exhausted

class Pages:
    def __init__(self, name):
        self.pages = [f"{name} {number}" for number in range(3)]
    def discover(self):
        return self.pages
    def open(self, page, position):
        return Page(page, position or 0)

class Page:
    def __init__(self, page, position):
        self.page, self.position = page, position
    def read(self, limit):
        if self.position == 4:
            return Exhausted()
        self.position += 1
        return [(self.page, 1)], self.position
    def close(self):
        pass

def dataflow(flow):
    pairs = flow.lines().map(lambda line: (line, 1))
    sources = [flow.read(Pages(name), name) for name in flow.args]
    return pairs.concat(*sources).stateful_state_machine(
        lambda key, one, total: ((total or 0) + one, [(key, (total or 0) + one)]), name="count")
"""


@pytest.mark.slow
def test_a_program_whose_sources_have_other_names_than_those_of_its_store(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    app, lines, output, store = (tmp_path / name for name in ("app.py", "lines.txt", "out.jsonl", "store"))
    app.write_text(NAMED)
    lines.write_text("a line\n")

    def records(*names: str) -> list[list[Any]]:
        totals = [[f"{name} {page}", count + 1] for name in names for page in range(3) for count in range(4)]
        return sorted([["a line", 1], *totals])

    def ended(*names: str) -> tuple[int, list[str]]:
        words = "--lines", str(lines), "--state", str(store), "--output", f"jsonl:{output}", "--", *names
        code, _, said = start(str(app), *words).end()
        return code, said

    def written() -> list[list[Any]]:
        return sorted(json.loads(line)["record"] for line in output.read_text().splitlines())

    assert ended()[0] == 0
    check_equal(written(), records())
    code, said = ended("orders")
    assert code == 0, said
    check_equal(written(), records("orders"), f"a new source of a job that had ended was not read: {said}")
    before = {path.name: path.read_bytes() for path in store.iterdir() if path.name != "lock"}
    for names, reads in ((), "none"), (("bills",), "'bills'"), (("bills", "prices"), "'bills', 'prices'"):
        code, said = ended(*names)
        assert code == 1 and len(said) == 1
        assert says(said[0], "the source 'orders'", f"it reads {reads}", "flow.read(…, 'orders')", "--state")
        check_equal({path.name: path.read_bytes() for path in store.iterdir() if path.name != "lock"}, before)
    code, said = ended("bills", "orders")
    assert code == 0, said
    check_equal(written(), records("bills", "orders"), said)


FAILING = """
class Failing:
    def discover(self):
        return ["page one"]
    def open(self, partition, position):
        self.position = 0
        return self
    def read(self, limit):
        self.position += 1
        if self.position == 3:
            raise LookupError("no such page")
        return ["record"], self.position
    def close(self):
        pass

def dataflow(flow):
    return flow.read(Failing(), "pages")
"""


@pytest.mark.slow
def test_what_a_source_raises_comes_last_alone_with_its_place(start: Callable[..., Run], tmp_path: Path) -> None:
    app = tmp_path / "failing.py"
    app.write_text(FAILING)
    code, _, said = start(str(app), "--processes", "2").end()
    assert code == 1 and said[-2:] == [
        "LookupError: no such page", "in source 'pages', partition 'page one', at position 2",
    ], said  # fmt: skip
    assert sum("Traceback" in line for line in said) == 1 and not any("/megaflow/job/" in line for line in said), said
