"""The launcher shows what real processes print, with counted gaps and last lines. It never blocks them for long."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from megaflow.job.launcher.processes.print_reader import WAITING_BYTES, PrintReader, Prints
from megaflow.job.launcher.processes.printed_lines import PrintedLines
from tests.cluster.processes import END_SECONDS, wait_until
from tests.open_files import open_files


class Shown:
    """A standard error, and a reader that shows prints there."""

    def __init__(self) -> None:
        self.end, self._writing = os.pipe()
        self.reader = PrintReader(self._writing)
        self._found: list[bytes] = []
        self._reading = threading.Thread(target=self._read)

    def _read(self) -> None:
        while data := os.read(self.end, 65536):
            self._found.append(data)

    def begin(self) -> None:
        """Read what is shown, from now on."""
        self._reading.start()

    def start(self, code: str, worker: int) -> tuple[Prints, "subprocess.Popen[bytes]"]:
        """Start a process that runs a line of Python."""
        prints = self.reader.open(PrintedLines(lambda marked: f"worker {worker if marked is None else marked}: "), 1)
        command = [sys.executable, "-c", code]
        process = subprocess.Popen(command, stdout=prints.writing, stderr=prints.writing)
        prints.close_writing()
        return prints, process

    def rest(self) -> bytes:
        """Close the reader and return all that it has shown."""
        if self._reading.ident is None:
            self.begin()
        self.reader.close()
        os.close(self._writing)
        self._reading.join(END_SECONDS)
        return b"".join(self._found)


@pytest.fixture
def shown() -> Iterator[Shown]:
    shown = Shown()
    yield shown
    os.close(shown.end)


MANY = "for n in range(2000): print('line', n, {0!r} * 50, flush=n % 7 == 0)"


def test_lines_of_several_processes_are_whole_and_in_order(shown: Shown) -> None:
    shown.begin()
    processes = [shown.start(MANY.format(letter), worker) for worker, letter in enumerate("abc")]
    for _, process in processes:
        process.wait(END_SECONDS)
    lines = shown.rest().decode().splitlines()
    for worker, letter in enumerate("abc"):
        assert [line for line in lines if line.startswith(f"worker {worker}: ")] == [
            f"worker {worker}: line {n} {letter * 50}" for n in range(2000)
        ]
    assert len(lines) == 6_000


def test_a_flood_that_nothing_reads_blocks_no_process_and_is_counted(shown: Shown) -> None:
    code = "import sys\nfor n in range(200_000): sys.stdout.write(f'line {n} of many\\n')"
    _, other = shown.start("pass", 1)
    prints, process = shown.start(code, 0)
    assert process.wait(END_SECONDS) == 0 and other.wait(END_SECONDS) == 0, "it ends though nothing reads"
    wait_until(lambda: prints.reading < 0)
    assert prints.queued <= WAITING_BYTES * 2
    assert prints.last().endswith("line 199998 of many\nline 199999 of many")
    lines = shown.rest().decode().splitlines()
    whole = [line for line in lines if line.endswith("of many")]
    gaps = [line for line in lines if line.endswith("left out")]
    assert gaps and all(line.startswith("worker 0: ") for line in gaps)
    counted = sum(int(line.split()[2].replace(",", "")) for line in gaps)
    assert len(whole) + counted == 200_000 and len(whole) > 1000
    assert whole[0] == "worker 0: line 0 of many"


def test_a_flood_into_a_file_is_complete(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        reader = PrintReader(log.fileno())
        prints = reader.open(PrintedLines(lambda worker: "worker 0: "), 2)
        code = "import sys\nfor n in range(200_000): sys.stdout.write(f'line {n} of many\\n')"
        subprocess.run([sys.executable, "-c", code], stdout=prints.writing, timeout=END_SECONDS, check=True)
        prints.close_writing()
        reader.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [f"worker 0: line {n} of many" for n in range(200_000)]


def test_the_last_words_of_a_killed_process_are_known(shown: Shown) -> None:
    """The thread has shown nothing when `last` reads the words and the end of the pipe."""
    prints, process = shown.start("import os; os.write(2, b'\\xfflast words'); os.kill(os.getpid(), 9)", 0)
    with shown.reader._lock:
        process.wait(END_SECONDS)
        assert prints.last() == "\\xfflast words" and prints.reading < 0
    assert shown.rest() == b"\xfflast words\n", "the only worker has no name; the line is completed"


def test_a_closed_standard_error_does_not_matter() -> None:
    reading, writing = os.pipe()
    reader = PrintReader(writing)
    prints = reader.open(PrintedLines(lambda worker: ""), 1)
    os.close(writing)
    os.close(reading)
    code = "import sys\nfor n in range(50_000): sys.stdout.write(f'line {n} of many\\n')"
    subprocess.run([sys.executable, "-c", code], stdout=prints.writing, timeout=END_SECONDS, check=True)
    prints.close_writing()
    reader.close()
    assert prints.last().endswith("line 49999 of many")


def test_a_process_that_outlives_the_job_keeps_nothing_open(shown: Shown) -> None:
    before = open_files()
    prints, process = shown.start("import os, time; os.write(1, b'a\\n'); time.sleep(600)", 0)
    try:
        wait_until(lambda: prints.last() == "a")
        assert shown.rest() == b"a\n"
    finally:
        process.kill()
        process.wait()
    assert prints.reading < 0 and open_files() < before


def test_prints_from_elsewhere_have_names_and_a_bound(shown: Shown) -> None:
    prints = Prints(shown.reader, PrintedLines(lambda worker: "[worker 0, executor 1] "))
    prints.show(b"a\nb", False)
    prints.show(b"", True)
    for _ in range(100):
        prints.show(b"x" * 9999 + b"\n", False)
    assert prints.queued <= 2 * WAITING_BYTES
    lines = shown.rest().decode().splitlines()
    assert lines[:2] == ["[worker 0, executor 1] a", "[worker 0, executor 1] b"] and lines[-1].endswith("left out")
