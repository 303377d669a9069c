"""A reader of the launcher's lines or items, with the part of the loop that uses it."""

from typing import Any

from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.launcher.inputs.line_reader import FIRST_LINES, LineReader
from megaflow.job.launcher.inputs.pulled_source import PulledItems, PulledLines
from megaflow.timely.communication.codec.decode import decode
from tests.bench import Bench


class ReaderBench(Bench):
    """A reader of lines."""

    def __init__(self, source: Any, ahead: int = FIRST_LINES) -> None:
        super().__init__("megaflow-lines")
        self.reader = LineReader(self.opened(source), self.woken.release)
        self.reader.ahead = ahead
        self.close = self.reader.close
        self.reader.start()

    def opened(self, source: Any) -> Any:
        return source if isinstance(source, FileLines) else PulledLines(source)

    def take(self) -> list[Any] | None:
        """Wait for the next lines; return None at the end."""
        while (taken := self.reader.take()) is not None and not taken[0]:
            self.wait()
        if taken is None:
            return None
        assert taken[1] == sum(len(line) + 1 for line in taken[0])
        return taken[0]

    def take_until(self, count: int) -> list[Any]:
        """Take at least `count` lines."""
        found: list[Any] = []
        while len(found) < count:
            some = self.take()
            assert some is not None, found
            found += some
        return found

    def take_all(self) -> list[Any]:
        return [line for some in iter(self.take, None) for line in some]


class ItemsBench(ReaderBench):
    """A reader of items."""

    def opened(self, source: Any) -> Any:
        return PulledItems(source)

    def take(self) -> list[Any] | None:
        taken = super().take()
        return None if taken is None else [*map(decode, taken)]
