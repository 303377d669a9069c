"""The consumer of a job's results in another program, which reads them by the job's name.

1. Each row goes to one consumer. The first one that gets rows keeps the results, also after a crash or a restart of the
   launcher: a file beside the log has its name. Another consumer is refused, and the error names the first one.
2. One query of the consumer reads at a time. The next one may begin when the connection of the first one has ended. A
   reader that finds another one asks again for a while, because the connection of a query may end after the query.
3. A reader without a name belongs to the program that started the job, see `Run.results`. If it asks first, no consumer
   is accepted. The log distinguishes the queries of that program (`results_log`, rule 6).
"""

import os
from pathlib import Path
from typing import Final

from megaflow.control.results_messages import Claim, Claimed
from megaflow.durable.local_folder import sync_path
from megaflow.errors import CommandRefused
from megaflow.timely.communication.role_handlers import Connection

CONSUMER: Final = "consumer"  # file with the name


class ResultsConsumer:
    """The consumer of one log. The door's thread makes all calls; other threads read `name` and `is_reading`."""

    def __init__(self, folder: Path) -> None:
        """The log is in `folder`."""
        self.name = ""  # "": none yet
        self._path = folder / CONSUMER
        self._holder = ""  # the program of the present or last reader
        self._reader: Connection | None = None
        self._is_fixed = False  # it has received rows
        self._is_own = False  # the program that started the job reads

    def load(self) -> None:
        """Read the name that an earlier launcher has written. Raises OSError."""
        if self._path.exists():
            self.name, self._is_fixed = self._path.read_text(encoding="utf-8"), True

    @property
    def is_reading(self) -> bool:
        """Whether a query of the consumer is connected."""
        return self._reader is not None

    def claim(self, reader: Connection, asked: Claim) -> Claimed:
        """Give the results to a reader, or say which other one has them now. Raises CommandRefused."""
        if self._is_own:
            raise CommandRefused("The program that started the job reads its results itself, as run.results.")
        if self._is_fixed and asked.consumer != self.name:
            raise CommandRefused(self._refusal())
        if self._reader not in (None, reader):
            return Claimed(self._refusal())
        self.name, self._holder, self._reader = asked.consumer, asked.holder, reader
        return Claimed("")

    def check(self, reader: Connection) -> None:
        """Raise CommandRefused for a reader without a name if there is a consumer."""
        if reader is self._reader:
            return
        if self._is_fixed or self._reader is not None:
            raise CommandRefused(self._refusal())
        self.name, self._is_own = "", True

    def fix(self) -> None:
        """Note durably that the consumer receives rows. Raises OSError."""
        if self._reader is not None and not self._is_fixed:
            aside = self._path.with_suffix(".new")
            aside.write_text(self.name, encoding="utf-8")
            sync_path(aside)
            os.replace(aside, self._path)
            sync_path(self._path.parent)
            self._is_fixed = True

    def lost(self, reader: Connection) -> None:
        """Note the end of a connection."""
        if reader is self._reader:
            self._reader = None

    def _refusal(self) -> str:
        by = f" ({self._holder})" if self._holder else ""
        reads = "reads" if self.is_reading else "has read"
        return (
            f"The consumer {self.name!r}{by} {reads} the results of this job, and each row goes to one consumer. Read "
            "what its query has written, or stop that query and resume it with its checkpointLocation and "
            f".option('consumer', {self.name!r})."
        )
