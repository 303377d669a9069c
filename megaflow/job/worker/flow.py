"""Flow: what a user's dataflow function is given."""

from collections.abc import Callable, Sequence
from typing import Any

from megaflow.megaphone.routing import Numbered
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream


class Flow:
    """The place to start from: the lines, the control stream, the engine underneath."""

    def __init__(
        self,
        worker: Worker,
        scope: Scope,
        control: Stream[Numbered],
        args: Sequence[str],
        read: Callable[[], Stream[str]],
    ) -> None:
        """`read` builds the source of lines; it is called at most once."""
        self.worker = worker
        self.scope = scope
        self.control = control  # stateful operators take it by default
        self.args: list[Any] = list(args)  # what followed -- on the command line
        self._read = read
        self._lines: Stream[str] | None = None

    def lines(self) -> Stream[str]:
        """The lines of the job, each on one worker, without their ends. Called twice: the same stream."""
        if self._lines is None:
            self._lines = self._read()
        return self._lines

    @property
    def reads_lines(self) -> bool:
        """Whether `lines` was called."""
        return self._lines is not None
