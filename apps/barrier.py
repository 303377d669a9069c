"""A barrier: all workers do round after round, and none begins a round before all have ended the one before.

python apps/barrier.py [ROUNDS] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from collections.abc import Callable

from megaflow.timely import Capability, Input, OperatorInfo, Output, Pipeline, Worker, execute_from_args

Logic = Callable[[Input[int], Output[int]], None]


def rounds_of(rounds: int, begin: Callable[[int], object]) -> Callable[[Capability, OperatorInfo], Logic]:
    """Build the operator. Its capability is at the next round, its frontier at the round that all workers may begin."""

    def build(capability: Capability, info: OperatorInfo) -> Logic:
        def logic(input: Input[int], output: Output[int]) -> None:
            time = capability.time
            assert isinstance(time, int)
            if capability.held and not input.frontier.less_equal(time):
                begin(time)
                if time + 1 < rounds:
                    capability.downgrade(time + 1)
                else:
                    capability.release()

        return logic

    return build


def main(worker: Worker) -> list[int]:
    """Return the rounds in the order in which this worker began them."""
    rounds = int(worker.args[0]) if worker.args else 100
    begun: list[int] = []
    with worker.dataflow("barrier") as scope:
        handle, back = scope.feedback(1)
        barrier = back.unary_frontier(Pipeline(), "Barrier", rounds_of(rounds, begun.append))
        probe = barrier.probe()
        barrier.connect_loop(handle)
    worker.step_while(lambda: not probe.done())
    print(f"worker {worker.index}: {len(begun)} rounds", flush=True)
    return begun


if __name__ == "__main__":
    execute_from_args(main)
