"""Standard output and standard error of a process with several workers: whole lines that name their worker.

Python's own stream passes on the pieces of a `print` one by one, so two threads can mix their lines. Here each thread
collects its line, and the stream writes it at once. The thread of a worker marks its lines (see
`megaflow.job.launcher.processes.printed_lines`), so that the launcher can name the worker.

1. An incomplete line waits for its end, up to LINE_CHARACTERS_MAX. A longer one is cut, without an empty line after it.
   A flush writes it, so a progress message appears at once. A line of another thread then comes after a line end.
2. Bytes written to `buffer`, and those of other programs, come as they are. The launcher names the process then.
3. The end of the process completes all lines.
4. If incomplete lines are held, a text that begins with MARK is a record of logging: it is a line by itself, and the
   line that its thread has begun goes on after it.
"""

import atexit
import io
import threading
from collections.abc import Callable
from typing import BinaryIO, Final, TextIO, TypeAlias

from megaflow.job.log_records import MARK, places

LINE_CHARACTERS_MAX: Final = 16 * 1024

Render: TypeAlias = Callable[[str, int | None], str]
"""Returns what stands for a line that a worker's thread, or another thread, has printed."""


def marked(line: str, worker: int | None) -> str:
    """Return a line with the mark of its worker."""
    return line if worker is None else f"{MARK}{worker}{MARK}{line}"


Key: TypeAlias = tuple[int, int]  # a thread and its worker; another thread may get the number of one that has ended


def key_of(worker: int | None) -> Key:
    """Return the key of this thread."""
    return threading.get_ident(), -1 if worker is None else worker


class WorkerText(io.TextIOWrapper):
    """The stream; it takes the place of another one and its buffer."""

    def __init__(self, stream: TextIO, render: Render = marked, holds: bool = False) -> None:
        """`holds`: a flush does not write incomplete lines."""
        buffer: BinaryIO = stream.detach()  # type: ignore[attr-defined]
        super().__init__(buffer, encoding=stream.encoding, errors="backslashreplace", line_buffering=True)
        self._render = render
        self._holds = holds
        self._begun: dict[Key, tuple[str, int | None]] = {}  # the beginnings of lines
        self._cut: set[Key] = set()  # threads whose last line was cut
        self._open: Key | None = None  # thread of which a flush has written the beginning of a line
        atexit.register(self.end_lines)

    def write(self, text: str, /) -> int:
        """Write the lines that this text completes."""
        worker = places.here.worker
        key = key_of(worker)
        if self._holds and text.startswith(MARK):
            self._put(text.removesuffix("\n").split("\n"), key, worker)
            return len(text)
        before, _ = self._begun.pop(key, ("", None))
        *lines, rest = (before + text.removeprefix("\n" if key in self._cut else "")).split("\n")
        self._cut.discard(key)
        if len(rest) > LINE_CHARACTERS_MAX:
            lines.append(rest)
            self._cut.add(key)
        elif rest:
            self._begun[key] = rest, worker
        if lines:
            self._put(lines, key, worker)
        return len(text)

    def flush(self) -> None:
        """Write also the incomplete line of this thread."""
        key = key_of(places.here.worker)
        if not self._holds and key in self._begun:
            line, worker = self._begun.pop(key)
            self._put([line], key, worker, "")
            self._open = key
        super().flush()

    def write_rendered(self, text: str) -> None:
        """Write lines as they are."""
        super().write(text)

    def end_lines(self) -> None:
        """Complete all lines."""
        while self._begun:
            key, (line, worker) = self._begun.popitem()
            self._put([line], key, worker)
        if self._open is not None:
            super().write("\n")

    def _put(self, lines: list[str], key: Key, worker: int | None, end: str = "\n") -> None:
        """Write a thread's lines in one call, because another thread may write meanwhile."""
        opened, self._open = self._open, None
        first = [] if opened != key else [lines.pop(0)]  # it continues the open line
        text = "\n".join(first + [self._render(line, worker) for line in lines])
        super().write(("\n" if opened not in (None, key) else "") + text + end)
