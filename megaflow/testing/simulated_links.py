"""Simulated connections: the bytes are those of TCP, and the dice decide when they arrive.

Peers and role handlers use a `SimulatedLink` like a `Link`. The messages of a lane keep their order, but lanes overtake
each other freely. Only the last lane, and then the end of the stream, come after everything else. If a process is
killed, some of its messages in flight still arrive, on each lane the first ones; those of the last lane only if nothing
else is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from megaflow.errors import PeerLost, ProtocolError
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.tcp import LAST_LANE, Link
from megaflow.timely.communication.wire import Buffer, FrameDecoder, Kind, frames

_END = LAST_LANE + 1  # of the stream, as a lane


class Wires:
    """All connections. One writer: the simulation."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.links = 0  # created so far
        self.ready: dict[tuple[int, int], tuple[SimulatedLink, float]] = {}  # (number, lane) -> sender, how eager
        self.under_way = 0  # frames in flight

    def connect(self, here: str, there: str) -> tuple[SimulatedLink, SimulatedLink]:
        """Return the two ends of a new connection, each with the other's address."""
        pair = SimulatedLink(self, there), SimulatedLink(self, here)
        pair[0].other, pair[1].other = pair[1], pair[0]
        return pair


class _Unowned:
    """Owner of a link before and after its real owner."""

    def message(self, link: Any, kind: int, payload: Buffer) -> None:
        pass

    def ended(self, link: Any, reason: str, broken: bool) -> None:
        pass


class SimulatedLink(Link):
    """One end. If `is_slow`, queued bytes are pending until they arrive; otherwise the kernel has them at once."""

    other: SimulatedLink

    def __init__(self, wires: Wires, address: str) -> None:
        self.address = address
        self.owner = _Unowned()
        self.decoder = FrameDecoder()
        self.reads_per_poll = self.read_bytes = 1
        self.closed = self.is_shut = self._half_closing = self._told = self._held = False
        self._readable = True
        self._wires = wires
        self._number = wires.links
        wires.links += 1
        self._lanes = tuple(deque() for _ in range(LAST_LANE + 1))
        self.pending = [0] * (LAST_LANE + 1)
        self.is_slow = wires.random.random() < 0.5
        self._eager = [wires.random.random() ** 3 + 0.01 for _ in range(_END + 1)]
        self._reason = "end of stream"

    def queue(self, lane: int, frames: Iterable[bytes]) -> int:
        """Append frames to a lane and return the bytes now pending in it."""
        if not (self.closed or self._half_closing):
            for frame in frames:
                self._lanes[lane].append(frame)
                self._wires.under_way += 1
                self.pending[lane] += len(frame) if self.is_slow else 0
            self._refresh()
        return self.pending[lane]

    def deliver(self, lane: int) -> None:
        """Deliver the oldest frame of a lane, or the end of the stream."""
        other = self.other
        if lane == _END:
            self._told = True
            self._refresh()
            if not other.closed:
                other._readable = False
                other.owner.ended(other, self._reason, False)
            return
        frame = self._lanes[lane].popleft()
        self._wires.under_way -= 1
        self.pending[lane] = max(0, self.pending[lane] - len(frame))
        self._refresh()
        if other.closed:
            return
        try:
            for kind, payload in other.decoder.feed(frame):
                if kind != Kind.WELCOME:  # the handshake is over
                    other.owner.message(other, kind, payload)
        except ProtocolError as error:
            other.owner.ended(other, str(error), True)

    def is_drained(self) -> bool:
        """Return whether the kernel has everything queued."""
        return not any(self.pending)

    def has_ended(self) -> bool:
        """Return whether nothing more can arrive and everything queued has left."""
        return self.closed or (not self._readable and self.is_drained())

    def replace_queued(self, frames: Iterable[bytes]) -> None:
        """Drop some of the frames in flight, and queue these instead."""
        self._truncate()
        self.queue(0, frames)

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    def hold(self, held: bool) -> None:
        """Stop or resume reading from this link."""
        self._held = held
        self.other._refresh()

    def half_close(self) -> None:
        """Shut the outgoing direction once everything queued has left."""
        self._half_closing = True
        self._refresh()

    def is_silent(self) -> bool:
        """Return False: no simulated host is silent."""
        return False

    def close(self) -> None:
        """Close at once; bytes that the kernel has still arrive."""
        if self.is_slow:
            for lane in self._lanes:
                self._wires.under_way -= len(lane)
                lane.clear()
            self.pending = [0] * len(self.pending)
        self.leave()

    def leave(self) -> None:
        """Close; queued frames still arrive."""
        self.closed = True
        self.owner = _Unowned()
        self._refresh()

    def cut(self) -> None:
        """End like the connections of a killed process."""
        self._reason = "connection reset by peer"
        self._truncate()
        self.leave()

    def _truncate(self) -> None:
        random, lost = self._wires.random, 0
        for number, lane in enumerate(self._lanes):
            if lost and number == LAST_LANE:
                drops = len(lane)
            else:
                drops = random.randint(1, len(lane)) if lane and random.random() < 0.5 else 0
            for _ in range(drops):
                lane.pop()
            lost += drops
            self._wires.under_way -= drops
            self.pending[number] = sum(map(len, lane)) if self.is_slow else 0

    def _refresh(self) -> None:
        """Update the lanes that can deliver now."""
        ready, key, number = self._wires.ready, self._eager, self._number
        urgent = False
        for lane in range(LAST_LANE + 1):
            may = bool(self._lanes[lane]) and not self.other._held and not (lane == LAST_LANE and urgent)
            urgent = urgent or bool(self._lanes[lane])
            if may:
                ready[number, lane] = self, key[lane]
            else:
                ready.pop((number, lane), None)
        if not urgent and (self.closed or self._half_closing):
            self.is_shut = True
            if not (self._told or self.other._held):
                ready[number, _END] = self, key[_END]
                return
        ready.pop((number, _END), None)


class SimulatedClient(Client):
    """A client's end of a connection."""

    def __init__(self, link: SimulatedLink, arrived: Callable[[], None] = lambda: None) -> None:
        self.address = link.address
        self.link = link
        self._values: deque[Any] = deque()
        self._lost: str | None = None
        self._notify = arrived
        link.owner = self

    def message(self, link: Link, kind: int, payload: Buffer) -> None:
        """Keep a value for `receive_available`."""
        if kind == Kind.VALUE:
            self._values.append(decode(payload))

    def ended(self, link: Link, reason: str, broken: bool) -> None:
        """Note that nothing more arrives."""
        self._lost = f"lost {self.address}: {reason}"

    @property
    def is_ready(self) -> bool:
        """Whether `receive_available` has something to return or raise."""
        return bool(self._values) or self._lost is not None

    def send(self, value: object) -> None:
        """Send one value. Raises CannotTravel, and PeerLost after the end was seen."""
        if self._lost is not None:
            raise PeerLost(self._lost)
        self.link.queue(Lane.DATA, frames(Kind.VALUE, encode(value)))

    post = send

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    @property
    def has_unsent(self) -> bool:
        """Whether `flush` must be called."""
        return False

    def receive_available(self) -> list[Any]:
        """Return the values that have arrived. Raises PeerLost only when no value is left."""
        if not self._values and self._lost is not None:
            raise PeerLost(self._lost)
        values = list(self._values)
        self._values.clear()
        return values

    def close(self) -> None:
        """Close the connection; sent values still arrive."""
        self.link.leave()
