"""The outputs of a simulated cluster, as records: they outlive the launcher, as files do."""

from __future__ import annotations

from random import Random
from typing import Any

from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.spec import Form


class KeptOutput:
    """The records of one output, through all lives of a job."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.begun = 0  # how many of them there were before the present run
        self._synced = 0  # how many of them no loss of power takes

    def begin(self) -> None:
        """Begin another run."""
        self.begun = len(self.records)

    def sync(self) -> int:
        """Make all durable; return how many there are."""
        self._synced = len(self.records)
        return self._synced

    def cut_back(self, length: int) -> None:
        """Forget what came later."""
        del self.records[length:]
        self.begun, self._synced = min(self.begun, length), min(self._synced, length)

    def lose_power(self, random: Random) -> None:
        """Lose some of what was not synced."""
        del self.records[random.randint(self._synced, len(self.records)) :]

    @property
    def of_run(self) -> list[Any]:
        """The records of the present run."""
        return self.records[self.begun :]


class RecordWriter(Writer):
    """Writes to one of them, in one life of a launcher."""

    form: Form = "records"
    unit = "record"

    def __init__(self, output: KeptOutput, name: str) -> None:
        self.name = f"records {name}".strip()  # in the store
        self._output = output

    def hold(self, take_over: bool = False) -> int:
        """Return how many records there are."""
        return len(self._output.records)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Keep them."""
        self._output.records += records

    def sync(self) -> int:
        """Make all durable; return how many there are."""
        return self._output.sync()

    def cut_back(self, length: int) -> None:
        """Forget what came later."""
        self._output.cut_back(length)
