"""Readings that come faster than they are used, with a buffer between, whose policy you choose.

python apps/buffered.py [POLICY [READINGS]] [-w WORKERS] [-n PROCESSES -p PROCESS]

POLICY is wait (the source waits, nothing is lost), grow, drop_newest, drop_oldest, fail (the program ends with an
error), or merge (the waiting readings become one, the highest).
"""

from collections.abc import Callable
from typing import Any

from megaflow.timely import (
    BufferHandle,
    Capability,
    Input,
    OperatorInfo,
    Output,
    Pipeline,
    Worker,
    execute_from_args,
)

_ROOM = 1000


def sending(readings: list[int]) -> Callable[[Capability, OperatorInfo], Callable[[Output[int]], None]]:
    """Return a source that sends as many records as there is room for, and keeps the rest."""

    def build(capability: Capability, info: OperatorInfo) -> Callable[[Output[int]], None]:
        left = readings

        def logic(output: Output[int]) -> None:
            nonlocal left
            if capability.held:
                left = output.session(capability).try_give(left)
                if not left:
                    capability.release()

        return logic

    return build


def slow(capability: Capability, info: OperatorInfo) -> Callable[[Input[int], Output[int]], None]:
    """Use one batch of readings in each run of this operator."""
    capability.release()

    def logic(input: Input[int], output: Output[int]) -> None:
        for time, batch in input:
            output.session(time).give_batch(batch)
            break  # the rest stays queued

    return logic


def main(worker: Worker) -> dict[str, int]:
    """Return how many readings this worker used, dropped, merged and kept waiting at most, and the highest one used."""
    policy: Any = worker.args[0] if worker.args else "wait"
    count = int(worker.args[1]) if len(worker.args) > 1 else 100_000
    mine = list(range(worker.index, count, worker.peers))
    told, used = BufferHandle(), list[int]()
    with worker.dataflow("buffered") as scope:
        readings = scope.source("Readings", sending(mine))
        if policy == "merge":
            buffered = readings.buffer(merge=max, handle=told)
        else:
            buffered = readings.buffer(None if policy == "grow" else _ROOM, policy, handle=told)
        probe = buffered.unary(Pipeline, "Slow", slow).inspect(used.append).probe()
    worker.step_while(lambda: not probe.done())
    found = {"used": len(used), "dropped": told.dropped, "merged": told.merged, "most": told.most, "highest": max(used)}
    figures = ", ".join(f"{key} {number}" for key, number in found.items())
    print(f"worker {worker.index}: {policy}: {figures}", flush=True)
    return found


if __name__ == "__main__":
    execute_from_args(main)
