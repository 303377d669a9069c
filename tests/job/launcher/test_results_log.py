"""The log of results: places, release and batches. After any crashes, Spark has each row once."""

from dataclasses import dataclass, field
from random import Random

import pytest

from megaflow.errors import CommandRefused, StoreDamaged
from megaflow.job.launcher.outputs import results_log
from megaflow.job.launcher.outputs.results_log import ResultsLog
from tests.simulation.planting import Fault, faulty_copy

SEEDS = 500


@dataclass
class Disk:
    """Files in memory, with the parts that survive a loss of power."""

    files: dict[str, bytes] = field(default_factory=dict)
    synced: dict[str, bytes] = field(default_factory=dict)

    def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.files.items()}

    def append(self, name: str, data: bytes) -> None:
        self.files[name] = self.files.get(name, b"") + data

    def read(self, name: str, offset: int, length: int) -> bytes:
        return self.files[name][offset : offset + length]

    def cut(self, name: str, length: int) -> None:
        self.files[name] = self.files[name][:length]

    def remove(self, name: str) -> None:
        del self.files[name]
        self.synced.pop(name, None)

    def sync(self, names: set[str]) -> None:
        self.synced |= {name: self.files[name] for name in names}

    def crash(self, dice: Random, power: bool) -> None:
        """Lose the end of the last write, and after a loss of power everything that was not synced."""
        for name in list(self.files) if power else sorted(self.files)[-1:]:
            safe, now = self.synced.get(name), self.files[name]
            if power and safe is None and dice.random() < 0.5:
                del self.files[name]
                continue
            least = next((at for at, (old, new) in enumerate(zip(safe or b"", now)) if old != new), len(safe or b""))
            if power or dice.random() < 0.5:
                least = max(least, 0 if power else len(now) - 9)
                self.files[name] = now[: dice.randint(min(least, len(now)), len(now))]
        self.synced = dict(self.files)


def texts(log: ResultsLog, start: int, end: int) -> list[str]:
    """Read rows as a task of Spark does: each row of a pack is a letter."""
    found = []
    while start < end:
        pack, data = log.read(start)
        rows = data.decode().split()
        found += rows[start - pack.start : end - pack.start]
        start = pack.end
    return found


def put(log: ResultsLog, *rows: str, epoch: int = 7) -> None:
    log.append(epoch, len(rows), " ".join(rows).encode())


def test_without_a_store_what_is_there_may_be_read_at_once() -> None:
    log = ResultsLog(Disk(), False)
    put(log, "a", "b")
    put(log, "c")
    assert (log.latest(0), texts(log, 0, 3), texts(log, 1, 3)) == (3, ["a", "b", "c"], ["b", "c"])


def test_with_a_store_only_what_is_committed_may_be_read() -> None:
    log = ResultsLog(Disk(), True)
    put(log, "a", "b")
    length = log.sync()
    put(log, "c")
    assert log.latest(0) == 0
    log.show(length)
    assert log.latest(0) == 2
    with pytest.raises(CommandRefused, match="checkpoint has read the results up to row 3, but the job has only 2"):
        log.read(2)


def test_to_ask_what_comes_after_a_place_releases_what_is_before_it() -> None:
    log = ResultsLog(Disk(), False)
    put(log, "a", epoch=3)
    put(log, "b", epoch=5)
    assert log.waiting_since == 3
    log.latest(1)
    assert (log.released, log.waiting_since, log.is_read) == (1, 5, False)
    assert log.latest(2) == 2
    assert log.is_read and log.waiting_since is None
    with pytest.raises(CommandRefused, match="were already read"):
        log.read(0)


def test_another_query_is_refused_once_rows_are_released() -> None:
    log = ResultsLog(Disk(), False)
    put(log, "a")
    log.latest(1)
    with pytest.raises(CommandRefused, match=r"already read the results up to row 1, .* from 0 on\. Each"):
        log.latest(0)


def test_a_checkpoint_of_spark_that_has_read_more_than_there_is_is_refused() -> None:
    with pytest.raises(CommandRefused, match=r"up to row 5, but the job has only 0\. It belongs to another store"):
        ResultsLog(Disk(), True).latest(5)


def test_files_go_when_all_in_them_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk()
    log = ResultsLog(disk, False, file_bytes=1)  # one pack a file
    for letter in "abcd":
        put(log, letter)
    assert sorted(disk.files) == [f"rows-{number:015}" for number in range(4)]
    log.latest(3)
    assert sorted(disk.files) == ["rows-000000000000003"]
    assert texts(log, 3, 4) == ["d"]


def test_a_batch_has_no_more_bytes_than_one_may_have_but_one_pack_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_log, "BATCH_BYTES", 2)
    log = ResultsLog(Disk(), False)
    for text in ("a", "b", "c", "long"):
        put(log, text)
    assert [log.latest(place) for place in (0, 2, 3, 4)] == [2, 3, 4, 4]


def test_a_log_is_full_by_what_spark_may_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_log, "ROOM_BYTES", 2)
    log = ResultsLog(Disk(), True)
    for text in "abcd":
        put(log, text)
    assert not log.is_full  # otherwise the commit after it would never come
    log.show(log.sync())
    assert log.is_full
    log.latest(2)
    assert not log.is_full


def test_what_was_not_committed_is_cut_off_and_written_anew_behind_what_was() -> None:
    disk = Disk()
    log = ResultsLog(disk, True, file_bytes=50)
    put(log, "a", "b")
    length = log.sync()
    for letter in "cdefg":
        put(log, letter)
    again = ResultsLog(disk, True)
    assert again.rows == 7
    again.cut_back(length)
    put(again, "x")
    again.show(again.sync())
    assert texts(ResultsLogAt(disk, 3), 0, 3) == ["a", "b", "x"]


def ResultsLogAt(disk: Disk, place: int) -> ResultsLog:
    log = ResultsLog(disk, True)
    log.cut_back(place)
    return log


def test_a_log_that_has_less_than_its_commit_says_is_damaged() -> None:
    disk = Disk()
    put(ResultsLog(disk, True), "a")
    with pytest.raises(StoreDamaged, match="The results have 1 rows, but had 2 at the last checkpoint"):
        ResultsLogAt(disk, 2)


def test_a_flipped_bit_is_noticed() -> None:
    disk = Disk()
    log = ResultsLog(disk, False)
    put(log, "abc")
    name, data = disk.files.popitem()
    disk.files[name] = data[:-1] + b"x"
    with pytest.raises(StoreDamaged, match="is damaged at byte"):
        log.read(0)


def test_a_place_stays_known_when_all_before_it_is_gone_and_all_behind_it_was_cut_off() -> None:
    disk = Disk()
    log = ResultsLog(disk, True, file_bytes=1)
    put(log, "a")
    put(log, "b")
    log.show(log.sync())
    put(log, "c")
    log.latest(2)
    for _ in range(2):
        log = ResultsLogAt(disk, 2)
    put(log, "d")
    log.show(log.sync())
    assert (log.latest(2), texts(log, 2, 3)) == (3, ["d"])


class Job:
    """A job with a store, the launcher's log, and Spark's query with its two logs. Any of them may die at any time.

    The launcher's disk and newest commit survive. Of Spark, its written logs and the sink survive. The sink knows
    which batches it has, as a folder of Parquet does.
    """

    def __init__(self, seed: int, log_class: type[ResultsLog]) -> None:
        self.log_class = log_class
        self.dice = Random(seed)
        self.disk = Disk()
        self.commit = (0, 0)  # inputs processed, length of the output
        self.offsets: list[int] = []  # Spark's: the end of each planned batch
        self.done = 0  # batches marked as done
        self.sink: dict[int, list[str]] = {}  # batch -> rows
        self.start()

    def start(self) -> None:
        self.log = self.log_class(self.disk, True, self.dice.choice((1, 60, 1000)))
        self.log.cut_back(self.commit[1])
        self.read, self.marks = self.commit[0], list[tuple[int, int]]()
        self.epoch = self.dice.randrange(1000)
        self.query = False

    def step(self) -> None:
        self.dice.choice((self.work, self.work, self.mark, self.settle, self.plan, self.plan, self.run, self.run,
                          self.finish, self.finish, self.kill_query, self.crash, self.roll_back))()  # fmt: skip
        self.log._check()

    def work(self) -> None:
        """Process some of the input, in packs that differ each time."""
        count = self.dice.randint(1, 4)
        put(self.log, *(f"r{number}" for number in range(self.read, self.read + count)), epoch=self.epoch)
        self.read, self.epoch = self.read + count, self.epoch + 1

    def mark(self) -> None:
        self.marks.append((self.read, self.log.sync()))

    def settle(self) -> None:
        """Make the commit of a mark durable. The launcher hears of it later, or never."""
        if self.marks:
            self.commit = self.marks.pop(0)
            if self.dice.random() < 0.7:
                self.log.show(self.commit[1])

    def plan(self) -> None:
        if self.done < len(self.offsets):
            return
        start = self.offsets[-1] if self.offsets else 0
        end = self.log.latest(start)
        if end > start and self.dice.random() < 0.9:  # otherwise Spark is killed before it has written the plan
            self.offsets.append(end)

    def run(self) -> None:
        """Run the planned batch, sometimes once more than necessary."""
        if self.done < len(self.offsets):
            start = self.offsets[self.done - 1] if self.done else 0
            rows = texts(self.log, start, self.offsets[self.done])
            assert self.sink.setdefault(self.done, rows) == rows, "a batch that runs again is the same"

    def finish(self) -> None:
        if self.done < len(self.offsets) and self.done in self.sink:
            self.done += 1

    def kill_query(self) -> None:
        """Lose nothing, as all its data is on disk."""

    def crash(self) -> None:
        self.disk.crash(self.dice, power=self.dice.random() < 0.5)
        self.start()

    def roll_back(self) -> None:
        """Lose processes. The launcher continues with the same log, from the newest commit."""
        self.log.cut_back(self.commit[1])
        self.read, self.marks = self.commit[0], []

    def end(self) -> list[str]:
        self.mark()
        self.marks = self.marks[-1:]
        self.settle()
        self.log.show(self.commit[1])
        while True:
            self.run()
            self.finish()
            before = len(self.offsets)
            if self.done == len(self.offsets):
                self.plan()
                if len(self.offsets) == before and self.log.is_read:
                    return [row for batch in sorted(self.sink) for row in self.sink[batch]]


def search(seeds: int = SEEDS, steps: int = 60, log_class: type[ResultsLog] = ResultsLog) -> None:
    for seed in range(seeds):
        job = Job(seed, log_class)
        for _ in range(steps):
            job.step()
        found = job.end()
        assert found == [f"r{number}" for number in range(len(found))] and len(found) == job.read, f"seed {seed}"


def test_whatever_dies_spark_reads_each_row_once() -> None:
    search()


RELEASED = "len(self._files) > 1 and self._files[1][0] <= self.released and self._files[1][1] not in self._unsafe"
FAULTS = {
    "what is not committed is shown": Fault("ResultsLog.append", "not self._is_kept", "True"),
    "the tail of an earlier attempt stays": Fault(
        "ResultsLog.cut_back", "self._folder.cut(self._file, self._size)", "pass"
    ),
    "files of an earlier attempt stay": Fault("ResultsLog.cut_back", "self._folder.remove(name)", "pass"),
    "released is what was only planned": Fault(
        "ResultsLog.latest", "self.released = after", "self.released = self.shown"
    ),
    "a file goes with rows that are kept": Fault(
        "ResultsLog._remove_released", RELEASED, RELEASED.replace("released", "shown")
    ),
    "nothing is synced": Fault("ResultsLog.sync", "self._folder.sync(self._dirty)", "pass"),
    "the last file goes": Fault(
        "ResultsLog._remove_released", RELEASED, "self._files and self._files[0][0] < self.shown"
    ),
    "the last file that is synced goes": Fault(
        "ResultsLog._remove_released", "self._files[1][1] not in self._unsafe", "True"
    ),
    "a gap is no end": Fault("ResultsLog._scan", "number and start != self.rows", "False"),
    "a batch ends where rows end": Fault("ResultsLog.latest", "min(self.shown, max(start, end))", "self.rows"),
    "what no commit has counts after all": Fault(
        "ResultsLog.cut_back", "self._is_found and place == 0 and ... and ...", "False"
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_search_finds_a_planted_fault(fault: str) -> None:
    faulty: type[ResultsLog] = vars(faulty_copy(FAULTS[fault]))["ResultsLog"]
    with pytest.raises((AssertionError, CommandRefused, StoreDamaged, KeyError, IndexError)):
        search(2000, log_class=faulty)
