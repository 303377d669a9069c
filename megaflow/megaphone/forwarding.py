"""The data side of F: one input, the output that it leads to, and what waits between them.

A record at s is routed by the table in force at s, once the control frontier has passed s (rule 1 of `router`); until
then it waits, under a capability of the output. An F of an operator with two inputs has two of these; each frontier
moves by itself, and the tables are the same for both, so the halves of a bin go to one worker.
"""

from heapq import heappop, heappush
from typing import Any

from megaflow.megaphone.routing import RoutingHistory
from megaflow.megaphone.splitting import Splitter
from megaflow.timely.dataflow.builder import Input, Output
from megaflow.timely.dataflow.capability import Capability, mint
from megaflow.timely.order import Time
from megaflow.timely.progress.antichain import Antichain


class Forwarder:
    """One data input of F on one worker."""

    def __init__(self, data: Input[Any], output: Output[Any], splitter: Splitter) -> None:
        self._data = data
        self._output = output
        self._splitter = splitter
        self._stash: dict[int, tuple[Capability, list[list[Any]]]] = {}  # time -> batches not routable yet
        self._waiting: list[int] = []  # heap: the times in the stash

    def keep_all(self) -> bool:
        """Keep what has arrived; return whether anything waits."""
        for time, batch in self._data.drain():
            self._keep(time, batch)
        return bool(self._waiting)

    def forward(self, passed: Antichain, history: RoutingHistory) -> None:
        """Route what control has passed, first what has waited for that; keep the rest."""
        while self._waiting and not passed.less_equal(self._waiting[0]):
            waiting = heappop(self._waiting)
            capability, batches = self._stash.pop(waiting)
            for batch in batches:
                self._send(waiting, batch, history)
            capability.release()
        for time, batch in self._data.drain():
            if passed.less_equal(time):
                self._keep(time, batch)
            else:
                self._send(time, batch, history)

    def _keep(self, time: Time, batch: list[Any]) -> None:
        assert isinstance(time, int)
        if time not in self._stash:
            self._stash[time] = (mint(self._output, time), [])
            heappush(self._waiting, time)
        self._stash[time][1].append(batch)

    def _send(self, time: Time, batch: list[Any], history: RoutingHistory) -> None:
        for worker, part in self._splitter.split(batch, history.at(time)):
            self._output.ship_to(worker, time, part)
