"""A folder of this machine instead of a simulated disk: the same faults occur, except the loss of power."""

import errno
import os
from collections.abc import Callable
from typing import Any

from megaflow.durable.local_folder import LocalFolder
from megaflow.testing.simulated_disk import Happening, SimulatedFolder

OPERATIONS = ("create", "write", "sync", "close", "link", "remove", "sync_names", "lengths", "read")


class RealDisk:
    """The interface of `SimulatedDisk` for a scene, with real files."""

    capacity = None  # setting it has no effect
    failing = 0.0  # of each operation: none fails by chance

    def __init__(self, path: str) -> None:
        self.path = path
        self.steps: list[str] = []
        self.happenings: dict[int, Happening] = {}
        self._views: list[RealFolder] = []

    def open(self) -> "RealFolder":
        """Return a view for one process."""
        self._views.append(RealFolder(self))
        return self._views[-1]

    def lose_power(self) -> None:
        """End all processes. This machine keeps its files."""
        for view in self._views:
            view.crashed = True

    def used(self) -> int:
        """Return the number of bytes in files."""
        return sum(entry.stat().st_size for entry in os.scandir(self.path))

    def close(self) -> None:
        """Close all open files."""
        for view in self._views:
            view.close_folder()


class RealFolder(LocalFolder):
    """A `LocalFolder` whose every operation is a step."""

    def __init__(self, disk: RealDisk) -> None:
        super().__init__(disk.path)
        self.crashed = False
        self._disk = disk

    def _ended(self) -> None:
        """Do nothing: scenes have no jobs, so no process holds a lock."""


def stepped(name: str) -> Callable[..., Any]:
    """Return an operation at which faults can be planned, as on the simulated disk."""
    operation = getattr(LocalFolder, name)

    def run(self: Any, *args: Any) -> Any:
        if name == "close":
            os.close(args[0])  # in any case, because the crashed processes of a test do not really end
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

