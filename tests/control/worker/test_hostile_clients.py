"""Anything that a client with the secret sends is answered, refused or leads to disconnection, without other effect."""

from collections import deque
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.control import messages
from megaflow.control.coordinator.base.events import Asked, Event, Gone, Mail, Reply, Ticked
from megaflow.control.coordinator.controller.controller import Controller
from megaflow.control.launcher_messages import Lines, LinesEnded, Reached, Started, StartFailed
from megaflow.control.messages import CommitBatch, JobSettings, Refused, Request, StatusQuery
from megaflow.control.shapes import conforms
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.errors import ProtocolError
from megaflow.job.worker.control.connection_handlers import ANSWERS_BYTES_MAX, ControlDoor, LauncherDoor
from megaflow.job.worker.reading.staging import IngestDoor, Staging
from megaflow.megaphone.base.routing import Map, Move
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.membership import founding
from tests.control.worker.test_connection_handlers import FakeConnection, connected

DIGITS = 10**5000  # a number that Python does not print

plain: Any = st.one_of(
    st.integers(-2, 5),
    st.sampled_from([1, -1]).map(lambda sign: sign * DIGITS),  # hypothesis does not print it either
    st.sampled_from([None, True, False, 1 << 63, -(1 << 63), 0.5, float("nan"), float("inf")]),
    st.sampled_from(["", "q", "\udc80", "x" * 300, "optimized", b"q"]),
)
hostile: Any = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(plain, inner, max_size=3),
        st.builds(Move, inner, inner),
        st.builds(Map, inner),
        st.builds(Map, st.lists(st.integers(0, 2), min_size=4, max_size=4).map(tuple)),
        st.builds(CommitBatch, inner, inner, inner, inner),
    ),
    max_leaves=8,
)
sound: Any = {
    int: st.integers(-1, 3),
    str: st.sampled_from(["q", "r", ""]),
    dict[int, tuple[int, int, int]]: st.dictionaries(st.integers(0, 2), st.tuples(*[st.integers(-1, 2)] * 3)),
    tuple[int, ...]: st.lists(st.integers(0, 2), min_size=4, max_size=4).map(tuple),
    tuple[Any, ...]: st.lists(st.builds(Move, st.integers(0, 3), st.integers(0, 2)), max_size=2).map(tuple),
}
sound[CommitBatch] = st.builds(CommitBatch, *[sound[str]] * 2, sound[int], sound[dict[int, tuple[int, int, int]]])


def records(kind: type) -> Any:
    """Records of this class whose fields have valid or arbitrary values."""
    hints = get_type_hints(kind)
    values = [st.one_of(sound.get(hints[field.name], st.booleans()), hostile) for field in fields(kind)]
    return st.builds(kind, *values)


bodies = st.one_of(*map(records, get_args(messages.Command)), hostile, records(StageLines))
requests = st.one_of(st.builds(Request, st.one_of(st.integers(0, 9), hostile), bodies), hostile)


class Job:
    """A coordinator of workers 0 and 2 with four bins, behind its door."""

    def __init__(self) -> None:
        self.controller = Controller("job", founding([0, 2]), {"count": 4}, [], pushed=True, queries=1)
        self.events: deque[Event] = deque()
        self.door = ControlDoor(None, JobSettings("job", 1, None, "replace", (("", "jsonl"),)))
        self.door.serve(self.events.append)
        self.now = 0.0

    def work_off(self) -> list[Any]:
        """Handle the messages that have come; return the resulting instructions."""
        out: list[Any] = []
        while self.events:
            out += self.controller.handle(self.events.popleft(), self.now)
            self.controller._check()
        self.now += 1.0
        out += self.controller.handle(Ticked(self.controller.epoch), self.now)
        for instruction in out:
            encode(instruction.message if isinstance(instruction, Reply) else None)
        return out


@given(st.lists(requests, max_size=6))
def test_the_coordinator_goes_on_and_answers_whatever_clients_ask(sent: list[Any]) -> None:
    job = Job()
    for value in sent:
        connection = connected(job.door)
        try:
            job.door.received(connection, decode(encode(value)))
        except ProtocolError as error:
            assert len(str(error)) < 200
            job.door.lost(connection)
        job.work_off()
    job.events.append(Asked("somebody", Request(1, StatusQuery())))
    assert {each.target for each in job.work_off() if isinstance(each, Mail)} == {0, 2}


@given(st.lists(st.one_of(records(StageLines), records(StageEnd), sound[CommitBatch], hostile), max_size=8))
def test_a_worker_stages_what_it_may_and_commits_what_it_has_confirmed(sent: list[Any]) -> None:
    staging = Staging(1)
    door, connection = IngestDoor({1: staging}), FakeConnection()
    for value in sent:
        if conforms(value, CommitBatch):  # the coordinator's door has checked this
            if staging.missing(value) is None:
                staging.commit(value)
            else:
                with pytest.raises(ProtocolError, match="had to commit"):
                    staging.commit(value)
            continue
        try:
            door.received(connection, decode(encode(value)))  # type: ignore[arg-type]
        except ProtocolError as error:
            assert len(str(error)) < 400
    staging._check()
    door.lost(connection)  # type: ignore[arg-type]
    staging._check()


@given(st.one_of(*map(records, (Lines, LinesEnded, Started, StartFailed, Reached)), hostile))
def test_what_passes_for_a_launcher_is_heard_or_shut_out(value: Any) -> None:
    job, door, connection = Job(), LauncherDoor(), FakeConnection()
    door.launched = job.events.append
    door.connected(connection, {})  # type: ignore[arg-type]
    try:
        door.received(connection, decode(encode(value)))  # type: ignore[arg-type]
    except ProtocolError as error:
        assert len(str(error)) < 200
    job.work_off()


NO_REQUESTS = {"id": Request(DIGITS, StatusQuery()), "number": DIGITS, "list": [DIGITS], "nothing": None}
WRONG_BODIES = {
    "worker": messages.RemoveWorker(DIGITS),
    "bin": messages.Reconfigure((Move(DIGITS, 0),)),
    "number": DIGITS,
    "nothing": None,
}


@pytest.mark.parametrize("name", NO_REQUESTS)
def test_what_is_no_request_and_cannot_be_printed_shuts_its_client_out(name: str) -> None:
    door = ControlDoor(None, JobSettings("job", 1, None, "replace", (("", "jsonl"),)))
    with pytest.raises(ProtocolError, match="not a request"):
        door.received(connected(door), NO_REQUESTS[name])


@pytest.mark.parametrize("name", WRONG_BODIES)
def test_what_cannot_be_asked_is_refused_and_its_client_may_ask_on(name: str) -> None:
    asked: list[Asked | Gone] = []
    door = ControlDoor(None, JobSettings("job", 1, None, "replace", (("", "jsonl"),)))
    connection = connected(door)
    door.serve(asked.append)
    door.received(connection, Request(1, WRONG_BODIES[name]))
    door.received(connection, Request(2, StatusQuery()))
    (refused,) = connection.sent
    assert isinstance(refused, Refused) and refused.id == 1 and "of a wrong type" in refused.reason
    [passed] = asked
    assert isinstance(passed, Asked) and passed.request == Request(2, StatusQuery())


def test_who_asks_and_never_reads_the_answers_is_shut_out() -> None:
    door = ControlDoor(("h", 1), JobSettings("job", 1, None, "replace", (("", "jsonl"),)))
    connection = connected(door)
    door.received(connection, Request(1, StatusQuery()))
    connection.pending_bytes = ANSWERS_BYTES_MAX + 1
    with pytest.raises(ProtocolError, match="does not read"):
        door.received(connection, Request(2, StatusQuery()))
