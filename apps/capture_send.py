"""Capture of a stream: each worker sends its part over its own TCP connection, and capture_recv.py replays it.

python apps/capture_send.py PORT... [-w WORKERS] [-n PROCESSES -p PROCESS]        a port of this machine for each worker
"""

import socket
import time

from megaflow.errors import UsageError
from megaflow.timely import EventWriter, Worker, execute_from_args

_PATIENCE_SECONDS = 10.0
"""How long a receiver may take to listen."""


def main(worker: Worker) -> None:
    """Capture the numbers 0 to 9 into a connection to this worker's port."""
    if len(worker.args) != worker.peers:
        raise UsageError(f"{len(worker.args)} ports for {worker.peers} workers; give one for each")
    connection = connect(int(worker.args[worker.index]))
    with worker.dataflow("send") as scope:
        scope.to_stream(range(10)).capture_into(EventWriter(connection))


def connect(port: int) -> socket.socket:
    """Connect to a port of this machine, and retry while no process listens there."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


if __name__ == "__main__":
    execute_from_args(main)
