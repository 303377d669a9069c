"""Run of one query on all workers: each makes its share of the events, in event time. Bins move meanwhile if requested.

The program has its own control stream, which also follows event time. Worker 0 issues the moves of a plan, each step
once the results have passed the previous one. The last steps follow the end of the events if necessary.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from apps.nexmark.events import Event
from apps.nexmark.generator import generate
from apps.nexmark.q1 import q1
from apps.nexmark.q2 import q2
from apps.nexmark.q3 import q3
from apps.nexmark.q4 import q4
from apps.nexmark.q5 import q5
from apps.nexmark.q6 import q6
from apps.nexmark.q7 import q7
from apps.nexmark.q8 import q8
from apps.nexmark.terms import Terms
from megaflow import Move
from megaflow.control.client.planner import plan
from megaflow.megaphone.base.routing import initial_table
from megaflow.timely import InputHandle, ProbeHandle, Stream, Worker

QUERIES: dict[str, Callable[[Stream[Event], Stream[Any], Terms, int], Stream[Any]]] = {
    "Q1": q1, "Q2": q2, "Q3": q3, "Q4": q4, "Q5": q5, "Q6": q6, "Q7": q7, "Q8": q8,
}  # fmt: skip

STRATEGIES = ("", "fluid", "all-at-once", "optimized")  # "": nothing moves
BINS = 64
_LAG_EVENTS = 2000
"""How far a worker may run ahead of the results: enough to keep all of them busy, little enough to hold."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of the command line."""

    query: str
    events: int
    delay_us: int
    strategy: str  # one of STRATEGIES


def read(words: Sequence[str]) -> Request:
    """Read `QUERY [EVENTS [DELAY_US [STRATEGY]]]`.

    >>> read(["Q5", "500"])
    Request(query='Q5', events=500, delay_us=1000000, strategy='')
    """
    query, events, delay_us, strategy = (*words[:4], *("", "10000", "1000000", "")[len(words) :])
    numbers = events.isdecimal() and delay_us.isdecimal()
    if query not in QUERIES or not numbers or strategy not in STRATEGIES or len(words) > 4:
        raise SystemExit(
            f"{' '.join(words) or 'nothing'} asked for; say QUERY [EVENTS [DELAY_US [STRATEGY]]], QUERY being one of "
            f"{', '.join(QUERIES)} and STRATEGY one of {', '.join(filter(None, STRATEGIES))}"
        )
    return Request(query, int(events), int(delay_us), strategy)


def main(worker: Worker) -> list[tuple[Any, Any]]:
    """Return this worker's results, with their times; print each."""
    request = read(worker.args)
    terms = Terms(delay_us=request.delay_us)
    events: InputHandle[Event] = InputHandle()
    control: InputHandle[Move] = InputHandle()
    probe = ProbeHandle()
    results: list[tuple[Any, Any]] = []

    def tell(time: object, result: object) -> None:
        results.append((time, result))
        print(f"{time} {result}\n", end="", flush=True)  # in one piece: workers may share standard output

    with worker.dataflow(request.query) as scope:
        found = QUERIES[request.query](scope.input_from(events), scope.input_from(control), terms, BINS)
        found.inspect_time(tell).probe_with(probe)
    if worker.bootstrap():  # a worker that joined later has no share in the events
        return results
    mover = Mover(worker, control, probe, request.strategy)
    share = generate(terms, range(worker.index, request.events, worker.peers))
    lag, begin = terms.time_of(_LAG_EVENTS), terms.time_of(request.events // 3)
    for time, batch in groupby(share, key=itemgetter(0)):
        events.advance_to(time)
        events.send_batch([event for _, event in batch])
        mover.advance_to(time, may_move=time >= begin)
        worker.step()
        worker.step_while(partial(probe.less_than, time - lag))
    time = terms.time_of(request.events)
    while mover.steps or mover.is_waiting():  # continue with the rest of the plan where the events end
        events.advance_to(time + 1)
        mover.advance_to(time, may_move=True)
        mover.advance_to(time + 1, may_move=False)
        worker.step_while(mover.is_waiting)
        time += 1
    return results


class Mover:
    """The control stream of worker 0: a plan that gives half of each worker's bins to the next worker."""

    def __init__(self, worker: Worker, control: InputHandle[Move], probe: ProbeHandle, strategy: str) -> None:
        self.steps: deque[list[Move]] = deque()
        self._control = control
        self._probe = probe
        self._last = -1  # the time of the last step
        if worker.index:
            control.close()
        elif strategy:
            ids = list(worker.peer_ids)
            table = initial_table(BINS, ids)
            following = dict(zip(ids, [*ids[1:], ids[0]]))
            target = (following[owner] if bin < BINS // 2 else owner for bin, owner in enumerate(table))
            self.steps.extend(plan(table, tuple(target), strategy))

    def advance_to(self, time: int, may_move: bool) -> None:
        """Bring the control stream to this time. Issue the next step then, if it may begin and the last is done."""
        if self._control.closed:
            return
        self._control.advance_to(time)
        if may_move and self.steps and not self.is_waiting():
            self._control.send_batch(self.steps.popleft())
            self._last = time

    def is_waiting(self) -> bool:
        """Whether the last step is still under way."""
        return self._probe.less_equal(self._last)
