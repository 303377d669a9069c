"""Plain Python loops with the same folds, each in a process of its own.

    python -m apps.bench.plain words FILE | numbers FILE | ints RECORDS | latency RATE SECONDS WARM_UP
    python -m apps.bench.plain echo FD | count FD

Imports only the standard library, so that the reported memory is that of the loop. Prints a line of JSON.
"""

import itertools
import json
import random
import selectors
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from apps.wordcount import count

TICK_SECONDS = 0.01
LATENCY_KEYS = 10_000
SEED = 11
BUFFER_BYTES = 1 << 16
KIBIBYTES_PER_MEBIBYTE = 1024


def count_words(path: Path) -> dict[str, Any]:
    """Count the words of lines."""
    began = time.perf_counter()
    totals: dict[str, int] = {}
    outputs = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            for word, n in [(word, 1) for word in line.split()]:
                totals[word], out = count(word, n, totals.get(word))
                outputs += len(out)
    return {"seconds": time.perf_counter() - began, "records": outputs}


def count_numbers(path: Path) -> dict[str, Any]:
    """Count numbers, one a line."""
    began = time.perf_counter()
    totals: dict[int, int] = {}
    outputs = 0
    with path.open(encoding="ascii") as lines:
        for line in lines:
            key = int(line)
            totals[key], out = count(key, 1, totals.get(key))
            outputs += len(out)
    return {"seconds": time.perf_counter() - began, "records": outputs}


def count_ints(records: int) -> dict[str, Any]:
    """Count `records` random ints that are in memory."""
    draw = random.Random(SEED).randrange
    keys = [draw(LATENCY_KEYS) for _ in range(2 * LATENCY_KEYS)]
    began = time.process_time()
    totals: dict[int, int] = {}
    outputs = 0
    for key in itertools.islice(itertools.cycle(keys), records):
        totals[key], out = count(key, 1, totals.get(key))
        outputs += len(out)
    return {"processor_seconds": time.process_time() - began, "records": outputs}


def keys_of_ticks(rate: float, ticks: int, seed: int, keys: int = LATENCY_KEYS) -> list[list[int]]:
    """Draw the keys of the records that are due at each tick."""
    rng = random.Random(seed)
    ends = [round(rate * TICK_SECONDS * (tick + 1)) for tick in range(ticks)]
    return [
        [rng.randrange(keys) for _ in range(end - start)] for start, end in itertools.pairwise((0, *ends))
    ]


def wait_latencies(rate: float, seconds: float, warm_up: float) -> dict[str, Any]:
    """Count keys that are due in ticks of 10 ms, even if the loop is behind; return the latencies: (ms, records)."""
    ticks = keys_of_ticks(rate, round((seconds + warm_up) / TICK_SECONDS), SEED)
    totals: dict[int, int] = {}
    late: list[tuple[float, int]] = []
    start = time.monotonic()
    for tick, keys in enumerate(ticks):
        due = start + tick * TICK_SECONDS
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
        outputs: Counter[float] = Counter()
        for key in keys:
            totals[key], out = count(key, 1, totals.get(key))
            outputs[due] += len(out)
        if due >= start + warm_up:
            late.append(((time.monotonic() - due) * 1000, outputs[due]))
    return {"late": late}


def echo(descriptor: int) -> dict[str, Any]:
    """Send all bytes back, and sleep until more come, until the other side closes."""
    with socket.socket(fileno=descriptor) as other, selectors.DefaultSelector() as selector:
        selector.register(other, selectors.EVENT_READ)
        while True:
            selector.select()
            data = other.recv(64)
            if not data:
                return {}
            other.send(data)


def count_lines(descriptor: int) -> dict[str, Any]:
    """Count the lines of each connection, and answer how many came. Never returns."""
    with socket.socket(fileno=descriptor) as listener:
        while True:
            threading.Thread(target=count_lines_of, args=(listener.accept()[0],), daemon=True).start()


def count_lines_of(other: socket.socket) -> None:
    """Count the lines of one connection."""
    with other:
        lines, buffer = 0, bytearray(BUFFER_BYTES)
        while size := other.recv_into(buffer):
            lines += buffer.count(b"\n", 0, size)
        other.sendall(f"{lines}\n".encode())


def peak_mb() -> float:
    """Return the most memory that this process has held, in MiB; 0.0 where the system does not report it.

    Does not use getrusage, whose maximum on Linux begins with the memory of the parent process.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / KIBIBYTES_PER_MEBIBYTE


def main(kind: str, *words: str) -> None:
    """Run one loop, and print its result."""
    match kind:
        case "words":
            record = count_words(Path(words[0]))
        case "numbers":
            record = count_numbers(Path(words[0]))
        case "ints":
            record = count_ints(int(words[0]))
        case "latency":
            record = wait_latencies(*map(float, words))
        case "count":
            record = count_lines(int(words[0]))
        case _:
            record = echo(int(words[0]))
    record["peak_mb"] = peak_mb()
    print(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
