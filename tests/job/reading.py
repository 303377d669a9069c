"""Records as workers read them: from the splits of a file, from a growing file, and from pushed lines.

Several readers may share one input. Each reads a part, and the next one continues where it stopped.
"""

import bz2
import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megaflow.control.messages import ParserPlace, PushedEnded, Split
from megaflow.job.files.followed_files import FollowedFile, FollowedFiles
from megaflow.job.files.splits import plan_splits
from megaflow.job.files.stream_reader import reader_of
from megaflow.job.formats.record_format import RecordFormat
from megaflow.job.formats.text_lines import Text
from megaflow.job.launcher.inputs.file_lines import TextSplitter
from megaflow.job.worker.reading.line_queue import LineQueue
from megaflow.job.worker.reading.staging import Staging

COMPRESS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
ENCODE = {**COMPRESS, ".utf-16": lambda data: data.decode().encode("utf-16")}


class Counted:
    """Counts the faults that a job skips, and the remarks."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.kinds = Counter[str]()

    def __call__(self, text: Callable[[], str]) -> None:
        self.texts.append(text())

    def count(self, kind: str, count: int, text: Callable[[], str] | None) -> None:
        self.kinds[kind] += count


def queue_of(*splits: Split, format: RecordFormat) -> LineQueue:
    """Return the queue of a worker that reads these splits."""
    queue = LineQueue(Staging(0))
    queue.streams.formats[""] = format
    queue.assign(splits)
    return queue


def pushed_to(format: RecordFormat, places: tuple[ParserPlace, ...] | None = None, piped: bool = True) -> LineQueue:
    """Return the queue of a worker that reads the launcher's lines, from the first one on if there are no places."""
    queue = queue_of(format=format)
    queue.streams.piped = ("",) if piped else ()
    queue.expect_pushed(places is None, places or ())
    return queue


def places_of(queue: LineQueue) -> tuple[ParserPlace, ...]:
    """Return the places from which the next worker continues."""
    [report] = queue.take_reports()
    assert isinstance(report, PushedEnded) and report.elsewhere
    return report.places


def read(queue: LineQueue, batches: int = 10_000) -> list[Any]:
    """Return the records of at most `batches` batches of a queue."""
    records = []
    for _ in range(batches):
        if (taken := queue.take(0.0)) is None:
            break
        records += taken[0]
    return records


def read_in_turns(
    path: Path, format: RecordFormat, block_bytes: int, steps: list[int], encoding: str = "", errors: str = "strict"
) -> tuple[list[Any], int]:
    """Return the records of a file, and how many lines were left out.

    Each reader takes as many records as the next of `steps` says. Without a step, a reader takes the rest.
    """
    records, left_out, left = list[Any](), 0, (plan_splits([str(path)], None, encoding) or [None])[0]
    taken = iter(steps)
    while left is not None:
        step = next(taken, None)
        reader = reader_of(left, errors, block_bytes, format)
        here = list[Any]()
        while (step is None or len(here) < step) and (batch := reader.next_batch()):
            here += batch
        untaken = max(0, len(here) - step) if step is not None else 0
        reader.note(untaken)
        left = reader.rest(untaken)
        records += here[: len(here) - untaken]
        left_out += reader.take_left_out()
        reader.close()
    return records, left_out


def read_growing(
    source: FollowedFiles, path: Path, data: bytes, sizes: list[int], moves: list[bool], limit: int
) -> tuple[list[Any], FollowedFile]:
    """Return the records of a file that grows to `data` by pieces of these sizes, and its reader.

    A true entry in `moves` closes the reader, and another one continues.
    """
    path.write_bytes(b"")
    inode = path.stat().st_ino
    reader, position, records, at, moving = FollowedFile(source, inode, None), None, list[Any](), 0, [*moves]
    for size in [*sizes, len(data)]:
        if moving and moving.pop() and position is not None:
            reader.close()
            reader = FollowedFile(source, inode, position)
        with path.open("ab") as file:
            file.write(data[at : at + size])
        at += size
        while isinstance(answer := reader.read(limit), tuple):
            records += answer[0]
            position = answer[1]
    return records, reader


def read_pushed(data: bytes, format: RecordFormat, sizes: list[int], moves: list[bool]) -> tuple[list[Any], LineQueue]:
    """Return the records of standard input that comes in pieces of these sizes, and the queue of its last worker.

    A true entry in `moves` ends the lines of the worker, and another one continues. The number of bytes decides
    whether the last line is read before or after the end is known.
    """
    splitter, at, moving = TextSplitter(Text("standard input")), 0, [*moves]
    records, queue = list[Any](), pushed_to(format)
    for size in [*sizes, len(data)]:
        queue.push(splitter.feed(data[at : at + size]))
        at += size
        records += read(queue)
        if moving and moving.pop():
            queue.end_pushed(elsewhere=True)
            records += read(queue)
            queue = pushed_to(format, places_of(queue))
    queue.push(splitter.end())
    if len(data) % 2:
        records += read(queue)
    queue.end_pushed()
    records += read(queue)
    assert queue.take_reports() == [PushedEnded()]
    return records, queue
