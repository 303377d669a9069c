"""ProbeHandle: the times that may still arrive at points of dataflows."""

from collections.abc import Callable

from megaflow.errors import BuildError, TimeError
from megaflow.timely.dataflow.builder import Input, NodeBuilder
from megaflow.timely.dataflow.graph import Graph, Port, ScopeRef
from megaflow.timely.dataflow.pact import Silent
from megaflow.timely.dataflow.scopes import describe
from megaflow.timely.order import Time, alike
from megaflow.timely.progress.antichain import Antichain


class ProbeHandle:
    """Reader of the frontier of the streams that it is attached to (of several: the union). No cost per record."""

    def __init__(self) -> None:
        self._inputs: list[tuple[Graph, Input[object]]] = []
        self._least: Time | None = None  # least time of the streams; None while attached to nothing

    @property
    def frontier(self) -> Antichain:
        """The times that may still arrive. The minimum if it is attached to no stream."""
        if not self._inputs:
            return Antichain([0])
        if len(self._inputs) == 1:
            return self._inputs[0][1].frontier
        return Antichain(time for _, each in self._inputs for time in each.frontier.elements)

    def less_than(self, time: Time) -> bool:
        """Return whether a time before `time` may still arrive. Raises TimeError for a time of another kind."""
        return self._ask(Antichain.less_than, time)

    def less_equal(self, time: Time) -> bool:
        """Return whether `time` or an earlier time may still arrive. Raises TimeError for a time of another kind."""
        return self._ask(Antichain.less_equal, time)

    def _ask(self, question: Callable[[Antichain, Time], bool], time: Time) -> bool:
        try:
            return question(self.frontier, time)
        except TypeError:
            why = f"times of the streams that the handle watches are like {self._least!r}"
            if self._least is None:
                remedy = "attach it first with probe_with(handle)"
                why = f"the handle is not attached to a stream, so it knows only ints; {remedy}"
            raise TimeError(f"{question.__name__}({time!r:.200}) of a ProbeHandle: {why}") from None

    def done(self) -> bool:
        """Return whether nothing can arrive in the future. False before the dataflow runs."""
        return self.frontier.is_empty()

    def check(self, scope: ScopeRef) -> None:
        """Raise BuildError unless times of `scope` are of the same kind as those of the attached streams."""
        if self._least is not None and not alike(self._least, scope.least):
            raise BuildError(
                f"probe_with: the handle watches times like {self._least!r}, but those of {describe(scope)} are like "
                f"{scope.least!r}; use another handle, or leave() the scope first"
            )
        self._least = scope.least

    def attach(self, source: Input[object], graph: Graph) -> None:
        """Attach one more stream."""
        self._inputs.append((graph, source))

    def places(self) -> list[tuple[Graph, int]]:
        """Return the dataflow and the location of each attached stream."""
        return [(graph, each.location) for graph, each in self._inputs]


def probe_with(port: Port[object], handle: ProbeHandle) -> None:
    """Attach `handle` to a stream."""
    handle.check(port.scope)
    builder = NodeBuilder(port.scope, "Probe")
    handle.attach(builder.new_input(port, Silent(), notify=False), port.scope.graph)
    builder.build_releasing(lambda: None)  # a probe is read, never run
