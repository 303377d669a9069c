"""Windows that were open when their states were given up: their results lack records, and are not put out unmarked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import Run
from tests.results import check_equal

pytestmark = pytest.mark.cluster

PROGRAM = """
from megaflow import session, sliding, tumbling

def dataflow(flow):
    pages = flow.lines().map(str.split).event_time(lambda line: int(line[0]), out_of_order=5)
    windows = pages.map(lambda line: (line[1], 1)).window({windows}, bins=8)
    counts = windows.count().map(lambda found: ["count", found[0], found[1].start, found[1].end, found[2]])
    {partial}
    return counts
"""
TAKEN = """partial = windows.partial().map(lambda found: ["partial", found[0], found[1].start, found[1].end, found[2]])
    counts = counts.concat(partial)"""


class Desk:
    """A job over growing lines, `SECOND PAGE`, whose windows change between its runs."""

    def __init__(self, folder: Path, start: Callable[..., Run]) -> None:
        self.folder, self._start = folder, start
        (folder / "in").mkdir()

    def run(self, windows: str, *lines: str, options: tuple[str, ...] = (), partial: str = "") -> str:
        """Run the job over these lines too; return what it says."""
        (self.folder / "app.py").write_text(PROGRAM.format(windows=windows, partial=partial))
        names = [*(self.folder / "in").iterdir()]
        (self.folder / "in" / f"{len(names):02}").write_text("".join(f"{line}\n" for line in lines))
        code, _, said = self._start(
            str(self.folder / "app.py"), "--lines", str(self.folder / "in"), "--state", str(self.folder / "kept"),
            "--output", f"jsonl:{self.folder / 'out.jsonl'}", *options,
        ).end()  # fmt: skip
        text = "\n".join(said)
        assert code == 0, text
        return text

    @property
    def records(self) -> list[object]:
        lines = (self.folder / "out.jsonl").read_text().splitlines()
        return sorted(json.loads(line)["record"] for line in lines)


@pytest.fixture
def desk(start: Callable[..., Run], tmp_path: Path) -> Desk:
    return Desk(tmp_path, start)


OLD = "tumbling(60), name='old'"
DROP = ("--drop-state", "old")


def test_windows_of_a_dropped_state_are_partial_until_event_time_has_passed(desk: Desk) -> None:
    desk.run(OLD, "10 a", "70 a", "100 a", "95 b")
    said = desk.run("tumbling(50), name='new'", "105 a", "130 b", "152 a", options=DROP)
    assert "--drop-state old gives up the states of at most 2 keys" in said, said
    check_equal(desk.records, [["count", "a", 0, 60, 1]])
    said = desk.run("tumbling(50), name='new'", "260 a", "301 c")
    assert "2 windows left out because records are missing (new 2)" in said, said
    assert "'new' leaves out Window(start=100, end=150) of key 'a'" in said and ".partial() returns" in said, said
    check_equal(desk.records, [["count", "a", 0, 60, 1], ["count", "a", 150, 200, 1]])


@pytest.mark.slow
def test_partial_windows_can_be_taken_or_emitted(desk: Desk) -> None:
    desk.run(OLD, "100 a")
    desk.run("tumbling(50), name='new'", "110 a", options=DROP, partial=TAKEN)
    desk.run("tumbling(50), name='new'", "260 a", partial=TAKEN)
    check_equal(desk.records, [["partial", "a", 100, 150, 1]])
    desk.run("tumbling(20), name='newer'", "265 a", options=("--drop-state", "new", "--partial-windows", "emit"))
    desk.run("tumbling(20), name='newer'", "300 a", options=("--partial-windows", "emit"))
    check_equal(desk.records, [["count", "a", 260, 280, 1], ["partial", "a", 100, 150, 1]])


@pytest.mark.slow
def test_windows_of_keys_that_an_upgrade_forgets_are_partial(desk: Desk) -> None:
    desk.run("sliding(60, every=30), name='w'", "100 a", "101 b")
    forget = "tumbling(50), name='w', version=2, upgrade=lambda key, state, version: None"
    said = desk.run(forget, "110 a", "104 c")
    assert "the states of 2 keys given up by upgrade (w 2)" in said, said
    said = desk.run(forget, "260 a", "261 b", "262 c")
    assert "1 window left out because records are missing (w 1)" in said, said
    check_equal(desk.records, [["count", "c", 100, 150, 1]], "c had no state that was forgotten")
    desk.run(forget, "400 a", "400 b", "400 c")
    wanted = [["count", "a", 250, 300, 1], ["count", "b", 250, 300, 1], ["count", "c", 100, 150, 1]]
    check_equal(desk.records, [*wanted, ["count", "c", 250, 300, 1]])


@pytest.mark.slow
def test_a_session_that_a_dropped_record_would_join_is_partial(desk: Desk) -> None:
    desk.run("session(30), name='old'", "100 a", "100 b")
    desk.run("session(30), name='new'", "129 a", "130 b", options=DROP)
    said = desk.run("session(30), name='new'", "300 a", "300 b")
    assert "1 window left out" in said, said
    check_equal(desk.records, [["count", "b", 130, 160, 1]])


@pytest.mark.slow
def test_the_first_windows_of_a_new_operator_are_partial(desk: Desk) -> None:
    more = 'new = pages.map(lambda line: (line[1], 1)).window(tumbling(80), name="new", bins=8).count()\n    '
    more += 'counts = counts.concat(new.map(lambda found: ["new", found[0], found[1].start, found[1].end, found[2]]))'
    desk.run(OLD, "10 a", "70 a", "100 a")
    said = desk.run(OLD, "130 a", "260 a", "301 c", partial=more)
    assert "1 window left out because records are missing (new 1)" in said, said
    check_equal(desk.records, [
        ["count", "a", 0, 60, 1], ["count", "a", 60, 120, 2], ["count", "a", 120, 180, 1],
    ])  # fmt: skip
    desk.run(OLD, "400 a", partial=more)
    found = [each for each in desk.records if each[0] == "new"]  # type: ignore[index]
    check_equal(found, [["new", "a", 240, 320, 1], ["new", "c", 240, 320, 1]])


@pytest.mark.slow
def test_an_upgrade_to_longer_windows_leaves_keys_without_a_state_partial(desk: Desk) -> None:
    desk.run("tumbling(50), name='w'", "970 k", "1010 z")
    longer = "tumbling(80), name='w', version=2, upgrade={}"
    kept = longer.format("lambda key, state, version: [None, 1040000000, {960000000: [1]}]")
    said = desk.run(kept, "1015 z", "1020 k", "1200 z", "1201 k")
    assert "1 window left out because records are missing (w 1)" in said, said
    check_equal(desk.records, [["count", "k", 950, 1000, 1], ["count", "z", 960, 1040, 2]], "z was upgraded")
    desk.run(kept, "1400 k")
    wanted = [["count", "k", 1200, 1280, 1], ["count", "z", 1200, 1280, 1]]
    check_equal([each for each in desk.records if each[3] == 1280], wanted)  # type: ignore[index]
