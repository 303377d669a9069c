"""Runs an engine program on several processes, which find each other at ports that were free.

    run_cluster(main, processes=2, args=["100"])

`main(worker)` is a module-level function and returns a value that JSON can represent.
"""

import importlib
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from apps.bench.workload import ROOT
from megaflow.timely import Config, Worker, execute

SECONDS_MAX = 300.0


def run_cluster(main: Callable[[Worker], Any], processes: int, args: Sequence[object] = ()) -> list[Any]:
    """Run the program with one worker in each process; return the result of each. Raises RuntimeError if one fails."""
    environment = {**os.environ, "MEGAFLOW_SECRET": secrets.token_hex(16)}
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(processes)]
        addresses = ",".join(f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
        children = []
        for process, listener in enumerate(listeners):
            words = [main.__module__, main.__qualname__, str(listener.fileno()), str(process), addresses]
            child = subprocess.Popen(
                [sys.executable, "-m", "apps.bench.cluster", *words, *map(str, args)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
            children.append(stack.enter_context(child))
            stack.callback(child.kill)
        for listener in listeners:
            listener.close()
        outputs = [child.communicate(timeout=SECONDS_MAX)[0] for child in children]
    if any(child.returncode for child in children):
        raise RuntimeError(f"{main.__qualname__} failed: exit codes {[child.returncode for child in children]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def run_process(module: str, function: str, descriptor: str, process: str, addresses: str, *args: str) -> None:
    """Run as one of the processes."""
    main = getattr(importlib.import_module(module), function)
    listener = socket.socket(fileno=int(descriptor))
    config = Config.thread()
    if "," in addresses:
        config = Config.cluster(addresses.split(","), int(process), listener=listener)
    [found] = execute(config, main, args)
    listener.close()
    print(json.dumps(found))


if __name__ == "__main__":
    run_process(*sys.argv[1:])
