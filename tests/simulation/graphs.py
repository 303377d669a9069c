"""Random dataflows: nested scopes, nested loops, and operators that hold or delay records.

Each worker draws the graph anew from the same seed. Records are (key, lives), and one turn of a loop costs a life.
Neither the outputs nor their times depend on the number of workers or the order of delivery. So one worker is the
oracle for several.

Each operator with its own logic asserts for each batch that the last frontier it saw still admitted the batch's time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.testing import EngineCluster
from megaflow.timely import Antichain, Exchange, OperatorBuilder, Pipeline, Worker
from megaflow.timely.dataflow.flow_control.handoffs import Bounds
from megaflow.timely.dataflow.pact import Pact
from megaflow.timely.order import Time, coordinates, from_coordinates

Record = tuple[int, int]
Records = Stream[Record]

KEYS = 97
DEEPEST = 3


def run(seed: int, bounds: Bounds | None = None) -> None:
    """Draw a graph and its input. Run it on several workers, with these bounds, and on one, and compare."""
    random = Random(f"input {seed}")
    workers, times, size = random.choice([2, 2, 3]), random.randint(1, 5), random.randint(2, 12)
    records = _draw(random, times, random.randint(1, 12), lives=3)
    more = _draw(random, times, random.randint(0, 3), lives=1)

    def build(worker: Any, first: Any, second: Any) -> Any:
        grower = Grower(Random(f"graph {seed}"), worker)
        scope = Scope(first.port.scope)
        streams = grower.grow(scope, [first, second], size)
        return streams[0].concat(*streams[1:])

    feeds = {worker: records[worker::workers] for worker in range(workers)}
    outputs = EngineCluster(seed, workers, bounds=bounds).run(build, feeds, more)
    expected = EngineCluster(seed, 1, monitor=False).run(build, {0: records}, more)
    assert Counter(outputs) == Counter(expected), f"seed {seed}: the outputs differ from one worker's"


def _draw(random: Random, times: int, count: int, lives: int) -> list[tuple[int, Record]]:
    return sorted((random.randrange(times), (random.randrange(KEYS), random.randint(1, lives))) for _ in range(count))


@dataclass
class Grower:
    """Adds random operators to a dataflow."""

    random: Random
    worker: Worker

    def grow(self, scope: Scope, streams: list[Records], size: int) -> list[Records]:
        """Build about `size` operators on streams of `scope`; return all streams of that scope."""
        streams = list(streams)
        loops = []
        for _ in range(self.random.choice([0, 1, 1, 2])):
            handle, back = scope.feedback(self.random.choice([1, 1, 2]))
            loops.append(handle)
            streams.append(back)
        while size > 0:
            if self.random.random() < 0.3 and len(scope.ref.path) < DEEPEST:
                streams += self._nest(scope, streams, size // 2)
                size -= size // 2 + 1
            else:
                streams.append(self._operator(streams))
                size -= 1
        for handle in loops:
            self._pick(streams).map(tire).filter(survives).connect_loop(handle)
        return streams

    def _nest(self, scope: Scope, streams: Sequence[Records], size: int) -> list[Records]:
        opened = self.random.choice([scope.iterative, scope.iterative, scope.region])()
        with opened as inner:
            entered = [self._pick(streams).enter(inner) for _ in range(self.random.choice([1, 1, 2]))]
            inside = self.grow(inner, entered, size)
            return [self._pick(inside).leave() for _ in range(self.random.choice([1, 1, 2]))]

    def _pick(self, streams: Sequence[Records]) -> Records:
        return self.random.choice(streams[-4:])  # mostly recent ones, so paths become long

    def _operator(self, streams: Sequence[Records]) -> Records:
        stream = self._pick(streams)
        salt = self.random.randrange(KEYS)
        kinds = ["map", "filter", "exchange", "concat", "broadcast", "delay", "hold", "late", "join", "shape", "buffer"]
        match self.random.choice(kinds):
            case "map":
                return stream.map(lambda record: ((record[0] * 5 + salt) % KEYS, record[1]))
            case "filter":
                return stream.filter(lambda record: (record[0] + salt) % 3 > 0)
            case "exchange":
                return stream.exchange(lambda record: record[0] + salt)
            case "concat":
                return stream.concat(self._pick(streams))
            case "broadcast":
                mine, peers = self.worker.index, self.worker.peers
                return stream.broadcast().filter(lambda record: record[0] % peers == mine)
            case "delay":
                return stream.unary(self._pact(), "Delay", delaying(salt))
            case "hold":
                return stream.unary_frontier(self._pact(), "Hold", holding)
            case "late":
                return stream.unary(self._pact(), "Late", late)
            case "buffer":
                return stream.buffer(salt + 1) if salt % 2 else stream.buffer(when_full="grow")
            case "shape":
                return self._shape([stream, self._pick(streams)])
        return stream.binary_frontier(self._pick(streams), self._pact(), self._pact(), "Join", joining)

    def _shape(self, streams: Sequence[Records]) -> Records:
        """Build an operator with several inputs and outputs. Each output follows some inputs, perhaps with a delay."""
        builder = OperatorBuilder(Scope(streams[0].port.scope), "Shape")
        inputs = [builder.new_input(each, self._pact(), notify=self.random.random() < 0.5) for each in streams]
        outputs = []
        for _ in range(self.random.choice([1, 2, 3])):
            path = {each: self.random.choice([0, 0, 1]) for each in inputs if self.random.random() < 0.7}
            outputs.append((*builder.new_output(path), path))
        builder.build(lambda capabilities, info: shaping(capabilities, inputs, outputs))
        return outputs[0][1].concat(*(stream for _, stream, _ in outputs[1:]))

    def _pact(self) -> Pact:
        salt = self.random.randrange(KEYS)
        return self.random.choice([Pipeline(), Exchange(lambda record: record[0] + salt)])


def tire(record: Record) -> Record:
    return (record[0] * 7 + 1) % KEYS, record[1] - 1


def survives(record: Record) -> bool:
    return record[1] > 0 and record[0] % 3 > 0


def admitted(source: Any, frontiers: Iterable[Antichain]) -> Iterable[tuple[Any, list[Record]]]:
    """Yield the batches of an input. The frontiers that it showed must admit each of them."""
    shown = list(frontiers)
    for time, batch in source:
        for frontier in shown:
            assert frontier.less_equal(time.time), f"a record came at {time.time!r} after the frontier {frontier}"
        yield time, batch


def delaying(salt: int) -> Callable[[Any, Any], Callable[[Any, Any], None]]:
    """Return logic that delays each record by an amount from its key, in any coordinate."""

    def later(time: Time, key: int) -> Time:
        drawn = Random(f"{salt} {key}")
        return from_coordinates(tuple(each + drawn.choice([0, 0, 1, 3]) for each in coordinates(time)))

    def build(capability: Any, info: Any) -> Callable[[Any, Any], None]:
        capability.release()

        def logic(source: Any, output: Any) -> None:
            for time, batch in admitted(source, [source.frontier]):
                for record in batch:
                    with time.delayed(later(time.time, record[0])) as delayed:
                        output.session(delayed).give(record)

        return logic

    return build


def late(capability: Any, info: Any) -> Callable[[Any, Any], None]:
    """Send records one run after receiving them, and also keep the initial capability for a while."""
    kept: list[tuple[Any, list[Record]]] = []
    runs = 0

    def logic(source: Any, output: Any) -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            capability.release()
        sending = list(kept)
        kept.clear()
        for held, records in sending:
            with held, output.session(held) as session:
                session.give_iterator(records)
        for time, batch in admitted(source, [source.frontier]):
            with time.retain() as held:
                kept.append((held.delayed(held.time), batch))
        if kept or runs < 3:
            info.activator.activate()

    return logic


def shaping(capabilities: Any, inputs: Any, outputs: Any) -> Callable[[], None]:
    """Share the records among the outputs that may send them, by key, each at the earliest permitted time."""
    for capability in capabilities:
        capability.release()

    def logic() -> None:
        for source in inputs:
            for time, batch in admitted(source, [source.frontier]):
                for number, (output, _, path) in enumerate(outputs):
                    if source in path:
                        with time.retain(output) as held, output.session(held) as session:
                            session.give_iterator(record for record in batch if record[0] % len(outputs) == number)

    return logic


def holding(capability: Any, info: Any) -> Callable[[Any, Any], None]:
    """Send records when their time is closed."""
    capability.release()
    keep = Keeper()

    def logic(source: Any, output: Any) -> None:
        keep.take(source)
        keep.send(output, [source])

    return logic


def joining(capability: Any, info: Any) -> Callable[[Any, Any, Any], None]:
    """Send records of two streams when their time is closed on both."""
    capability.release()
    keep = Keeper()

    def logic(left: Any, right: Any, output: Any) -> None:
        keep.take(left)
        keep.take(right)
        keep.send(output, [left, right])

    return logic


class Keeper:
    """Records under one capability for each time."""

    def __init__(self) -> None:
        self._stash: dict[Any, list[Record]] = {}
        self._shown: dict[int, Antichain] = {}  # input -> the frontier of the previous run

    def take(self, source: Any) -> None:
        """Keep the records that have arrived."""
        present = source.frontier
        for time, batch in admitted(source, [self._shown.get(source.location, present), present]):
            self._stash.setdefault(time.retain(), []).extend(batch)
        self._shown[source.location] = present

    def send(self, output: Any, sources: list[Any]) -> None:
        """Send the records whose times are closed."""
        for held in [each for each in self._stash if not any(s.frontier.less_equal(each.time) for s in sources)]:
            with held, output.session(held) as session:
                session.give_iterator(self._stash.pop(held))
