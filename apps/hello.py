"""Numbers go round the workers, round by round: the first program of timely dataflow.

python apps/hello.py [ROUNDS [PAUSE_MS]] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

import time

from megaflow.timely import InputHandle, ProbeHandle, Worker, execute_from_args


def main(worker: Worker) -> None:
    """Send a number each round from worker 0; print the numbers that come to this worker."""
    rounds = int(worker.args[0]) if worker.args else 10
    pause_ms = int(worker.args[1]) if len(worker.args) > 1 else 0
    numbers: InputHandle[int] = InputHandle()
    probe = ProbeHandle()
    with worker.dataflow("hello") as scope:
        (
            scope.input_from(numbers)
            .exchange(lambda x: x)
            .inspect(lambda x: print(f"worker {worker.index}: seen {x}\n", end="", flush=True))
            .probe_with(probe)
        )
    if worker.bootstrap():  # a worker that joined later only lends a hand
        return
    for number in range(rounds):
        if worker.index == 0:
            numbers.send(number)
            time.sleep(pause_ms / 1000)
        numbers.advance_to(number + 1)
        worker.step_while(lambda: probe.less_than(numbers.time))


if __name__ == "__main__":
    execute_from_args(main)
