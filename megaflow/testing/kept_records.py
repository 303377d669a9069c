"""The outputs of a simulated cluster, as records that outlast the launcher, as files do."""

from __future__ import annotations

from random import Random
from typing import Any

from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form


class KeptOutput:
    """Records of one output, over all attempts of a job."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.begun = 0  # number of records before the present run
        self._synced = 0  # number of records that survive a loss of power

    def begin(self) -> None:
        """Begin another run."""
        self.begun = len(self.records)

    def sync(self) -> int:
        """Make all records durable; return their number."""
        self._synced = len(self.records)
        return self._synced

    def cut_back(self, length: int) -> None:
        """Forget the records after this number."""
        del self.records[length:]
        self.begun, self._synced = min(self.begun, length), min(self._synced, length)

    def lose_power(self, random: Random) -> None:
        """Lose some of the records that were not synced."""
        del self.records[random.randint(self._synced, len(self.records)) :]

    @property
    def of_run(self) -> list[Any]:
        """Records of the present run."""
        return self.records[self.begun :]


class RecordWriter(Writer):
    """Writer to a `KeptOutput`, in one attempt of a launcher."""

    form: Form = "records"
    unit = "record"

    def __init__(self, output: KeptOutput, name: str) -> None:
        self.name = f"records {name}".strip()  # in the store
        self._output = output

    def hold(self, take_over: bool = False) -> int:
        """Return the number of records."""
        return len(self._output.records)

    def write(self, epoch: int, records: list[Any]) -> None:
        """Keep the records."""
        self._output.records += records

    def sync(self) -> int:
        """Make all records durable; return their number."""
        return self._output.sync()

    def cut_back(self, length: int) -> None:
        """Forget the records after this number."""
        self._output.cut_back(length)
