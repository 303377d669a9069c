"""Exit report: a worker process's statement of why it ends.

The report goes through a pipe of its own, which outlives the connections: a stopping process closes those first. The
launcher holds the reading end, and end of file there means the end of the process. A report fits a pipe's capacity, so
writing it never blocks.

A process that has lost others and reports this may stay when its workers have ended, to get a new part of the job. In
this case it writes after its report that it stays, and which bins it has. Its later output belongs to the new part.
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
from megaflow.own_files import close_own, own_pipe
from megaflow.quick_dataclass import dataclass

TEXT_CHARACTERS_MAX = 4_000  # the end of the text is kept; JSON makes up to 12 bytes of each, and a pipe has 64 KiB
BINS_CHARACTERS_MAX = 8_000
READ_BYTES = 64 * 1024
RANGES_SHOWN = 8  # of an operator's lost bins
END = b"\n"  # ends a report, and the lines that a staying process writes after it


KeptBins: TypeAlias = tuple[tuple[int, ...], ...]
"""Bins of several workers, in the order of their ids: for example, those of a process that stays."""


@dataclass(frozen=True, slots=True)
class ExitReport:
    """Why a process ended by itself."""

    # failed: an error; limit: a limit was reached; outage: an external system was out of reach for too long;
    # lost: other processes are gone; anew: a new process may succeed
    kind: Literal["failed", "limit", "outage", "lost", "anew"]
    text: str
    workers: tuple[int, ...] = ()  # those that are lost
    bins: str = ""  # the bins that they owned, by operator


def write_report(file: int | None, report: ExitReport) -> None:
    """Write a process's report. Do nothing if there is no pipe or no reader."""
    if file is None:
        return
    record = asdict(report) | {"text": report.text[-TEXT_CHARACTERS_MAX:], "bins": report.bins[:BINS_CHARACTERS_MAX]}
    with contextlib.suppress(OSError):
        os.write(file, json.dumps(record).encode())


def bins_text(operator: str, table: Sequence[int], workers: Collection[int]) -> str:
    """Return how many and which of an operator's bins these workers own, "" if none. `table` is bin -> worker.

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
    """Write after a process's report that it waits for another part, and which bins it has. Blocks until it is read."""
    with contextlib.suppress(OSError):
        os.write(file, END + json.dumps(kept).encode() + END)


class ReportPipe:
    """The launcher's end of the pipe, opened together with the process's end."""

    def __init__(self) -> None:
        self._reading, self.writing = own_pipe()  # `writing` is the child's end: close it here once the child runs
        os.set_blocking(self._reading, False)
        self.data = b""  # what the process has written so far

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the process reports or ends."""
        return self._reading

    def read(self) -> bool:
        """Read what the process has written. Return whether the process has ended."""
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
        """Whether the process has written, in the data read so far, that it waits for another part."""
        return self.data.endswith(END) and self.data.count(END) > 1

    @property
    def kept(self) -> KeptBins | None:
        """The bins of the process, if it stays."""
        return tuple(map(tuple, json.loads(self.data.split(END)[1]))) if self.stays else None

    def wait(self, seconds: float) -> bool:
        """Wait until the process ends or stays, at most so many seconds. Return whether it stays."""
        until = time.monotonic() + seconds
        while not self.read() and not self.stays and (left := until - time.monotonic()) > 0:
            select.select([self], [], [], left)
        return self.stays

    def begin_anew(self) -> None:
        """Discard the data read so far: later data belongs to another part."""
        self.data = b""

    @property
    def report(self) -> ExitReport | None:
        """The report read so far. None if there is none, or if it was cut short."""
        try:
            record = json.loads(self.data.partition(END)[0])
            return ExitReport(record["kind"], record["text"], tuple(record["workers"]), record["bins"])
        except (ValueError, KeyError, TypeError):
            return None

    def close_writing(self) -> None:
        """Close the process's end in the launcher, which does not write."""
        close_own(self.writing)

    def close(self) -> None:
        """Close the reading end."""
        if self._reading >= 0:
            file, self._reading = self._reading, -1  # first, so that it is closed once even if Ctrl-C comes between
            close_own(file)
