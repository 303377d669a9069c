"""The bootstrap server: the member that sends the progress state to joining workers while it continues to work.

Its snapshot of a dataflow is the sum of all batches that it has folded, plus the number of each sender's next batch.
Changes in the sum cancel, so it stays small. From then on the server records the batches that it folds. A joiner asks
for the batches between the snapshot and a member's marker. The server answers once it has folded them.
"""

from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.signature import signature
from megaflow.timely.membership import WorkerId
from megaflow.timely.progress.change_batch import ChangeBatch
from megaflow.timely.rescale.host import Host
from megaflow.timely.rescale.messages import TOPIC, RangeAnswer, RangeAsk, Snapshot, Stamps


class Server:
    """Bootstrap server for one change. One writer: the worker's thread."""

    def __init__(self, change: int, host: Host) -> None:
        self._change = change
        self._host = host
        self._recorded: dict[tuple[int, WorkerId], dict[int, Stamps]] = {}  # (dataflow, sender) -> number -> batch
        # Requests not answered yet, each with the joiner that sent it. The member appends them, `turn` answers them.
        self.asked: list[tuple[WorkerId, RangeAsk]] = []
        self.snapshot = self._cut()

    def record(self, graph: Graph) -> None:
        """Record from now on the batches that are folded in a dataflow."""

        def keep(sender: WorkerId, number: int, batch: Stamps) -> None:
            self._recorded.setdefault((graph.number, sender), {})[number] = batch

        graph.progress.caster.record = keep

    def turn(self) -> None:
        """Answer the requests whose batches have been folded."""
        self.asked = [each for each in self.asked if not self._answer(*each)]

    def stop(self) -> None:
        """Stop recording, and drop unanswered requests."""
        for graph in self._host.graphs.values():
            graph.progress.caster.record = None
        self.asked.clear()

    def _cut(self) -> Snapshot:
        running = {}
        for number, graph in self._host.graphs.items():
            self.record(graph)
            graph.progress.show()  # the tracker counts batches folded since the last step only after this call
            counted = graph.progress.tracker.pointstamps()
            changes = ChangeBatch(((location, time), count) for location, time, count in counted)
            changes.extend(((location, time), -count) for location, time, count in graph.initial)
            stamps = [(location, time, delta) for (location, time), delta in changes]
            running[number] = (graph.name, signature(graph), stamps, graph.progress.caster.following())
        return Snapshot(self._change, self._host.built(), self._host.unbuilt(), running)

    def _answer(self, worker: WorkerId, ask: RangeAsk) -> bool:
        host = self._host
        changes: Stamps | None = None
        done = ask.dataflow < host.built() and ask.dataflow not in host.unbuilt()
        if not done or ask.dataflow in host.graphs:
            recorded = self._recorded.get((ask.dataflow, ask.sender), {})
            if any(number not in recorded for number in range(ask.start, ask.end)):
                return False
            total = ChangeBatch(
                ((location, time), delta)
                for number in range(ask.start, ask.end)
                for location, time, delta in recorded[number]
            )
            changes = [(location, time, delta) for (location, time), delta in total]
        answer = RangeAnswer(ask.change, ask.dataflow, ask.sender, ask.start, ask.end, changes)
        host.post(worker, TOPIC, answer)
        return True
