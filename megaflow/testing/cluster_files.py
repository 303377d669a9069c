"""The lines of a simulated cluster, as files: one per partition, complete at the start or growing."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from megaflow.errors import UsageError
from megaflow.job.launcher.inputs.launcher_input import files_read
from megaflow.job.launcher.inputs.pulled_source import without_end
from megaflow.testing.simulated_reader import Wait

Lines: TypeAlias = str | PathLike[str] | Iterable[str | Wait] | Iterable[Iterable[str | Wait]]
"""Lines of one file or of several files; or a specification of real files, as for `megaflow run --lines`."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Text appended to a file some seconds after the run has begun."""

    seconds: float
    path: Path
    text: str


class ClusterFiles:
    """Folder with the files of all inputs; it is removed with this object."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="megaflow-simulated-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # unlike TemporaryDirectory, silent
        self.count = 0  # lines that a run reads, approximately
        self.growth: list[Growth] = []  # still to come, by time
        self.follows = False  # whether files grow

    def place(self, lines: Lines | Mapping[str, Lines] | None) -> Any:
        """Write the files of a run; return the value of `lines` for `megaflow.run`. Raises UsageError."""
        self.count, self.growth, self.follows = 0, [], False
        if lines is None:
            return None
        if isinstance(lines, Mapping):
            placed: Any = {name: self._write(str(name), each) for name, each in lines.items()}
        else:
            placed = self._write("lines", lines)
        self.growth.sort(key=lambda each: each.seconds)
        return placed

    def grow(self, seconds: float) -> None:
        """Append the text that is due by now."""
        while self.growth and self.growth[0].seconds <= seconds:
            each = self.growth.pop(0)
            with open(each.path, "a", encoding="utf-8", newline="") as file:
                file.write(each.text)

    def _write(self, name: str, lines: Lines) -> str | PathLike[str]:
        if isinstance(lines, str | PathLike):
            for path in files_read(fspath(lines)):
                self.count += 1 if isinstance(path, int) else max(1, Path(path).read_bytes().count(b"\n"))
            return lines
        folder = Path(self._folder, name)
        folder.mkdir(exist_ok=True)
        for number, partition in enumerate(partitions_of(lines)):
            self._write_partition(folder / f"part{number:04}", partition)
        return folder

    def _write_partition(self, path: Path, partition: list[str | Wait]) -> None:
        parts: list[tuple[float, str]] = [(0.0, "")]
        for each in partition:
            seconds, text = parts[-1]
            if isinstance(each, Wait):
                self.follows = True
                parts.append((seconds + each.seconds, ""))
            else:
                self.count += 1
                parts[-1] = seconds, f"{text}{each}\n"
        before = path.read_bytes().decode() if path.exists() else ""  # an earlier run has read it
        if not "".join(text for _, text in parts).startswith(before):
            before = ""
        had = len(before)
        start, *rest = parts
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(before + start[1][had:])
        had = max(0, had - len(start[1]))
        for seconds, text in rest:
            self.growth.append(Growth(seconds, path, text[had:]))
            had = max(0, had - len(text))


def partitions_of(lines: Iterable[Any]) -> list[list[str | Wait]]:
    """Return the partitions, without line ends. Raises UsageError if these are not lines.

    >>> partitions_of(["a\\n", "b"]), partitions_of([["a"], ["b"]]), partitions_of([])
    ([['a', 'b']], [['a'], ['b']], [[]])
    """
    if isinstance(lines, bytes) or not isinstance(lines, Iterable):
        raise UsageError(
            f"lines= must be an iterable of str, a list of such partitions, or a dict of these by the names of inputs, "
            f"not {lines!r:.80} ({type(lines).__name__})."
        )
    given = list(lines)
    if not given or any(isinstance(each, str | Wait) for each in given):
        given = [given]
    return [[_checked(line) for line in _items_of(partition)] for partition in given]


def _items_of(partition: Any) -> Iterable[Any]:
    if isinstance(partition, str | bytes | Mapping) or not isinstance(partition, Iterable):
        raise UsageError(f"A partition must be an iterable of str, not {partition!r:.80} ({type(partition).__name__}).")
    return chain(partition)


def _checked(line: Any) -> str | Wait:
    return line if isinstance(line, Wait) else without_end(line)
