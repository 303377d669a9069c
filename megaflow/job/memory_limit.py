"""Whether the kernel killed a process because a memory limit was exhausted, by its own counts.

1. For each control group, the kernel counts the processes that it killed because memory was exhausted: `oom_kill` in
   `memory.events` (version 2) or `memory.oom_control` (version 1). The workers are in the control group of their
   launcher.
2. If neither file can be read, `/proc/vmstat` has the count of the whole machine.
3. If SIGKILL ended a process and the count has grown since the process began, the limit is the likely reason.
4. In a container, a path of `/proc/self/cgroup` may begin with the mounted folder. The mount's root shows which part to
   omit.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from megaflow.quick_dataclass import dataclass

PROC: Final = Path("/proc")
UNLIMITED_BYTES: Final = 1 << 60  # version 1 has a number of this size if there is no limit
FILES: Final = {"cgroup2": ("memory.events", "memory.max"), "cgroup": ("memory.oom_control", "memory.limit_in_bytes")}
"""Files with the count and with the limit, by the type of the file system."""


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Location of this process's counts and limits."""

    counts: Path
    limits: tuple[Path, ...] = ()  # of the control group and the groups around it; empty: it has no group

    def kills(self) -> int | None:
        """Return how many processes the kernel has killed because memory was exhausted. None if it does not report it.
        """
        try:
            words = self.counts.read_text(encoding="ascii").split()
            return int(words[words.index("oom_kill") + 1])
        except (OSError, ValueError, IndexError):
            return None

    def text(self) -> str:
        """Return which memory was exhausted, and what to do: text that follows `was killed by SIGKILL`."""
        if (least := min(self._limits(), default=None)) is not None:
            remedy = "raise the limit, or run with more --processes"
            return f"because the memory limit of its control group, {size_text(least)}, was exhausted ({remedy})"
        where = "the machine, or a control group around this one," if self.limits else "the machine"
        return f"because {where} had no memory left (free memory, or run with fewer --processes)"

    def _limits(self) -> Iterator[int]:
        for path in self.limits:
            try:
                text = path.read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text.isdigit() and int(text) < UNLIMITED_BYTES:
                yield int(text)


def size_text(size: int) -> str:
    """Return a number of bytes for a message.

    >>> size_text(512 << 20), size_text(60_000_000)
    ('512 MiB', '57.2 MiB')
    """
    return f"{size / (1 << 20):.3g} MiB" if size < 1 << 30 else f"{size / (1 << 30):.3g} GiB"


def memory_limit(proc: Path = PROC) -> MemoryLimit:
    """Return where the counts of this process are. `proc` is the file system with the kernel's reports."""
    for kind, mount, folder in _folders(proc):
        count, limit = FILES[kind]
        if (folder / count).exists():
            around = [folder, *(each for each in folder.parents if each == mount or mount in each.parents)]
            return MemoryLimit(folder / count, tuple(each / limit for each in around))
    return MemoryLimit(proc / "vmstat")


def watch_kills(proc: Path = PROC) -> Callable[[], str]:
    """Return a function whose result names the exhausted memory if the kernel has killed a process since this call.

    Otherwise its result is "".
    """
    limit = memory_limit(proc)
    before = limit.kills()
    return lambda: limit.text() if before is not None and (limit.kills() or 0) > before else ""


def _folders(proc: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield the type, mount point and folder of the control groups that may count memory."""
    try:
        groups = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        mounts = (proc / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return
    paths = {names: path for _, names, path in (line.split(":", 2) for line in groups)}
    for line in mounts:
        before, _, after = line.partition(" - ")
        kind, *_, options = after.split()
        root, point = before.split()[3:5]
        names = "memory" if kind == "cgroup" and "memory" in options.split(",") else ""
        path = next((path for each, path in paths.items() if names in each.split(",")), None)
        if path is None or kind not in FILES or (kind == "cgroup" and not names):
            continue
        below = os.path.relpath(path, root)
        yield kind, Path(point), Path(point) if below.startswith("..") else Path(point, below)
