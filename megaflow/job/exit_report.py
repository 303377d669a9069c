"""A worker process's report of why it ends.

The report goes through a pipe of its own, which outlives the connections: what stops a process closes those first. The
launcher holds the reading end; its end of file is the process's end. A report fits a pipe's capacity, so writing it
never blocks.

A process that has lost others, and reports it, may stay when its workers have ended, to be given a part of the job
anew: then it says so behind its report, and which bins it has. What it writes later is another part's.
"""

import contextlib
import json
import os
import select
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Literal, TypeAlias

from megaflow.control.wording import ranges_text
from megaflow.quick_dataclass import dataclass

TEXT_CHARACTERS_MAX = 4_000  # of the end of the text; JSON makes up to 12 bytes of each, and a pipe has 64 KiB
BINS_CHARACTERS_MAX = 8_000
READ_BYTES = 64 * 1024
RANGES_SHOWN = 8  # of the bins of an operator that are lost
END = b"\n"  # of a report, and of what a process that stays says behind it


KeptBins: TypeAlias = tuple[tuple[int, ...], ...]
"""The bins of each of several workers, in the order of their ids: those that a process has which stays, for one."""


@dataclass(frozen=True, slots=True)
class ExitReport:
    """Why a process ended by itself."""

    # it failed; or it stops because it has lost others; or a new process may do what this one cannot
    kind: Literal["failed", "lost", "anew"]
    text: str
    workers: tuple[int, ...] = ()  # who is lost
    bins: str = ""  # the bins they owned, by operator


def write_report(file: int | None, report: ExitReport) -> None:
    """Write a process's report; nothing happens if there is no pipe or no reader."""
    if file is None:
        return
    record = asdict(report) | {"text": report.text[-TEXT_CHARACTERS_MAX:], "bins": report.bins[:BINS_CHARACTERS_MAX]}
    with contextlib.suppress(OSError):
        os.write(file, json.dumps(record).encode())


def bins_text(operator: str, table: Sequence[int], workers: Collection[int]) -> str:
    """Return how many of an operator's bins these workers own and which, "" if none; `table` is bin -> worker.

    >>> bins_text("count", [0, 0, 1, 1, 0], [1]), bins_text("count", [0], [1])
    ("2 of 5 bins of 'count' (2-3)", '')
    >>> bins_text("count", [0, 1] * 128, [1])
    "128 of 256 bins of 'count' (1,3,5,7,9,11,13,…,255)"
    """
    bins = [bin for bin, owner in enumerate(table) if owner in workers]
    if not bins:
        return ""
    ranges = ranges_text(bins).split(",")
    if len(ranges) > RANGES_SHOWN:
        ranges[RANGES_SHOWN - 1 : -1] = ["…"]
    return f"{len(bins)} of {len(table)} bins of {operator!r} ({','.join(ranges)})"


def say_stays(file: int, kept: KeptBins) -> None:
    """Say behind a process's report that it waits for another part, and what it has. Blocks until that is read."""
    with contextlib.suppress(OSError):
        os.write(file, END + json.dumps(kept).encode() + END)


class ReportPipe:
    """The launcher's end of the pipe, opened together with the process's end."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()  # the latter is the child's, and to be closed once it runs
        os.set_blocking(self._reading, False)
        self.data = b""  # what the process has written

    def fileno(self) -> int:
        """Return what becomes readable when the process reports or ends."""
        return self._reading

    def read(self) -> bool:
        """Read what the process has written; return whether it has ended."""
        while self._reading >= 0:
            try:
                data = os.read(self._reading, READ_BYTES)
            except BlockingIOError:
                return False
            if not data:
                break
            self.data += data
        return True

    @property
    def stays(self) -> bool:
        """Whether the process has said, of what was read, that it waits for another part."""
        return self.data.endswith(END) and self.data.count(END) > 1

    @property
    def kept(self) -> KeptBins | None:
        """What it has, if it stays."""
        if not self.stays:
            return None
        return tuple(map(tuple, json.loads(self.data.split(END)[1])))

    def wait(self, seconds: float) -> bool:
        """Wait until the process ends or stays, but no longer than that; return whether it stays."""
        until = time.monotonic() + seconds
        while not self.read() and not self.stays and (left := until - time.monotonic()) > 0:
            select.select([self], [], [], left)
        return self.stays

    def begin_anew(self) -> None:
        """Forget what was read: what comes now is of another part."""
        self.data = b""

    @property
    def report(self) -> ExitReport | None:
        """What was read; None if that is nothing, or was cut short."""
        try:
            record = json.loads(self.data.partition(END)[0])
            return ExitReport(record["kind"], record["text"], tuple(record["workers"]), record["bins"])
        except (ValueError, KeyError, TypeError):
            return None

    def close_writing(self) -> None:
        """Close the process's end in the launcher, which does not write."""
        os.close(self.writing)

    def close(self) -> None:
        """Close the reading end."""
        if self._reading >= 0:
            file, self._reading = self._reading, -1  # first: a Ctrl-C may come between, and it is closed once
            os.close(file)
