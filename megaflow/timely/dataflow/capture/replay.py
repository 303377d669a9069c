"""Replay: turns captured streams into a stream again, from any number of sequences of events on each worker.

Every worker holds the replay's initial capability. It is counted once per worker, however many sequences there are. So
each worker follows its own sequences here:
 1. Each sequence has counts and a frontier.
 2. The times of these frontiers form one local frontier, counted by how many sequences stand at each time.
 3. The worker holds one capability for each time of the local frontier.
Without sequences, the local frontier is empty from the start, and the worker releases its capability.
"""

from collections.abc import Callable, Iterable
from typing import Any

from megaflow.errors import SourceError, UsageError
from megaflow.timely.dataflow.builder import NodeBuilder, Output
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.capture.event_format import Event, Messages, Progress
from megaflow.timely.dataflow.capture.event_link import EventSource
from megaflow.timely.dataflow.context import Backoff, OperatorInfo
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.order import Time, alike, less_equal
from megaflow.timely.progress.antichain import MutableAntichain

_EVENTS_PER_RUN = 64
"""How many events one sequence may play before the operators after it run."""


class _Sequence:
    """One captured sequence of events. Enforces the rules of `event_format`."""

    def __init__(self, source: EventSource, least: Time, wake: Callable[[], None]) -> None:
        self.counts = MutableAntichain([(least, 1)])
        self.announces = source.attach(wake)
        self._source = source
        self._least = least

    def read(self) -> Event | None:
        """Return the next event, or None if it has not arrived. Raises SourceError if it cannot arrive or is invalid.
        """
        try:
            event = self._source.read()
        except SourceError as error:
            error.add_note(f"replay: nothing after {list(self.counts.frontier)} of this stream is complete")
            raise
        if event is not None:
            self._check(event)
        return event

    def advance(self, progress: Progress) -> list[tuple[Time, int]]:
        """Apply the changes. Return how the frontier moved."""
        before = self.counts.frontier
        moves = self.counts.update_iter(progress.changes)
        for time, _ in progress.changes:
            if self.counts.count_for(time) < 0:
                raise self._complaint(
                    f"it gives up more capabilities at {time!r} than it has; do not mix the parts of several workers "
                    "in one stream"
                )
        for time, change in moves:
            if change > 0 and not before.less_equal(time):
                raise self._complaint(f"its frontier moves back from {list(before)} to {time!r}")
        if self.counts.is_empty():
            self._source.close()
        return moves

    def _check(self, event: Event) -> None:
        times = [event.time] if isinstance(event, Messages) else [time for time, _ in event.changes]
        for time in times:
            if not alike(time, self._least):
                raise self._complaint(
                    f"its times are like {time!r}, but those here are like {self._least!r}; replay it in a scope "
                    "with the times of the captured scope"
                )
            if not self.counts.frontier.less_equal(time) and isinstance(event, Messages):
                raise self._complaint(f"records at {time!r} come after its frontier {list(self.counts.frontier)}")

    def _complaint(self, what: str) -> SourceError:
        return SourceError(f"{self._source}: breaks the rules of captured streams: {what}")


class _Player:
    """Plays the sequences of one worker."""

    def __init__(self, sequences: list[_Sequence], capability: Capability, output: Output[Any]) -> None:
        self.sequences = sequences  # those that are not yet complete
        self._output = output
        self._counts = MutableAntichain([(capability.time, len(sequences))] if sequences else [])
        self._held = {capability.time: capability}  # time of the local frontier -> capability for it
        self._error: SourceError | None = None
        if not sequences:
            capability.release()

    def play(self) -> bool:
        """Play the events that have arrived, within limits. Return whether there were any.

        An error is raised by the next call, so that the operators after this one first get the earlier events.
        """
        if self._error is not None:
            raise self._error
        played = False
        for sequence in self.sequences:
            try:
                played |= self._play(sequence)
            except SourceError as error:
                self._error = error
                return True
        self.sequences = [sequence for sequence in self.sequences if not sequence.counts.is_empty()]
        return played

    def _play(self, sequence: _Sequence) -> bool:
        for number in range(_EVENTS_PER_RUN):
            event = None if self._output.is_full() else sequence.read()
            if event is None:
                return number > 0
            if isinstance(event, Messages):
                self._output.ship(event.time, event.data)
                continue
            self._move(self._counts.update_iter(sequence.advance(event)))
            if sequence.counts.is_empty():
                break
        return True

    def _move(self, changes: list[tuple[Time, int]]) -> None:
        """Hold capabilities for exactly the times of the local frontier."""
        for time, change in changes:
            if change > 0:
                earlier = next(held for held in self._held.values() if less_equal(held.time, time))
                self._held[time] = earlier.delayed(time)
        for time, change in changes:
            if change < 0:
                self._held.pop(time).release()


def replay(scope: ScopeRef, sources: Iterable[EventSource]) -> Port[Any]:
    """Return the records that `sources` captured as a stream, at their times.

    Each worker passes its own sources, possibly none. Pass each captured sequence to one worker only, otherwise its
    records arrive more than once. The operator rests until a source announces an event. It polls files and sockets
    after pauses of at most 20 milliseconds.
    """
    given = list(sources)
    for source in given:
        if not hasattr(source, "attach") or not hasattr(source, "read"):
            raise UsageError(f"replay([{source!r}]): this is neither an EventLink nor an EventReader")
    builder = NodeBuilder(scope, "Replay")
    output, result = builder.new_output()

    def make(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        least, activate = scope.least, info.activator.activate
        played = given if capabilities[0].held else []  # a worker that joined later may send nothing
        player = _Player([_Sequence(source, least, activate) for source in played], capabilities[0], output)
        backoff = Backoff(info.activator, scope.graph.context.now)

        def logic() -> None:
            if player.play():
                backoff.reset()
                activate()
            elif not all(sequence.announces for sequence in player.sequences):
                backoff.later()

        return logic

    builder.build(make)
    return result
