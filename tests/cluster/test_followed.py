"""`--follow` on real processes: files that grow, appear and are rotated, through moves, kills and resumes."""

import gzip
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import STATUS_SECONDS, Run, records_of, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

APP = '''
def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]


def dataflow(flow):
    lines = flow.json_lines(on_error="skip")
    return lines.map(lambda line: (line["word"], 1)).stateful_state_machine(count)
'''


class Logs:
    """Two logs of words, what was written to them, and the counts of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        self.folder.mkdir()
        self.out = folder / "out.jsonl"
        self.app = folder / "app.py"
        self.app.write_text(APP)
        self.words = [
            str(self.app), "--lines", f"{self.folder}/*.log*", "--follow", "--output", f"jsonl:{self.out}", "--state",
            str(folder / "store"), "--checkpoint-every", "0.1",
        ]  # fmt: skip
        self.written: Counter[str] = Counter()

    def write(self, name: str, lines: int) -> None:
        words = [f"word{number % 7}" for number in range(lines)]
        self.written.update(words)
        with (self.folder / name).open("a") as file:
            file.write("".join(f'{{"word": "{word}"}}\n' for word in words))

    def counted(self) -> Counter[str]:
        return Counter(word for word, _ in records_of(self.out))

    def await_counted(self) -> None:
        wait_until(lambda: self.counted() == self.written, STATUS_SECONDS)

    def check(self) -> None:
        """Check that each count of each word appears once."""
        records = [json.loads(line)["record"] for line in self.out.read_text().splitlines()]
        wanted = Counter((word, count) for word, most in self.written.items() for count in range(1, most + 1))
        check_equal(Counter((word, count) for word, count in records), wanted)


def test_what_comes_is_counted_once_though_files_are_rotated_and_processes_killed(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    logs = Logs(tmp_path)
    logs.write("a.log", 50)
    job = start(*logs.words, "--processes", "2")
    logs.await_counted()
    logs.write("b.log", 50)  # it appears
    logs.write("a.log", 50)  # it grows
    assert job.control("move-bins", "--bins", "0-9", "--to", "1").returncode == 0
    (logs.folder / "a.log").rename(logs.folder / "a.log.1")
    logs.write("a.log.1", 5)  # by the process that has it open
    logs.write("a.log", 50)
    logs.await_counted()
    os.kill(job.status()["workers"][1]["pid"], signal.SIGKILL)
    logs.write("b.log", 50)
    logs.await_counted()
    job.process.kill()
    job.end()
    (logs.folder / "b.log").rename(logs.folder / "b.log.1")
    logs.write("b.log", 50)
    logs.write("b.log.1", 5)
    job = start(*logs.words, "--processes", "2")
    logs.await_counted()
    with (logs.folder / "a.log").open("a") as file:
        file.write('not JSON\n{"word": "later')
    wait_until(lambda: any(worker.get("skipped") for worker in job.status()["workers"]), STATUS_SECONDS)
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0 and "stopped at checkpoint" in said[-1], said
    assert any(f"line 51 of '{logs.folder}/a.log' is not JSON" in line for line in said), said
    logs.check()
    with (logs.folder / "a.log").open("a") as file:
        file.write('"}\n')
    logs.written["later"] += 1
    job = start(*logs.words)
    logs.await_counted()
    job.process.send_signal(signal.SIGINT)
    code, _, said = job.end()
    assert code == 130 and "stopped at checkpoint" in said[-1], said
    logs.check()


def test_removed_files_are_forgotten_and_their_names_read_anew(start: Callable[..., Run], tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    names = [f"{number}.log" for number in range(20)]

    def followed(status: dict[str, Any]) -> set[str]:
        return {each["partition"] for worker in status["workers"] for each in worker.get("partitions", ())}

    for name in ["kept.log", *names]:
        logs.write(name, 3)
    job = start(*logs.words, "--processes", "2")
    logs.await_counted()
    assert len(followed(job.status())) == 21
    for name in names:
        (logs.folder / name).unlink()
    job.status_when(lambda status: followed(status) == {str(logs.folder / "kept.log")})
    for name in names:
        logs.write(name, 3)  # perhaps with the same inodes, and with the same bytes
    logs.await_counted()
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    job = start(*logs.words)
    logs.write("kept.log", 3)
    logs.await_counted()
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    logs.check()


LINES = '''
def dataflow(flow):
    return flow.lines("a").concat(flow.lines("b"))
'''


def test_inputs_by_name_are_followed_and_a_process_that_joins_reads_too(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(LINES)
    words = ["--lines", f"a={tmp_path}/a*.txt", "--lines", f"b={tmp_path}/b.txt", "--follow", "--name", "followed"]
    job = start(str(tmp_path / "app.py"), *words)
    job.status_when(lambda status: status["state"] == "running")
    start(str(tmp_path / "app.py"), "--join", "followed")
    job.status_when(lambda status: len(status["workers"]) == 2)
    (tmp_path / "b.txt").write_text("b\n")
    names = ["b"]

    def all_read(status: dict[str, Any]) -> bool:
        """Add files until each worker has got one."""
        if all(worker["lines"] for worker in status["workers"]):
            return True
        names.append(f"a{len(names)}")
        (tmp_path / f"{names[-1]}.txt").write_text(f"{names[-1]}\n")
        return False

    job.status_when(all_read)
    record = job.status_when(lambda status: sum(worker["lines"] for worker in status["workers"]) == len(names))
    paths = [each["partition"] for worker in record["workers"] for each in worker["partitions"]]
    check_equal(sorted(paths), sorted(f"{tmp_path}/{name}.txt" for name in names))
    assert job.control("stop").returncode == 0
    code, output, said = job.end()
    assert code == 0, said
    check_equal(sorted(output.split()), sorted(names), said)
    assert len([line for line in said if "to follow: there is none yet" in line]) == 2, said


WRITTEN = [f"line {number}" for number in range(15)]


@pytest.mark.parametrize("compressed", [True, False])
def test_no_line_is_lost_in_silence_while_no_job_runs(
    start: Callable[..., Run], tmp_path: Path, compressed: bool
) -> None:
    logs, out, app = tmp_path / "logs", tmp_path / "out.jsonl", tmp_path / "app.py"
    logs.mkdir()
    app.write_text("def dataflow(flow):\n    return flow.lines()\n")
    log = logs / "app.log"
    log.write_text("".join(f"{line}\n" for line in WRITTEN))
    words = [
        str(app), "--lines", f"{logs}/*.log", "--follow", "--output", f"jsonl:{out}", "--state",
        str(tmp_path / "store"), "--checkpoint-every", "0.1",
    ]  # fmt: skip

    job = start(*words, "--rate", "1")
    wait_until(lambda: len(records_of(out)) >= 3, STATUS_SECONDS)
    job.process.kill()
    job.end()
    read = len(records_of(out))
    assert read < len(WRITTEN), "it reads a line a second"
    if compressed:
        (logs / "app.log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    if not compressed:
        code, _, said = start(*words).end()
        assert code == 1 and all(each in said[-1] for each in ("had not read: ", f"of '{log}'", "--allow-loss")), said
        words.append("--allow-loss")
    log.write_text("new\n")
    job = start(*words)
    wait_until(lambda: {"new", *(WRITTEN if compressed else ())} <= {*records_of(out)}, STATUS_SECONDS)
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    if compressed:
        check_equal(sorted(records_of(out)), sorted([*WRITTEN, "new"]))
        assert not any("had not read" in line for line in said)
    else:
        assert any("lost bytes that the job had not read" in line and str(log) in line for line in said), said
