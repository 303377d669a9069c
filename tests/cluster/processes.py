"""Engine programs as real processes: started, watched, and killed at the end whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent.parent
END_SECONDS = 30.0


@dataclass(frozen=True)
class Ended:
    """What is left of a process."""

    code: int
    output: str
    errors: str
    seconds: float  # from the start of the wait


class Reading(subprocess.Popen[str]):
    """A process whose output is read as it comes: lines that somebody waits for are not lost to who wants all.

    (`communicate` after a `readline` would lose them: it reads the pipe, and not what was read from it ahead.)
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        assert self.stdout is not None and self.stderr is not None
        self._output: list[str] = []
        self._errors: list[str] = []
        self._seen = 0  # lines of output that were waited for
        self._ended = False  # all its output is read
        self._came = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
            for pipe, lines in ((self.stdout, self._output), (self.stderr, self._errors))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, pipe: IO[str], lines: list[str]) -> None:
        with pipe:
            for line in pipe:
                with self._came:
                    lines.append(line)
                    self._came.notify_all()
        with self._came:
            self._ended |= lines is self._output
            self._came.notify_all()

    def read_line(self) -> str:
        """Wait for the next line of output; "" at its end."""
        with self._came:
            came = self._came.wait_for(lambda: self._seen < len(self._output) or self._ended, END_SECONDS)
            assert came, f"no line for {END_SECONDS:g} s, after {self._output}"
            line = "".join(self._output[self._seen : self._seen + 1])
            self._seen += len(line) > 0
        return line

    def await_line(self, wanted: str) -> None:
        """Wait until it has printed this line, after those that were waited for before."""
        while line := self.read_line():
            if line.rstrip("\n") == wanted:
                return
        raise AssertionError(f"it never printed {wanted!r}, but {self._output}; {''.join(self._errors)}")

    def end(self, seconds: float = END_SECONDS) -> "Ended":
        """Wait for its end; return what is left of it, with all that it has ever written."""
        began = time.monotonic()
        self.wait(seconds)
        for reader in self._readers:
            reader.join(seconds)
        return Ended(self.returncode, "".join(self._output), "".join(self._errors), time.monotonic() - began)

    def finish(self) -> None:
        """Kill it, if it still runs, and let go of its pipes."""
        self.kill()
        self.end()
        if self.stdin is not None:
            self.stdin.close()


class Programs:
    """The processes of one program."""

    def __init__(self, folder: Path, program: str | Path, words: Sequence[str], counts: Sequence[int]) -> None:
        hosts = folder / "hosts.txt"
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in free_ports(len(counts))))
        command = [sys.executable, str(program), *words, f"-n{len(counts)}", "-h", str(hosts)]
        self.processes = [
            Reading(
                [*command, f"-p{index}", f"-w{workers}"],
                cwd=ROOT,
                env={**os.environ, "MEGAFLOW_SECRET": "a secret of the tests", "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
            )
            for index, workers in enumerate(counts)
        ]

    def wait(self, index: int) -> Ended:
        """Wait for the end of one."""
        return self.processes[index].end()

    def wait_all(self) -> list[Ended]:
        """Wait for the end of all. Their output is read one after another: it must be small."""
        return [self.wait(index) for index in range(len(self.processes))]

    def succeed(self) -> str:
        """Wait for all; return what they wrote, unless one failed."""
        ended = self.wait_all()
        assert [each.code for each in ended] == [0] * len(ended), "\n".join(each.errors for each in ended)
        return "".join(each.output for each in ended)

    def read_line(self, index: int) -> str:
        """Wait for the next line of one."""
        return self.processes[index].read_line()

    def kill(self, index: int) -> None:
        """End one as the machine would: at once, without a word."""
        self.processes[index].send_signal(signal.SIGKILL)


@contextmanager
def programs(folder: Path, program: str | Path, *words: str, workers: Sequence[int] = (1, 1)) -> Iterator[Programs]:
    """Start one process for each number of workers; nothing of them is left when the block ends."""
    started = Programs(folder, program, words, workers)
    with ExitStack() as stack:
        for process in started.processes:
            stack.callback(process.finish)
        yield started


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
