"""A folder of this machine in the place of a simulated disk: the same happens to it, but no power is lost."""

import errno
import os
from collections.abc import Callable
from typing import Any

from megaflow.durable.local_folder import LocalFolder
from megaflow.testing.simulated_disk import Happening, SimulatedFolder

OPERATIONS = ("create", "write", "sync", "close", "link", "remove", "sync_names", "lengths", "read")


class RealDisk:
    """What `SimulatedDisk` is to a scene, with real files."""

    capacity = None  # what is set here is not kept
    failing = 0.0  # of each operation: none fails by chance

    def __init__(self, path: str) -> None:
        self.path = path
        self.steps: list[str] = []
        self.happenings: dict[int, Happening] = {}
        self._views: list[RealFolder] = []

    def open(self) -> "RealFolder":
        """Return a view for a process of its own."""
        self._views.append(RealFolder(self))
        return self._views[-1]

    def lose_power(self) -> None:
        """End all processes, no more: this machine goes on."""
        for view in self._views:
            view.crashed = True

    def used(self) -> int:
        """Return how many bytes there are in files."""
        return sum(entry.stat().st_size for entry in os.scandir(self.path))

    def close(self) -> None:
        """Let go of all that is open."""
        for view in self._views:
            view.close_folder()


class RealFolder(LocalFolder):
    """A `LocalFolder` whose every operation is a step."""

    def __init__(self, disk: RealDisk) -> None:
        super().__init__(disk.path)
        self.crashed = False
        self._disk = disk

    def _ended(self) -> None:
        """Nothing is this process's alone: no job is in a scene, so nobody holds a lock."""


def stepped(name: str) -> Callable[..., Any]:
    """An operation to which something may happen, as on the simulated disk."""
    operation = getattr(LocalFolder, name)

    def run(self: Any, *args: Any) -> Any:
        if name == "close":
            os.close(args[0])  # whatever happens: of the processes that have crashed here, none is gone
        fails_after = SimulatedFolder._step(self, f"{name} {args}")
        result = None if name == "close" else operation(self, *args)
        if fails_after:
            if name == "create":
                os.close(result)
            raise OSError(errno.EIO, "done, and failed", str(args))
        return result

    return run


for each in OPERATIONS:
    setattr(RealFolder, each, stepped(each))

