"""A barrier and an ordered log for all workers. Each is a small dataflow of its own.

All workers make a `Barrier` or a `Sequencer` at the same place in their programs, as they build dataflows.

Why the order of a `Sequencer` is the same on all workers:
1. Each worker sends its elements, with its id, to all workers at the present time of its input. Records of one worker
   and time arrive in the order in which they were sent.
2. The sequencer yields the elements of time t when t is complete. Then all elements of t have come, and no earlier
   element can come. It sorts the elements of t by the worker's id.
3. A worker that receives an element of time t moves its input past t. So t completes on all workers without a clock,
   and a worker without elements holds up no other, as long as it steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from megaflow.scope import Scope
from megaflow.timely import worker
from megaflow.timely.dataflow.builder import Input
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.pact import Broadcast
from megaflow.timely.order import less_equal

T = TypeVar("T")
_Worker: TypeAlias = worker.Worker[Scope]


class Barrier:
    """Meeting point of all workers: `wait` returns when each worker has called it as often as this one.

    The others no longer wait for a worker whose program has ended or that has called `close`.
    """

    def __init__(self, worker: _Worker) -> None:
        self._worker = worker
        self._round: InputHandle[None] = InputHandle()
        self._probe = worker.dataflow("Barrier", lambda scope: scope.input_from(self._round).probe())

    def wait(self) -> None:
        """Wait for all workers; step this one meanwhile."""
        self.advance()
        self._worker.step_while(lambda: not self.reached())

    def advance(self) -> None:
        """Announce that this worker has arrived, without waiting."""
        assert isinstance(self._round.time, int)
        self._round.advance_to(self._round.time + 1)

    def reached(self) -> bool:
        """Tell whether all workers have come as far as this one. Does not step."""
        return not self._probe.less_than(self._round.time)

    def close(self) -> None:
        """Leave the barrier. A second call is harmless."""
        self._round.close()


class Sequencer(Generic[T]):
    """Log of the elements of all workers, which every worker reads in the same order.

    Elements travel as records do. The elements of one worker keep their order. Elements come through only while all
    workers step. Elements that no worker reads wait in memory.
    """

    def __init__(self, worker: _Worker) -> None:
        self._index = worker.index
        self._pushed: InputHandle[tuple[int, T]] = InputHandle()
        self._ready: deque[T] = deque()
        worker.dataflow("Sequencer", self._build)

    def push(self, element: T) -> None:
        """Add an element to the log. Does not wait."""
        self._pushed.send((self._index, element))
        self._pushed.flush()

    def __iter__(self) -> Iterator[T]:
        """Yield the elements whose place in the order is known; a later call continues after them."""
        while self._ready:
            yield self._ready.popleft()

    def close(self) -> None:
        """Stop pushing. A second call is harmless. Without this call, the sequencer closes with the program."""
        self._pushed.close()

    def _build(self, scope: Scope) -> None:
        scope.input_from(self._pushed).sink(Broadcast, "Sequencer", lambda info: self._order())

    def _order(self) -> Callable[[Input[Any]], None]:
        waiting: dict[int, list[tuple[int, T]]] = {}  # time -> elements with the ids of their workers

        def logic(source: Input[Any]) -> None:
            for batch, records in source:
                assert isinstance(batch.time, int)
                waiting.setdefault(batch.time, []).extend(records)
            latest = max(waiting, default=-1)
            if less_equal(self._pushed.time, latest) and not self._pushed.closed:
                self._pushed.advance_to(latest + 1)
            for each in sorted(each for each in waiting if not source.frontier.less_equal(each)):
                records = sorted(waiting.pop(each), key=lambda record: record[0])
                self._ready.extend(element for _, element in records)

        return logic
