"""Replay of the streams that capture_send.py captured, by any number of workers, which count the records of each time.

python apps/capture_recv.py SENDERS [PORT...] [-w WORKERS] [-n PROCESSES -p PROCESS]     a port for each sender, or any
"""

import socket
from collections import Counter
from collections.abc import Callable

from megaflow.errors import UsageError
from megaflow.timely import (
    Capability,
    EventReader,
    Exchange,
    Input,
    OperatorInfo,
    Output,
    Worker,
    execute_from_args,
)


def main(worker: Worker) -> None:
    """Accept the connections of this worker's senders, replay them, and let worker 0 count."""
    senders, *ports = [int(word) for word in worker.args] or [1]
    if ports and len(ports) != senders:
        raise UsageError(f"{len(ports)} ports for {senders} senders; give one for each, or none at all")
    listeners = []
    for sender in range(worker.index, senders, worker.peers):
        listeners.append(socket.create_server(("127.0.0.1", ports[sender] if ports else 0)))
        say(f"sender {sender}: port {listeners[-1].getsockname()[1]}")
    readers = [EventReader(listener.accept()[0]) for listener in listeners]
    for listener in listeners:
        listener.close()
    with worker.dataflow("receive") as scope:
        (
            scope.replay(readers)
            .inspect(lambda x: say(f"worker {worker.index}: replayed {x}"))
            .unary_frontier(Exchange(lambda x: 0), "Count", count)
            .inspect_time(lambda time, records: say(f"time {time}: {records} records"))
        )


def count(capability: Capability, info: OperatorInfo) -> Callable[[Input[int], Output[int]], None]:
    """Count the records of each time; send the count once the time is complete."""
    capability.release()
    counts: Counter[Capability] = Counter()

    def logic(input: Input[int], output: Output[int]) -> None:
        for time, batch in input:
            counts[time.retain()] += len(batch)
        for held in [held for held in counts if not input.frontier.less_equal(held.time)]:
            with held:
                output.session(held).give(counts.pop(held))

    return logic


def say(text: str) -> None:
    """Print a line in one piece, while other threads print as well."""
    print(f"{text}\n", end="", flush=True)


if __name__ == "__main__":
    execute_from_args(main)
