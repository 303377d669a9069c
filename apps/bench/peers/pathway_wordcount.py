"""Running counts on Pathway, in streaming mode, which emits a key's count once for all records that came together.

    python apps/bench/peers/pathway_wordcount.py FILE words|numbers PROCESSES

The time is from the first line read until no work is left, without the start of the processes. `records` counts the
inputs. Prints one line of JSON: {"records": …, "seconds": …, "peak_mb": …}.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pathway as pw

AUTOCOMMIT_MS = 10
KIBIBYTES_PER_MEBIBYTE = 1024
began: list[float] = []  # when the first line was read, in the process that reads


class Line(pw.Schema):  # type: ignore[misc]
    """Schema of a line."""

    line: str


class Lines(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def run(self) -> None:
        """Pass on line by line. Called on a thread of Pathway."""
        began.append(time.time())
        with self._path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                self.next(line=line)


def run(path: Path, kind: str) -> dict[str, Any]:
    """Run one process."""
    lines = pw.io.python.read(Lines(path), schema=Line, autocommit_duration_ms=AUTOCOMMIT_MS)
    if kind == "words":
        keys = lines.select(key=pw.apply_with_type(str.split, list[str], pw.this.line)).flatten(pw.this.key)
    else:
        keys = lines.select(key=pw.apply_with_type(int, int, pw.this.line))
    counts = keys.groupby(pw.this.key).reduce(pw.this.key, total=pw.reducers.count())
    pw.io.null.write(counts)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    ended = time.time()
    status = Path("/proc/self/status")
    told = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    peak = sum(int(line.split()[1]) for line in told if line.startswith("VmHWM:")) / KIBIBYTES_PER_MEBIBYTE
    return {"began": min(began, default=None), "ended": ended, "peak_mb": peak}


def records_of(path: Path) -> int:
    """Return the number of words or numbers in a file."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        return sum(len(line.split()) for line in lines)


def main(path: str, kind: str, processes: str, *place: str) -> None:
    """Start the processes, or run as one of them."""
    if place:
        print(json.dumps(run(Path(path), kind)))
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        first_port = free.getsockname()[1]  # Pathway takes this port and the following ones, a moment later
    command = [sys.executable, os.path.abspath(__file__), path, kind, processes]
    shared = {"PATHWAY_THREADS": "1", "PATHWAY_PROCESSES": processes, "PATHWAY_FIRST_PORT": str(first_port)}
    children = [
        subprocess.Popen(
            [*command, str(number)],
            env={**os.environ, **shared, "PATHWAY_PROCESS_ID": str(number)},
            stdout=subprocess.PIPE,
        )
        for number in range(int(processes))
    ]
    found = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    start = min(each["began"] for each in found if each["began"] is not None)
    seconds = max(each["ended"] for each in found) - start
    record = {"records": records_of(Path(path)), "seconds": seconds, "peak_mb": max(each["peak_mb"] for each in found)}
    print(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
