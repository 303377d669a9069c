"""Numbers go from worker to worker around a loop, one larger each time.

python apps/pingpong.py [ROUNDS [NUMBERS]] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from megaflow.timely import ProbeHandle, Worker, execute_from_args


def main(worker: Worker) -> tuple[int, list[int]]:
    """Send 0, 1, … around so many times; return how many records came by here, and the last ones."""
    rounds = int(worker.args[0]) if worker.args else 1000
    numbers = int(worker.args[1]) if len(worker.args) > 1 else 100
    passed = 0
    last: list[int] = []
    probe = ProbeHandle()

    def count(time: object, batch: list[int]) -> None:
        nonlocal passed
        passed += len(batch)

    with worker.dataflow("pingpong") as scope:
        handle, back = scope.feedback(1)
        mine = scope.to_stream(range(worker.index, numbers, worker.peers))
        grown = mine.concat(back).exchange(lambda x: x).inspect_batch(count).map(lambda x: x + 1)
        ended, going = grown.branch_when(lambda time: time < rounds)
        going.connect_loop(handle)
        ended.inspect(last.append).probe_with(probe)
    worker.step_while(lambda: not probe.done())
    print(f"worker {worker.index}: {passed} records passed, {len(last)} came last\n", end="", flush=True)
    return passed, last


if __name__ == "__main__":
    execute_from_args(main)
