"""Engine programs as real processes: started, watched, and killed at the end whatever happens."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
END_SECONDS = 30.0


@dataclass(frozen=True)
class Ended:
    """What is left of a process."""

    code: int
    output: str
    errors: str
    seconds: float  # from the start of the wait


class Programs:
    """The processes of one program."""

    def __init__(self, folder: Path, program: str | Path, words: Sequence[str], counts: Sequence[int]) -> None:
        hosts = folder / "hosts.txt"
        hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in free_ports(len(counts))))
        command = [sys.executable, str(program), *words, f"-n{len(counts)}", "-h", str(hosts)]
        self.processes = [
            subprocess.Popen(
                [*command, f"-p{index}", f"-w{workers}"],
                cwd=ROOT,
                env={**os.environ, "MEGAFLOW_SECRET": "a secret of the tests", "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index, workers in enumerate(counts)
        ]

    def wait(self, index: int) -> Ended:
        """Wait for the end of one."""
        began = time.monotonic()
        output, errors = self.processes[index].communicate(timeout=END_SECONDS)
        return Ended(self.processes[index].returncode, output, errors, time.monotonic() - began)

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
        stdout = self.processes[index].stdout
        assert stdout is not None
        return stdout.readline()

    def kill(self, index: int) -> None:
        """End one as the machine would: at once, without a word."""
        self.processes[index].send_signal(signal.SIGKILL)


@contextmanager
def programs(folder: Path, program: str | Path, *words: str, workers: Sequence[int] = (1, 1)) -> Iterator[Programs]:
    """Start one process for each number of workers; nothing of them is left when the block ends."""
    started = Programs(folder, program, words, workers)
    with ExitStack() as stack:
        for process in started.processes:
            stack.enter_context(process)
            stack.callback(process.kill)
        yield started


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
