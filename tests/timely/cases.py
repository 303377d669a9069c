"""How the engine's acceptance cases are run: with threads, with real processes; their "random" input."""

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

from megaflow.front import Worker, execute
from megaflow.timely.execute import Config
from tests.timely.workers import EVERY, numbers

__all__ = ["EVERY", "edges", "numbers", "run_processes", "run_threads"]

ROOT = Path(__file__).resolve().parents[2]
_SECONDS_MAX = 60

_PROCESS = """
import importlib, pickle, socket, sys
from megaflow.front import execute
from megaflow.timely.execute import Config
module, function, descriptor, process, workers, *addresses = sys.argv[1:]
main = getattr(importlib.import_module(module), function)
listener = socket.socket(fileno=int(descriptor))
config = Config.cluster(addresses, int(process), int(workers), listener=listener)
sys.stdout.buffer.write(pickle.dumps(execute(config, main)))
"""


def run_threads(workers: int, main: Callable[[Worker], Any]) -> list[Any]:
    """Run `main` on so many threads of this process until all is done; return what each returned."""
    return execute(Config.process(workers), main)


def run_processes(main: Callable[[Worker], Any], processes: int = 2, workers: int = 1) -> list[Any]:
    """Like `run_threads`, in real processes, for a function of a module."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(processes)]
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _PROCESS, main.__module__, main.__qualname__, str(listener.fileno())]
                    + [str(process), str(workers), *addresses],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    pass_fds=(listener.fileno(),),
                )
            )
            for process, listener in enumerate(listeners)
        ]
        try:
            outputs = [each.communicate(timeout=_SECONDS_MAX)[0] for each in started]
        finally:
            for each in started:
                each.kill()
        assert [each.returncode for each in started] == [0] * processes
        return [result for output in outputs for result in pickle.loads(output)]


def edges(nodes: int, count: int) -> list[tuple[int, int]]:
    """So many pairs of the generator's values, each below `nodes`, in the order drawn."""
    drawn = [value % nodes for value in islice(numbers(), 2 * count)]
    return list(zip(drawn[::2], drawn[1::2]))
