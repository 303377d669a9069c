"""Number of Collatz steps from each number to 1: halve it when even, else triple it and add one. The time is the step.

python apps/collatz.py [LARGEST [MOST_STEPS]] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from megaflow.timely import ProbeHandle, Time, Worker, execute_from_args


def step(x: int) -> int:
    """Return the successor of `x`."""
    return x // 2 if x % 2 == 0 else 3 * x + 1


def main(worker: Worker) -> dict[int, int]:
    """Return the steps of the numbers that reached 1 on this worker."""
    largest = int(worker.args[0]) if worker.args else 9
    most_steps = int(worker.args[1]) if len(worker.args) > 1 else 1000
    steps: dict[int, int] = {}
    probe = ProbeHandle()

    def arrived(time: Time, start: int) -> None:
        assert isinstance(time, int)
        steps[start] = time + 1
        print(f"{start} takes {time + 1} steps\n", end="", flush=True)  # in one piece, as workers share the output

    with worker.dataflow("collatz") as scope:
        handle, back = scope.feedback(1)
        starts = scope.to_stream((x, x) for x in range(1 + worker.index, largest + 1, worker.peers))
        values = starts.concat(back).exchange(lambda pair: pair[1]).map(lambda pair: (pair[0], step(pair[1])))
        going, ended = values.branch(lambda time, pair: pair[1] == 1)
        going.branch_when(lambda time: time < most_steps - 1)[1].connect_loop(handle)
        ended.map(lambda pair: pair[0]).inspect_time(arrived).probe_with(probe)
    worker.step_while(lambda: not probe.done())
    return steps


if __name__ == "__main__":
    execute_from_args(main)
