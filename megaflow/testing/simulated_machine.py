"""Machine of a simulated launcher: a selector, signals, handles of processes, and the output file."""

from __future__ import annotations

import io
import selectors
import subprocess
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from megaflow.errors import ClusterError, ConfigMismatch
from megaflow.job.exit_report import ExitReport, KeptBins
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.wakeups import Signals, Wakeup
from megaflow.job.spec import Address
from megaflow.job.worker.snapshots.local_recovery import kept_bins
from megaflow.testing.simulated_links import SimulatedClient
from megaflow.testing.simulated_process import SimulatedProcess
from megaflow.timely.communication.client import Client


class SimulatedWakeup(Wakeup):
    """Wakeup without sockets."""

    def __init__(self) -> None:
        self.is_ready = False

    def wake(self) -> bool:
        """Make it ready."""
        self.is_ready = True
        return True

    def clear(self) -> None:
        """Make it unready."""
        self.is_ready = False

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SimulatedSignals(Signals, SimulatedWakeup):
    """Signals that the simulation sends: `handle(number, None)`."""


class SimulatedSelector(selectors.BaseSelector):
    """Selector that returns some of the registered objects that are ready (`is_ready`), in any order."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Watch an object."""
        assert fileobj not in self._keys, f"{fileobj} is watched already"
        self._keys[fileobj] = selectors.SelectorKey(fileobj, 0, events, data)
        return self._keys[fileobj]

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Stop watching an object."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return at least one of the objects that are ready, if there is one."""
        ready = [key for key in self._keys.values() if key.fileobj.is_ready]  # type: ignore[union-attr]
        some = self._random.sample(ready, self._random.randint(1, len(ready))) if ready else []
        return [(key, key.events) for key in some]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return the watched objects."""
        return self._keys

    @property
    def is_ready(self) -> bool:
        """Whether `select` would return something."""
        return any(each.is_ready for each in self._keys)


class SimulatedPopen:
    """The launcher's handle of a process that it has started."""

    def __init__(self, process: SimulatedProcess, pid: int) -> None:
        self.pid = pid
        self.stdin = io.BytesIO()
        self.process = process

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        return self.process.exit_code

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises TimeoutExpired if there is none, because waiting would not help."""
        if self.process.exit_code is None:
            raise subprocess.TimeoutExpired("a simulated process", timeout or 0.0)
        return self.process.exit_code

    def kill(self) -> None:
        """End the process."""
        self.process.kill()


class SimulatedPipe:
    """The launcher's end of the pipe for the exit report."""

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    @property
    def is_ready(self) -> bool:
        """Whether the process has ended."""
        return self._process.exit_code is not None

    def read(self) -> bool:
        """Return whether the process has ended."""
        return self.is_ready

    @property
    def stays(self) -> bool:
        """Whether the process waits for another part."""
        return self._process.descriptors is not None

    @property
    def kept(self) -> KeptBins | None:
        """Bins of the process, if it stays."""
        return None if self._process.descriptors is None else kept_bins(self._process.descriptors)

    def wait(self, seconds: float) -> bool:
        """Return whether the process stays; waiting would not change that."""
        return self.stays

    @property
    def report(self) -> ExitReport | None:
        """The process's report."""
        return self._process.report

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SimulatedChild(Child):
    """Child to which the launcher connects without sockets."""

    dial: Callable[[Address, str, dict[str, Any]], SimulatedClient]

    def connect(
        self, secret: bytes, timeout_seconds: float, is_at_work: Callable[[], bool] = lambda: False,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Client:  # fmt: skip
        """Connect. Raises ClusterError if the child does not answer."""
        try:
            self.client = self.dial(self.address, "launcher", {})
        except (OSError, ConfigMismatch) as error:
            raise ClusterError(f"{self} {self.how_it_ended()} before it began") from error
        return self.client


class SimulatedFile(io.StringIO):
    """File named by `--output`. `content` is what was flushed; it stays if the launcher is killed."""

    content = ""

    def flush(self) -> None:
        """Give the system what was written."""
        self.content = self.getvalue()
