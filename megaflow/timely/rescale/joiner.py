"""A joining worker, from its first connection until it may take part.

It sends no record and no progress before it is a member and has its capabilities. It queues what it receives. If it
dies before the commit, nothing has happened. `member` describes the whole protocol and why it is safe.
"""

from megaflow.errors import JoinDenied, ProgramError
from megaflow.timely.communication.channel import Channel, Envelope, Lane
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.graph import Graph
from megaflow.timely.dataflow.signature import check_equal
from megaflow.timely.rescale import messages
from megaflow.timely.rescale.catch_up import DataflowProgress, Intake
from megaflow.timely.rescale.host import Host
from megaflow.timely.rescale.messages import TOPIC, Abort, Admission, Grant, Grants, Marker, RangeAnswer, Snapshot


class Joiner:
    """One joining worker's state and knowledge. One writer: the worker's thread."""

    def __init__(self, admission: Admission, host: Host) -> None:
        self.begun = False
        self.ready = False  # it knows what the members know
        self.admitted = False  # it has its capabilities; only dataflows that it builds later need this object
        self.admission = admission
        self._host = host
        self._intake = Intake(admission.change, admission.membership.workers)
        self._grants: list[Grant] | None = None  # None until they arrive
        self._began = 0.0
        self._seconds: dict[str, float] = {}  # phase -> its end, counted from `_began`
        self._bytes = 0

    def begin(self) -> None:
        """Tell the coordinator that the dataflows are built."""
        host = self._host
        if host.building:
            raise ProgramError("bootstrap: a dataflow is still being built; call it after the end of its `with` block")
        self.begun, self._began = True, host.now()
        wanted = tuple((graph.number, source) for graph in host.graphs.values() for source, _ in absent(graph))
        graphs = host.graphs
        built = tuple(graphs[number].name if number in graphs else "" for number in range(host.built()))
        host.post(self.admission.membership.coordinator, TOPIC, messages.Hello(self.admission.change, built, wanted))

    def take(self, envelope: Envelope) -> bool:
        """Take a progress batch that the dataflow cannot fold yet; return whether this was one."""
        if self.ready or not envelope.channel.is_progress:
            return False
        number, batch = envelope.body
        self._intake.take_batch(envelope.channel.dataflow, envelope.source, number, batch)
        return True

    def hear(self, source: int, message: Marker | Snapshot | RangeAnswer | Grants | Abort) -> None:
        """Process one message of the protocol."""
        asks: list[messages.RangeAsk] = []
        match message:
            case Marker():
                asks = self._intake.take_marker(source, message)
                if self._intake.has_markers:
                    self._note("back-fill")
            case Snapshot():
                self._bytes += len(encode(message))
                asks = self._intake.take_snapshot(message)
                self._note("snapshot")
            case RangeAnswer():
                self._bytes += len(encode(message))
                self._intake.take_range(message)
            case Grants(_, grants):
                self._grants = list(grants)
                self._announce_gates(grants)
            case Abort(reason=reason):
                raise JoinDenied(f"this process did not join: {reason}")
        for ask in asks:
            self._host.post(self.admission.server, TOPIC, ask)
        if not self.ready and self._intake.is_ready:
            self._catch_up()

    def turn(self) -> None:
        """Take the granted capabilities, once the batches that minted them are folded."""
        if self._grants is None or self.admitted:
            return
        graphs = self._host.graphs
        for grant in self._grants:
            graph = graphs.get(grant.dataflow)
            if graph is not None and not graph.progress.caster.has_folded(grant.minter, grant.number):
                return
        granted = {(grant.dataflow, grant.location): grant for grant in self._grants}
        for graph in graphs.values():
            self._fill(graph, granted)
        self.admitted = True

    def restored(self, graph: Graph) -> None:
        """Bring a dataflow that has just been built to the cluster's progress."""
        if self.ready:
            self._restore(graph)
        if self.admitted:
            self._fill(graph, {})  # the members minted capabilities when it joined, and mint none now

    def _note(self, phase: str) -> None:
        self._seconds.setdefault(phase, self._host.now() - self._began)

    def _catch_up(self) -> None:
        snapshot = self._intake.snapshot
        assert snapshot is not None
        for number, graph in self._host.graphs.items():
            if number in snapshot.running:
                check_equal(graph, self.admission.server, snapshot.running[number][:2])
        self.ready = True
        for graph in self._host.graphs.values():
            self._restore(graph)
        self._note("ranges")
        seconds, before = {}, 0.0
        for phase in ("back-fill", "snapshot", "ranges"):  # each counts only the time after those before it
            seconds[phase] = max(0.0, self._seconds[phase] - before)
            before = max(before, self._seconds[phase])
        ready = messages.Ready(self.admission.change, seconds, self._bytes)
        self._host.post(self.admission.membership.coordinator, TOPIC, ready)

    def _restore(self, graph: Graph) -> None:
        if graph.number in self._intake.complete:
            graph.progress.restore([(location, time, -count) for location, time, count in graph.initial], None)
            return
        stream = self._intake.streams.pop(graph.number, DataflowProgress())
        graph.progress.restore([(location, time, delta) for (location, time), delta in stream.sum], stream.following)

    def _announce_gates(self, grants: tuple[Grant, ...]) -> None:
        minted = tuple((each.dataflow, each.minter, each.number) for each in grants)
        gate = messages.CapabilityGate(self.admission.change, minted)
        others = self.admission.membership.workers.union(self.admission.ids) - {self._host.index}
        self._host.allocator.send_all(sorted(others), Channel.membership(Lane.PROGRESS), gate)

    def _fill(self, graph: Graph, granted: dict[tuple[int, int], Grant]) -> None:
        for location, number in absent(graph):
            node = next(node for node in graph.nodes if location in node.sources)
            grant = granted.get((graph.number, location))
            if grant is None:
                node.joinable[number].release()
            else:
                node.joinable[number].fill(grant.time)
                graph.progress.caster.receive_capability(location, grant.time)
                graph.run_queue.add(node.index)
            if node.filled is not None:
                node.filled(None if grant is None else grant.time)


def absent(graph: Graph) -> list[tuple[int, int]]:
    """Return (location, number of the output) of each source that waits for a capability."""
    return [
        (node.sources[number], number)
        for node in graph.nodes
        for number, capability in enumerate(node.joinable)
        if capability.absent
    ]
