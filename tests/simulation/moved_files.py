"""Durable jobs whose input files are renamed between two attempts, and removed once they are read.

Between two attempts the test renames files, moves them to other folders, links them, compresses them, and swaps their
names, wherever the job was killed. While a job runs, the test removes files that the newest checkpoint has read
completely, or gives their names to other files. All rules of `durable_jobs` hold here: each line counts once.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from megaflow.job.files.splits import find_files
from megaflow.testing.simulated_job import SimulatedJob
from tests.simulation import durable_jobs
from tests.simulation.durable_jobs import draw


class MovedAttempts(durable_jobs.Attempts):
    """The attempts of a job whose files move."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._names = 0
        self._moves = Random(f"names {seed}")
        self._input = folder
        super().__init__(seed, folder)

    def new_name(self) -> Path:
        """Return a path that no file ever had."""
        self._names += 1
        folder = self._input / self._moves.choice(["", "", "a", "b"])
        folder.mkdir(exist_ok=True)
        return folder / f"moved{self._names}"

    def job(self, flow: Callable[[Any], Any] = durable_jobs.dataflow, **options: Any) -> SimulatedJob:
        for _ in range(self._moves.choice([0, 1, 2, 4])):
            self.move()
        self._paths = [*find_files(str(self._input / "**"))]
        job = super().job(flow, **options)
        for _ in range(self._moves.choice([0, 1, 2])):
            job.at(self._moves.randint(50, 900), self.remove)
        return job

    def move(self) -> None:
        """Give a file another name, or several."""
        random = self._moves
        files = [Path(path) for path in find_files(str(self._input / "**"))]
        path, new = random.choice(files), self.new_name()
        match random.choice(["rename", "rename", "exchange", "link", "compress"]):
            case "rename":
                self.seen["renamed"] += 1
                path.rename(new.with_suffix(path.suffix))
            case "exchange" if len({each.suffix for each in files}) == 1:
                self.seen["exchanged"] += 1
                other = random.choice(files)
                path.rename(new)
                other.rename(path) if other != path else None
                new.rename(other)
            case "link":
                self.seen["linked"] += 1
                os.link(path, new.with_suffix(path.suffix))
            case "compress" if path.suffix != ".gz" and self.is_recorded(path) and path.stat().st_size:
                self.seen["compressed"] += 1
                status = path.stat()
                copy = Path(f"{path}.gz")
                copy.write_bytes(gzip.compress(path.read_bytes()))
                os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
                path.unlink()

    def is_recorded(self, path: Path) -> bool:
        """Return whether the file has only one name, and the newest checkpoint knows it by that name."""
        status = path.stat()
        stamp = status.st_dev, status.st_ino
        live = self.storage.live
        records = [] if live is None else [each for each in live.latest.splits if each.path == str(path)]
        return status.st_nlink == 1 and bool(records) and records[0].stamp[:2] == stamp

    def remove(self) -> None:
        """Remove a file that the newest checkpoint has read completely; perhaps another file takes its name."""
        live = self.storage.live
        records = () if live is None else live.latest.splits
        left = {each.path for each in records if each.start < each.end}
        done = [each.path for each in records if each.path not in left and os.path.exists(each.path)]
        if done and len(find_files(str(self._input / "**"))) > 1:
            path = Path(self._moves.choice(done))
            if path.stat().st_nlink == 1:
                self.seen["removed"] += 1
                path.unlink()


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    try:
        with tempfile.TemporaryDirectory(prefix="megaflow-moved-") as folder:
            attempts = MovedAttempts(seed, Path(folder))
            for _ in range(attempts.random.randint(1, durable_jobs.ATTEMPTS)):
                if attempts.live(draw(attempts.random, attempts.count)).outcome == "ended":
                    break
            attempts.end()
            return attempts.seen
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
