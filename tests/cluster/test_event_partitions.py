"""Event time of partitions that tests write: plain Python knows the late records and the windows."""

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow import tumbling
from megaflow.cli.text import watermark_text
from megaflow.connect import Exhausted, Found, Idle
from megaflow.errors import ClusterError
from tests.cluster.processes import STATUS_SECONDS, Run, wait_until
from tests.results import check_equal
from tests.words import says

pytestmark = pytest.mark.cluster

BEHIND = 5  # seconds that a click may be out of order
SIZE = 10  # of windows, in seconds
SECOND = 1_000_000  # microseconds
FILES, RATE = 20, 60.0  # files read in order, and clicks a second: a minute for all events of the test

Click = tuple[str, int, int]  # key, seconds, number


class Journals:
    """Source of growing files of JSON lines, until a file `over` exists. "b-600" has nothing before 600."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def discover(self) -> Found:
        over = (self.folder / "over").exists()
        return Found(sorted(path.stem for path in self.folder.glob("*.log")), again_seconds=None if over else 0.05)

    def lower_bound(self, partition: str) -> int | None:
        return bound_of(partition)

    def open(self, partition: str, position: int | None) -> "Journal":
        return Journal(self.folder, partition, position or 0)


class Journal:
    """Reader of one file."""

    def __init__(self, folder: Path, name: str, position: int) -> None:
        self.over, self.position, self.file = folder / "over", position, (folder / f"{name}.log").open("rb")

    def read(self, limit: int) -> Any:
        over = self.over.exists()
        self.file.seek(self.position)
        lines = [line for line in self.file.readlines(4096)[:limit] if line.endswith(b"\n")]
        if not lines:
            return Exhausted() if over else Idle(after_seconds=0.02)
        self.position += sum(map(len, lines))
        return [json.loads(line) for line in lines], self.position

    def close(self) -> None:
        self.file.close()


def bound_of(partition: str) -> int | None:
    """Return the second before which a partition has nothing, according to its name."""
    bound = partition.partition("-")[2]
    return int(bound) if bound else None


def put_out(clicks: Any) -> Any:
    """Emit [key, start, numbers] of each window, and ["late", number] of each late click."""
    windows = clicks.map(lambda click: (click[0], click[2])).window(tumbling(SIZE), bins=16)
    closed = windows.collect().plain().map(lambda found: (found[0], found[1].start, sorted(found[2])))
    return closed.concat(windows.late().plain().map(lambda click: ("late", click[1])))


def of_journals(flow: Any) -> Any:
    return put_out(flow.read(Journals(flow.args[0]), "clicks").event_time(lambda click: click[1], out_of_order=BEHIND))


class Clicks:
    """The journals, and the expected results of the job."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.out, self.store = folder / "in", folder / "out.jsonl", folder / "store"
        self.folder.mkdir()
        self.greatest: dict[str, int | None] = dict.fromkeys(names)  # partition -> seconds; None: none in this attempt
        self.running: dict[str, int] = {}  # partition -> seconds, in all attempts
        self.watermark: int | None = None  # in seconds, as far as the job has advanced
        self.late: list[int] = []  # numbers
        self.kept: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.count = 0
        for name in names:
            (self.folder / f"{name}.log").touch()

    @contextmanager
    def job(self, **options: Any) -> Iterator[Any]:
        options = {"output": f"jsonl:{self.out}", "args": [str(self.folder)], "idle_timeout": 3600.0} | options
        options |= {"close_windows": "state" in options}
        with megaflow.start(of_journals, **options) as job:
            yield job

    def write(self, partition: str, *seconds: int) -> None:
        """Write clicks to a partition. The previous watermark and the partition's previous clicks decide which are
        late.
        """
        clicks = [("abc"[self.count + n & 1], each, self.count + n) for n, each in enumerate(seconds)]
        self.count += len(clicks)
        with (self.folder / f"{partition}.log").open("a") as file:
            file.write("".join(f"{json.dumps(click)}\n" for click in clicks))
        for key, each, number in clicks:
            start = each // SIZE * SIZE
            self.running[partition] = max(each, self.running.get(partition, each))
            watermark = -1 if self.watermark is None else self.watermark
            if start + SIZE <= max(watermark, self.running[partition] - BEHIND):
                self.late.append(number)
            else:
                self.kept[key, start].append(number)
        self.greatest[partition] = self.running[partition]

    def values(self) -> dict[str, int | None]:
        """Return partition -> the second below which all its clicks would be late; None: any may still be in time."""
        return {name: bound_of(name) if most is None else most - BEHIND for name, most in self.greatest.items()}

    def rise(self, job: Any) -> None:
        """Wait until everything is read and the watermark is right. Check that the status names the right partition.

        Afterwards, any worker reads new clicks at a later epoch than the watermark's.
        """
        wait_until(lambda: self.is_read(job), STATUS_SECONDS)
        values = self.values()
        least = None if None in values.values() else min(each for each in values.values() if each is not None)
        if least is not None:
            self.watermark = max(least, least if self.watermark is None else self.watermark)
            wait_until(lambda: job.status().watermark.micros == self.watermark * SECOND, STATUS_SECONDS)
        holding = {
            ("event_time", "clicks", repr(name), None if most is None else most * SECOND)
            for name, most in self.greatest.items()
            if values[name] == least
        }
        wait_until(lambda: self.held(job) in holding, STATUS_SECONDS)
        assert job.status().watermark.idle == ()
        epoch = job.status().epoch
        wait_until(lambda: job.status().frontier > epoch, STATUS_SECONDS)

    def is_read(self, job: Any) -> bool:
        """Return whether workers have read each partition to its present end."""
        read = {each.partition: each.position for worker in job.status().workers for each in worker.partitions}
        sizes = {name: (self.folder / f"{name}.log").stat().st_size for name in self.greatest}
        return read == {repr(name): str(size) if size else "" for name, size in sizes.items()}

    def held(self, job: Any) -> Any:
        held = job.status().watermark.held_by
        return held.operator, held.input, held.partition, held.maximum

    def end(self, job: Any) -> None:
        """End the input, wait for the job, and check its output."""
        (self.folder / "over").touch()
        job.wait()
        found = Counter(json.dumps(json.loads(line)["record"]) for line in self.out.read_text().splitlines())
        right = Counter(json.dumps(["late", number]) for number in self.late)
        right.update(json.dumps([key, start, sorted(some)]) for (key, start), some in self.kept.items())
        check_equal(found, right, (found - right, right - found))


@pytest.mark.slow
def test_a_partition_that_was_not_begun_holds_event_time_back_at_its_lower_bound(tmp_path: Path) -> None:
    clicks = Clicks(tmp_path, "a", "b-600")
    with clicks.job() as job:
        clicks.rise(job)
        assert "waits for 'a' of 'clicks', which has no record yet (worker 0" in told(job)
        clicks.write("a", 100, 103, 99)
        clicks.rise(job)
        clicks.write("a", 700, 20, 640)
        clicks.rise(job)
        assert clicks.watermark == 600
        assert "'b-600' of 'clicks', which has no record yet, and by its source's promise" in told(job)
        clicks.write("b-600", 600, 650)
        clicks.rise(job)
        assert clicks.watermark == 645
        clicks.write("a", 601, 639, 650)
        clicks.end(job)
    assert clicks.late == [4, 5, 8, 9, 10]


def told(job: Any) -> str:
    return watermark_text(job.status().watermark)


def read_by_all(job: Any) -> bool:
    """Return whether each worker has partitions to read."""
    return all(worker.partitions for worker in job.status().workers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_partitions_change_hands_and_the_job_goes_on_from_its_store_and_what_is_late_is_known(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    clicks = Clicks(tmp_path, "a", "b", "c-40", "d-80")

    def write_some() -> None:
        for name in dice.sample([*clicks.greatest], dice.randint(1, 4)):
            now = clicks.greatest[name] or bound_of(name) or 0
            clicks.write(name, *(max(now + dice.randint(-30, 60), bound_of(name) or 0) for _ in range(20)))

    with pytest.raises(ClusterError, match="ended by force"), clicks.job(state=clicks.store) as job:
        for change in (None, "add", "balance", "remove 0", "add", "remove 1"):
            write_some()
            clicks.rise(job)
            if change == "add":
                job.control.add_workers(1)
                wait_until(lambda: len(job.status().workers) == 2 and read_by_all(job), STATUS_SECONDS)
            elif change == "balance":
                job.move_bins(balance=True)
            elif change:
                job.control.remove_workers(int(change[-1]))
            write_some()
            clicks.rise(job)
        job.control.checkpoint()
        job.end()
    clicks.greatest = dict.fromkeys(clicks.greatest)
    with clicks.job(state=clicks.store, processes=2) as job:
        assert job.status().watermark.micros == clicks.watermark * SECOND
        clicks.rise(job)
        for _ in range(3):
            write_some()
            clicks.rise(job)
        clicks.end(job)
    assert clicks.late


@pytest.mark.slow
def test_an_idle_partition_counts_again_when_it_changes_hands_or_is_written_to(tmp_path: Path) -> None:
    clicks, names = Clicks(tmp_path, "a", "b", "c", "d"), {"'a'", "'b'", "'c'", "'d'"}
    with clicks.job(idle_timeout=0.5) as job:

        def rest() -> None:
            """Wait until all are idle. Then the watermark does not move, and later clicks belong to later epochs."""
            wait_until(lambda: clicks.is_read(job) and set(job.status().watermark.idle) == names, STATUS_SECONDS)
            micros = job.status().watermark.micros
            clicks.watermark = None if micros is None else micros // SECOND
            epoch = job.status().epoch
            wait_until(lambda: job.status().frontier > epoch, STATUS_SECONDS)

        rest()
        assert clicks.watermark is None, "nothing was seen of any"
        for number, change in enumerate((lambda: job.control.add_workers(1), lambda: job.control.remove_workers(0))):
            for name in ("a", "b"):  # each advances alone, and may be idle again before the coordinator notices
                second, before = 1000 * (number + 1) + 100 * "ab".index(name), clicks.watermark or 0
                while (clicks.watermark or 0) <= before:
                    clicks.write(name, second := second + 10)
                    rest()
            assert 1000 * (number + 1) < clicks.watermark <= clicks.greatest["b"] - BEHIND
            # The status may be older than the positions, so the watermark may still rise: up to what "b" allows.
            clicks.write("c", clicks.watermark - 50, clicks.greatest["b"])
            change()
            rest()
            assert clicks.watermark <= clicks.greatest["b"] - BEHIND
        clicks.end(job)
    assert len(clicks.late) == 2


def of_files(flow: Any) -> Any:
    return put_out(flow.json_lines().event_time(lambda click: click[1], out_of_order=BEHIND))


@pytest.mark.slow
def test_windows_close_before_files_begin_that_go_on_from_others(tmp_path: Path) -> None:
    dice, folder, out = random.Random(7), tmp_path / "logs", tmp_path / "out.jsonl"
    folder.mkdir()
    right: dict[tuple[str, int], list[int]] = defaultdict(list)
    for file in range(FILES):
        clicks = [(dice.choice("abc"), 100 * file + n - dice.randint(0, BEHIND) * (n > 0), n) for n in range(200)]
        (folder / f"{file:02}.json").write_text("".join(f"{json.dumps(click)}\n" for click in clicks))
        for key, second, number in clicks:
            right[key, second // SIZE * SIZE].append(number)
    options: dict[str, Any] = {"lines": f"{folder}/*.json?ordered-by=name", "output": f"jsonl:{out}"}
    options |= {"state": tmp_path / "store", "close_windows": True}
    with pytest.raises(ClusterError, match="ended by force"), megaflow.start(of_files, rate=RATE, **options) as job:

        def closes() -> bool:
            held = job.status().watermark.held_by
            return held is not None and held.in_order and held.bound is not None and out.stat().st_size > 0

        wait_until(closes, STATUS_SECONDS)
        held = job.status().watermark.held_by
        assert held.bound in [(100 * file - BEHIND) * SECOND for file in range(FILES)]
        assert "by the order of names none before" in told(job)
        job.control.add_workers(1)
        wait_until(lambda: job.status().workers[-1].lines > 0, STATUS_SECONDS)
        job.control.remove_workers(0)
        job.control.checkpoint()
        before = job.status().watermark.micros
        job.end()
    with megaflow.start(of_files, processes=2, **options) as job:
        assert job.status().watermark.micros >= before
        job.wait()
    found = Counter(json.dumps(json.loads(line)["record"]) for line in out.read_text().splitlines())
    check_equal(found, Counter(json.dumps([key, start, sorted(some)]) for (key, start), some in right.items()))


PARTS = """
from megaflow import tumbling

def dataflow(flow):
    return flow.lines().map(int).event_time(lambda at: at).window(tumbling(60), key=lambda at: "all").count()
"""


@pytest.mark.parametrize("order", ["name", "natural"])
def test_parts_by_number_are_all_counted(start: Callable[..., Run], tmp_path: Path, order: str) -> None:
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "in").mkdir()
    for part in range(1, 13):
        (tmp_path / "in" / f"part-{part}").write_text("".join(f"{60 * part + second}\n" for second in range(60)))
    code, output, said = start(str(tmp_path / "parts.py"), "--lines", f"{tmp_path}/in?ordered-by={order}").end()
    assert code == 0, said
    is_told = any(says(line, "part-2' begins earlier than", "?ordered-by=natural") for line in said)
    assert is_told == (order == "name"), said
    if order == "natural":
        check_equal(sorted(output.splitlines()), sorted(
            f"('all', Window(start={60 * part}, end={60 * part + 60}), 60)" for part in range(1, 13)
        ), said)  # fmt: skip
