"""Two streams of (key, value) meet by key, each record as soon as it comes.

python apps/hashjoin.py [ROWS [KEYS]] [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from apps.draws import numbers
from megaflow.timely import Capability, Exchange, Input, OperatorInfo, Output, ProbeHandle, Worker, execute_from_args

Row = tuple[int, int]  # key, value
Match = tuple[int, int, int]  # key, left value, right value


def tables(rows: int, keys: int) -> tuple[list[Row], list[Row]]:
    """Draw the rows of both tables, alternately."""
    drawn = numbers()
    left: list[Row] = []
    right: list[Row] = []
    for _ in range(rows):
        for table in (left, right):
            table.append((next(drawn) % keys, next(drawn) % keys))
    return left, right


def join(capability: Capability, info: OperatorInfo) -> Callable[[Input[Row], Input[Row], Output[Match]], None]:
    """Keep both sides by key; a row meets the rows of the other side that came before it."""
    capability.release()
    lefts: defaultdict[int, list[int]] = defaultdict(list)
    rights: defaultdict[int, list[int]] = defaultdict(list)

    def from_left(rows: list[Row]) -> Iterator[Match]:
        for key, value in rows:
            lefts[key].append(value)
            yield from ((key, value, other) for other in rights[key])

    def from_right(rows: list[Row]) -> Iterator[Match]:
        for key, value in rows:
            rights[key].append(value)
            yield from ((key, other, value) for other in lefts[key])

    def logic(left: Input[Row], right: Input[Row], output: Output[Match]) -> None:
        for time, rows in left:
            output.session(time).give_iterator(from_left(rows))
        for time, rows in right:
            output.session(time).give_iterator(from_right(rows))

    return logic


def main(worker: Worker) -> list[Match]:
    """Return the matches found on this worker."""
    rows = int(worker.args[0]) if worker.args else 1000
    keys = int(worker.args[1]) if len(worker.args) > 1 else 100
    matches: list[Match] = []
    probe = ProbeHandle()
    left, right = (table[worker.index :: worker.peers] for table in tables(rows, keys))
    by_key = Exchange(lambda row: row[0])
    with worker.dataflow("hashjoin") as scope:
        (
            scope.to_stream(left)
            .binary(scope.to_stream(right), by_key, by_key, "Join", join)
            .inspect_batch(lambda time, batch: matches.extend(batch))
            .probe_with(probe)
        )
    worker.step_while(lambda: not probe.done())
    products = sum(one * other for _, one, other in matches)
    print(f"worker {worker.index}: {len(matches)} matches, sum of products {products}", flush=True)
    return matches


if __name__ == "__main__":
    execute_from_args(main)
