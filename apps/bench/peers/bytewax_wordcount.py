"""Running counts on Bytewax: each record emits its key's new count.

    python apps/bench/peers/bytewax_wordcount.py FILE words|numbers PROCESSES THREADS [state=DIR]

Each worker reads its share of the lines, in batches. With a folder, and one process, Bytewax keeps its state there
with a snapshot each second, and resumes from it. The time is from the first batch read to the last count that came
out, over all workers, without the start of the processes.
Prints a line of JSON: {"records": …, "seconds": …, "peak_mb": …}, and with a folder also "first", the time of the
first count.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax._bytewax import cluster_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir

BATCH_LINES = 500
KIBIBYTES_PER_MEBIBYTE = 1024

began: list[float] = []  # when each worker of this process read its first batch, seconds
first: list[float] = []  # when the first count came out, for each worker
ended: list[float] = []  # when the last count came out
counted: list[int] = []


class Share(StatelessSourcePartition):  # type: ignore[misc]
    """The lines of one worker: every n-th line of the file."""

    def __init__(self, path: Path, index: int, workers: int) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._lines = islice(self._file, index, None, workers)
        self._first = True

    def next_batch(self) -> Iterable[str]:
        """Return the next lines. Raises StopIteration at the end."""
        if self._first:
            began.append(time.time())
            self._first = False
        batch = list(islice(self._lines, BATCH_LINES))
        if not batch:
            raise StopIteration
        return batch

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Lines(DynamicSource):  # type: ignore[misc]
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Share:
        """Return the part of one worker."""
        return Share(self._path, worker_index, worker_count)


class Tally(StatelessSinkPartition):  # type: ignore[misc]
    """Counts the outputs of one worker."""

    def __init__(self) -> None:
        self._records = 0
        self._last = 0.0

    def write_batch(self, items: list[Any]) -> None:
        """Count a batch."""
        self._last = time.time()
        if not self._records:
            first.append(self._last)
        self._records += len(items)

    def close(self) -> None:
        """Report the worker's count and time."""
        counted.append(self._records)
        if self._records:
            ended.append(self._last)


class Tallies(DynamicSink):  # type: ignore[misc]
    """A sink for each worker."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Tally:
        """Return the sink of one worker."""
        return Tally()


def count(total: int | None, n: int) -> tuple[int, int]:
    """Add one, as the fold of apps/wordcount.py does."""
    total = (total or 0) + n
    return total, total


def pairs_of_words(line: str) -> list[tuple[str, int]]:
    """Return the words of a line."""
    return [(word, 1) for word in line.split()]


def pair_of_number(line: str) -> tuple[str, int]:
    """Return the number of a line, as text, because keys must be text."""
    return line.rstrip("\n"), 1


def dataflow(path: Path, kind: str) -> Dataflow:
    """Build the dataflow."""
    flow = Dataflow("wordcount")
    lines = op.input("lines", flow, Lines(path))
    pairs = op.flat_map("words", lines, pairs_of_words) if kind == "words" else op.map("keys", lines, pair_of_number)
    op.output("out", op.stateful_map("count", pairs, count), Tallies())
    return flow


def run(
    path: Path, kind: str, addresses: list[str], process: int, threads: int, folder: str | None = None
) -> dict[str, Any]:
    """Run one process."""
    more: dict[str, Any] = {}
    if folder is not None:
        if not any(Path(folder).iterdir()):
            init_db_dir(Path(folder), threads)
        more = {"recovery_config": RecoveryConfig(folder), "epoch_interval": timedelta(seconds=1)}
    cluster_main(dataflow(path, kind), addresses, process, worker_count_per_proc=threads, **more)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    peak = sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / KIBIBYTES_PER_MEBIBYTE
    return {"began": min(began), "first": min(first), "ended": max(ended), "records": sum(counted), "peak_mb": peak}


def free_addresses(count: int) -> list[str]:
    """Return addresses that are free now. Bytewax opens them itself a moment later."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses


def main(path: str, kind: str, processes: str, threads: str, *place: str) -> None:
    """Start the other processes, or run as one of them (`place`: its number and all addresses)."""
    if place and place[0].startswith("state="):
        only = run(Path(path), kind, [], 0, int(threads), place[0].removeprefix("state="))
        print(json.dumps({**only, "seconds": only["ended"] - only["began"]}))
        return
    if place:
        print(json.dumps(run(Path(path), kind, list(place[1:]), int(place[0]), int(threads))))
        return
    addresses = free_addresses(int(processes)) if int(processes) > 1 else []
    command = [sys.executable, os.path.abspath(__file__), path, kind, processes, threads]
    others = [subprocess.Popen([*command, str(number), *addresses], stdout=subprocess.PIPE)
              for number in range(1, int(processes))]  # fmt: skip
    found = [run(Path(path), kind, addresses, 0, int(threads))]
    found += [json.loads(other.communicate()[0].splitlines()[-1]) for other in others]
    seconds = max(each["ended"] for each in found) - min(each["began"] for each in found)
    print(json.dumps({
        "records": sum(each["records"] for each in found),
        "seconds": seconds,
        "peak_mb": max(each["peak_mb"] for each in found),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
