"""What the engine's acceptance cases share: their inputs, and threads or processes to run them on."""

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from megaflow.program import Worker, execute
from megaflow.timely.runtime import Config
from tests.timely.workers import numbers

R = TypeVar("R")

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS_MAX = 60

_PROCESS = """
import importlib, pickle, socket, sys
from megaflow.program import execute
from megaflow.timely.runtime import Config
module, function, descriptor, process, workers, *addresses = sys.argv[1:]
main = getattr(importlib.import_module(module), function)
listener = socket.socket(fileno=int(descriptor))
config = Config.cluster(addresses, int(process), int(workers), listener=listener, secret=b"a secret of the tests")
sys.stdout.buffer.write(pickle.dumps(execute(config, main)))
"""


def run_threads(workers: int, main: Callable[[Worker], R], *args: str) -> list[R]:
    """Run `main` on so many workers, threads of this process; what each returned."""
    return execute(Config.process(workers), main, args)


def run_processes(main: Callable[[Worker], R], processes: int = 2, workers: int = 1) -> list[R]:
    """Like `run_threads` for a function of a module, in real processes with so many workers each."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(processes)]
        addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        started = []
        for process, listener in enumerate(listeners):
            words = [main.__module__, main.__qualname__, str(listener.fileno()), str(process), str(workers)]
            command = [sys.executable, "-c", _PROCESS, *words, *addresses]
            child = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, pass_fds=[listener.fileno()])
            started.append(stack.enter_context(child))
            stack.callback(child.kill)
        outputs = [child.communicate(timeout=_SECONDS_MAX)[0] for child in started]
        assert [child.returncode for child in started] == [0] * processes
        return [result for output in outputs for result in pickle.loads(output)]


def edges(nodes: int, count: int) -> list[tuple[int, int]]:
    """`edges(n, m)` of the cases: m pairs of numbers below n, in the order in which they are drawn."""
    drawn = numbers()
    return [(source % nodes, target % nodes) for source, target in islice(zip(drawn, drawn), count)]


def taking(capability: Any, info: Any) -> Any:
    """The logic of an operator that passes everything on, and never asks whether there is room."""
    capability.release()

    def logic(source: Any, output: Any) -> None:
        for reference, batch in source:
            output.session(reference).give_batch(batch)

    return logic
