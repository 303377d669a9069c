"""Simulated connections: what arrives of a killed process, and in which order."""

from random import Random
from typing import Any

from megaflow.testing.simulated_links import Wires
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.tcp import LAST_LANE
from megaflow.timely.communication.wire import Kind, frames


class Receiver:
    """Owner of a link's end that keeps what arrives."""

    def __init__(self) -> None:
        self.values: list[tuple[int, int]] = []  # (lane, number)
        self.ends = 0

    def message(self, link: Any, kind: int, payload: Any) -> None:
        self.values.append(decode(payload))

    def ended(self, link: Any, reason: str, broken: bool) -> None:
        self.ends += 1


def cut_in_flight(seed: int) -> tuple[dict[int, int], Receiver]:
    """Send on several lanes, kill the sender, deliver the rest; return the numbers sent by lane, and the receiver."""
    random = Random(seed)
    wires = Wires(random)
    here, there = wires.connect("here", "there")
    there.owner = receiver = Receiver()
    sent = {lane: random.randint(0, 3) for lane in range(LAST_LANE + 1)}
    for lane, count in sent.items():
        for number in range(count):
            here.queue(lane, frames(Kind.VALUE, encode((lane, number))))
    for _ in range(random.randint(0, 4)):
        if wires.ready:
            deliver_one(wires)
    here.cut()
    while wires.ready:
        deliver_one(wires)
    assert wires.under_way == 0
    return sent, receiver


def deliver_one(wires: Wires) -> None:
    """Deliver one of the frames that may arrive now."""
    (_, lane), (link, _) = wires.random.choice(sorted(wires.ready.items(), key=lambda each: each[0]))
    link.deliver(lane)


def test_a_killed_process_loses_the_last_of_what_it_sent_and_its_goodbye_first_of_all() -> None:
    seen = set()
    for seed in range(300):
        sent, receiver = cut_in_flight(seed)
        came = {lane: [number for at, number in receiver.values if at == lane] for lane in sent}
        assert all(numbers == list(range(len(numbers))) for numbers in came.values()), "a lane keeps its order"
        lost = any(len(came[lane]) < sent[lane] for lane in range(LAST_LANE))
        if came[LAST_LANE]:
            assert not lost, f"seed {seed}: {came} of {sent}"
            assert [lane for lane, _ in receiver.values[-len(came[LAST_LANE]) :]] == [LAST_LANE] * len(came[LAST_LANE])
        assert receiver.ends == 1
        seen.add((lost, bool(came[LAST_LANE])))
    assert seen == {(True, False), (False, True), (False, False)}
