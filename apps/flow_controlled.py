"""A loop as flow control: each number n becomes 0, 1, … n-1, but only when all work of earlier times is done.

python apps/flow_controlled.py [NUMBERS [ungated]] [-w WORKERS] [-n PROCESSES -p PROCESS]

No record goes around the loop, but its frontier does: it shows which times are still being worked on. Ungated, only the
queues' bounds keep the number of waiting records small, by records and not by times.
"""

from collections.abc import Callable

from megaflow.timely import Capability, Input, OperatorInfo, Output, Pipeline, ProbeHandle, Worker, execute_from_args

_NUMBERS_PER_TIME = 100


def gate(capability: Capability, info: OperatorInfo) -> Callable[[Input[int], Input[int], Output[int]], None]:
    """Hold the numbers of a time back until nothing of an earlier time is under way."""
    capability.release()
    stash: dict[Capability, list[int]] = {}

    def logic(numbers: Input[int], done: Input[int], output: Output[int]) -> None:
        for time, batch in numbers:
            stash.setdefault(time.retain(), []).extend(batch)
        for held in [held for held in stash if not done.frontier.less_equal(held.time)]:
            with held:
                output.session(held).give_batch(stash.pop(held))

    return logic


def main(worker: Worker) -> tuple[int, int]:
    """Return how many records were made here, and the most that were waiting at once."""
    numbers = int(worker.args[0]) if worker.args else 2000
    gated = "ungated" not in worker.args
    made = waiting = most = 0
    probe = ProbeHandle()

    def produce(n: int) -> range:
        nonlocal made, waiting, most
        made += n
        waiting += n
        most = max(most, waiting)
        return range(n)

    def consume(time: object, batch: list[int]) -> None:
        nonlocal waiting
        waiting -= len(batch)

    with worker.dataflow("flow_controlled") as scope:
        mine = scope.to_stream(range(worker.index, numbers, worker.peers))
        timed = mine.delay(lambda n, time: n // _NUMBERS_PER_TIME)
        handle, done = scope.feedback(1)
        if gated:
            timed = timed.binary_frontier(done, Pipeline(), Pipeline(), "Gate", gate)
        work = timed.flat_map(produce).inspect_batch(consume).filter(lambda n: False)
        work.probe_with(probe).connect_loop(handle)
    worker.step_while(lambda: not probe.done())
    print(f"worker {worker.index}: {made} records, at most {most} waiting", flush=True)
    return made, most


if __name__ == "__main__":
    execute_from_args(main)
