"""Roles on the port of a worker: the messages that each accepts, refuses and passes on."""

from collections.abc import Collection, Hashable
from typing import Any

import pytest

from megaflow.control.coordinator.base.events import Asked, Gone
from megaflow.control.launcher_messages import HoldOutput, Lines, LinesEnded, Reached, Started, StartFailed
from megaflow.control.messages import (
    NO_REQUEST,
    Accepted,
    Done,
    JobSettings,
    Moved,
    Refused,
    Request,
    SettingsQuery,
    StatusQuery,
)
from megaflow.control.staging_messages import Staged, StageEnd, StageLines
from megaflow.errors import ConfigMismatch, ProtocolError
from megaflow.job.worker.control.connection_handlers import (
    KEPT_MAX,
    OPEN_MAX,
    OUTPUT_BYTES_MAX,
    REQUEST_BYTES,
    ControlDoor,
    LauncherDoor,
)
from megaflow.job.worker.reading.staging import IngestDoor, Staging

SETTINGS = JobSettings("job", 2, 10.0, "replace", (("", "jsonl"),))


class FakeConnection:
    """A connection that notes what is sent."""

    def __init__(self) -> None:
        self.peer = "127.0.0.1:9"
        self.pending_bytes = 0
        self.is_drained = True
        self.read_bytes = 0
        self.is_held = False
        self.sent: list[Any] = []

    def send(self, value: object) -> None:
        self.sent.append(value)

    def read_little(self, read_bytes: int) -> None:
        self.read_bytes = read_bytes

    def hold(self, held: bool) -> None:
        self.is_held = held


class Taker:
    """A queue that notes the lines it is given."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def push(self, lines: list[str], input: str) -> None:
        self.got += lines

    def end_pushed(self, elsewhere: bool, cut: Collection[str]) -> None:
        self.got.append(elsewhere)


class Stager(Staging):
    """A staging that notes its requests."""

    def __init__(self, worker: int) -> None:
        super().__init__(worker)
        self.got: list[Any] = []

    def stage(self, message: StageLines, sender: Hashable) -> None:
        self.got.append(message)

    def end(self, message: StageEnd, sender: Hashable) -> Staged | Refused:
        return Staged(message.attempt, message.lines)

    def lost(self, sender: Hashable) -> None:
        self.got.append("lost")


def connected(door: Any) -> Any:
    connection = FakeConnection()
    door.connected(connection, {})
    return connection


def test_lines_reach_the_source_in_order_also_those_that_came_before_it_was_built() -> None:
    door, taker, wakes = LauncherDoor(), Taker(), []
    connection = connected(door)
    door.received(connection, Lines(["a", "b"]))
    door.serve(taker, lambda: wakes.append(1))
    door.received(connection, Lines(["c"]))
    door.received(connection, LinesEnded())
    assert taker.got == ["a", "b", "c", False]
    assert len(wakes) == 3


def test_lines_that_come_back_from_elsewhere_wait_for_their_turn() -> None:
    door, taker = LauncherDoor(), Taker()
    connection = connected(door)
    door.serve(taker, lambda: None)
    for message in (Lines(["a"]), LinesEnded(elsewhere=True), Lines(["d"])):
        door.received(connection, message)
    assert taker.got == ["a", True]
    door.serve(taker, lambda: None)
    door.received(connection, LinesEnded())
    assert taker.got == ["a", True, "d", False]


@pytest.mark.parametrize(
    "value",
    ["lines", LinesEnded(1), LinesEnded(cut=(1,)), HoldOutput(1), Lines("ab"), Lines(["a", 1]), Lines(None), 17,
     Request(1, StatusQuery())],
)  # type: ignore[arg-type,list-item]
def test_a_launcher_that_sends_anything_but_lines_breaks_the_protocol(value: Any) -> None:
    door = LauncherDoor()
    with pytest.raises(ProtocolError, match="launcher"):
        door.received(connected(door), value)


def test_there_is_room_only_for_a_launcher_that_keeps_up_but_what_is_sent_early_is_kept() -> None:
    door = LauncherDoor()
    assert (door.is_here, door.has_room, door.is_drained) == (False, False, True)
    door.send("early")
    assert not door.is_drained
    connection = connected(door)
    assert (door.is_here, door.has_room) == (True, True)
    connection.pending_bytes = OUTPUT_BYTES_MAX
    assert not door.has_room
    door.send("kept")
    assert connection.sent == ["early", "kept"]


def test_a_launcher_that_wants_no_outputs_for_a_while_still_gets_all_else() -> None:
    door = LauncherDoor()
    connection = connected(door)
    door.received(connection, HoldOutput(True))
    assert not door.has_room
    door.send("word")
    assert connection.sent == ["word"]
    door.received(connection, HoldOutput(False))
    assert door.has_room


def test_what_the_launcher_has_started_reaches_the_coordinator_and_only_that() -> None:
    door, heard = LauncherDoor(), []
    connection = connected(door)
    with pytest.raises(ProtocolError, match="launcher"):
        door.received(connection, StartFailed("no"))
    door.launched = heard.append
    for message in (Started((("h", 5),)), StartFailed("no"), Reached("h", 5, "no")):
        door.received(connection, message)
    assert heard == [Started((("h", 5),)), StartFailed("no"), Reached("h", 5, "no")]


def test_a_second_launcher_is_refused() -> None:
    door = LauncherDoor()
    connected(door)
    with pytest.raises(ConfigMismatch, match="launcher"):
        connected(door)


def test_nobody_waits_for_a_launcher_that_is_gone() -> None:
    door = LauncherDoor()
    connection = connected(door)
    connection.is_drained = False
    assert not door.is_drained
    door.lost(connection)
    assert door.gone
    assert door.is_drained


def test_requests_reach_the_coordinator_also_those_that_came_before_it_was_there() -> None:
    door, asked = ControlDoor(None, SETTINGS), []
    connection = connected(door)
    first, second = Request(1, StatusQuery()), Request(2, StatusQuery())
    door.received(connection, first)
    door.serve(asked.append)
    door.received(connection, second)
    door.lost(connection)
    client = asked[0].client
    assert asked == [Asked(client, first), Asked(client, second), Gone(client)] and client.connection is connection


def test_few_requests_of_one_client_are_under_way_and_nothing_is_read_of_it_while_others_wait() -> None:
    door, asked = ControlDoor(None, SETTINGS), []
    flooding, other = connected(door), connected(door)
    door.serve(asked.append)
    requests = [Request(id, StatusQuery()) for id in range(100)]
    for request in requests:
        door.received(flooding, request)
    door.received(other, Request(0, StatusQuery()))
    assert len(asked) == OPEN_MAX + 1 and asked[-1].client.connection is other
    assert flooding.is_held and not other.is_held
    del asked[OPEN_MAX]
    for answered, request in enumerate(requests):
        client = asked[answered].client
        assert asked[answered] == Asked(client, request) and flooding.is_held == (answered < 100 - OPEN_MAX)
        client.send(Accepted(request.id, 1))
        assert len(asked) == min(answered + OPEN_MAX, 100)
        client.send(Done(request.id, None))
    assert not flooding.is_held and len(flooding.sent) == 200


def test_what_waits_is_taken_up_in_its_order_also_where_answers_come_at_once_and_elsewhere() -> None:
    door, asked = ControlDoor(None, SETTINGS), []
    connection = connected(door)
    for id in range(50):
        door.received(connection, Request(id, SettingsQuery() if id % 2 else StatusQuery()))
    assert [each.id for each in connection.sent] == [1, 3, 5] and connection.is_held

    def answer(asked: Any) -> None:
        asked.client.send(Done(asked.request.id, SETTINGS))

    door.serve(answer)
    ids = [each.id for each in connection.sent]
    assert ids[3:-3] == [0, *range(7, 50)] and ids[-3:] == [2, 4, 6] and not connection.is_held
    door.serve(asked.append)
    for id in range(20):
        door.received(connection, Request(id, StatusQuery()))
    door.keep(asked)
    door.redirect("h", 1)
    moved = [Moved(id, "h", 1) for id in (0, *range(OPEN_MAX, 20), *range(1, OPEN_MAX))]
    assert connection.sent[50:] == moved and not connection.is_held


def test_who_hangs_up_is_forgotten_with_what_it_has_waiting() -> None:
    door, asked = ControlDoor(None, SETTINGS), []
    connection = connected(door)
    door.serve(asked.append)
    for id in range(OPEN_MAX + 1):
        door.received(connection, Request(id, StatusQuery()))
    door.lost(connection)
    client = asked[0].client
    assert asked[OPEN_MAX:] == [Gone(client)]
    client.send(Done(0, None))
    assert len(asked) == OPEN_MAX + 1 and not door._clients


def test_a_client_is_read_a_little_at_a_time() -> None:
    connection = connected(ControlDoor(None, SETTINGS))
    assert connection.read_bytes == REQUEST_BYTES


def test_another_process_sends_whoever_asks_to_the_coordinator() -> None:
    door = ControlDoor(("10.0.0.7", 2101), SETTINGS)
    connection = connected(door)
    door.received(connection, Request(5, StatusQuery()))
    door.lost(connection)
    assert connection.sent == [Moved(5, "10.0.0.7", 2101)]


@pytest.mark.parametrize("coordinator", [None, ("10.0.0.7", 2101)])
def test_the_settings_are_told_at_once_wherever_the_coordinator_is(coordinator: tuple[str, int] | None) -> None:
    door, asked = ControlDoor(coordinator, SETTINGS), []
    connection = connected(door)
    door.received(connection, Request(7, SettingsQuery()))
    if coordinator is None:
        door.serve(asked.append)
    door.received(connection, Request(8, SettingsQuery()))
    assert connection.sent == [Done(7, SETTINGS), Done(8, SETTINGS)] and asked == []
    with pytest.raises(ProtocolError, match="not a request"):
        door.received(connection, Request("x", SettingsQuery()))  # type: ignore[arg-type]


def test_what_is_asked_while_the_coordinator_changes_is_kept_until_the_next_one_serves() -> None:
    door, asked = ControlDoor(None, SETTINGS), []
    first, second = connected(door), connected(door)
    door.serve(asked.append)
    door.received(first, Request(1, StatusQuery()))
    door.keep(asked)
    door.received(second, Request(2, StatusQuery()))
    door.lost(second)
    assert first.sent == second.sent == []
    door.redirect("h", 7)
    door.received(first, Request(3, StatusQuery()))
    assert first.sent == [Moved(1, "h", 7), Moved(3, "h", 7)] and second.sent == [Moved(2, "h", 7)]
    served: list[Any] = []
    door.serve(served.append)  # it is back
    door.received(first, Request(4, StatusQuery()))
    [again] = served
    assert again == Asked(again.client, Request(4, StatusQuery())) and again.client.connection is first
    assert len(asked) == 1


def test_whoever_is_connected_is_told_where_the_coordinator_goes_also_who_has_asked_nothing() -> None:
    door = ControlDoor(None, SETTINGS)
    silent, idle, gone = connected(door), connected(door), connected(door)
    door.serve(lambda event: None)
    door.received(idle, Request(1, SettingsQuery()))
    door.lost(gone)
    door.keep(())
    door.redirect("h", 7)
    told = Moved(NO_REQUEST, "h", 7)
    assert silent.sent == [told] and idle.sent == [Done(1, SETTINGS), told] and gone.sent == []


def test_so_many_requests_are_kept_and_no_more() -> None:
    door, served = ControlDoor(None, SETTINGS), []
    askers = [connected(door) for _ in range(KEPT_MAX + 1)]
    for asker in askers:
        door.received(asker, Request(1, StatusQuery()))
    for _ in range(10):
        door.lost(connected(door))  # it has sent no request
    [refused] = askers[-1].sent
    assert isinstance(refused, Refused) and "try again later" in refused.reason
    door.serve(served.append)
    assert [each.client.connection for each in served] == askers[:-1]


@pytest.mark.parametrize("value", [None, "status", Request("1", StatusQuery())])  # type: ignore[arg-type]
def test_what_is_no_request_breaks_the_protocol(value: Any) -> None:
    door = ControlDoor(None, SETTINGS)
    with pytest.raises(ProtocolError, match="not a request"):
        door.received(connected(door), value)


def test_lines_are_staged_at_the_worker_they_name_and_the_end_is_answered() -> None:
    stagers = {2: Stager(2), 3: Stager(3)}
    door = IngestDoor(stagers)
    connection = connected(door)
    stage = StageLines("q", "r", 0, 1, 7, 3, 1, "a")
    door.received(connection, stage)
    door.received(connection, StageEnd("q", "r", 0, 1, 7, 3, 1))
    assert (stagers[2].got, stagers[3].got) == ([], [stage])
    assert connection.sent == [Staged(7, 1)]
    door.lost(connection)
    assert (stagers[2].got, stagers[3].got) == (["lost"], [stage, "lost"])


@pytest.mark.parametrize("worker", [4, [], None, True])
def test_lines_for_a_worker_elsewhere_break_the_protocol(worker: Any) -> None:
    door = IngestDoor({3: Stager(3), 1: Stager(1)})
    with pytest.raises(ProtocolError, match="executor"):
        door.received(connected(door), StageLines("q", "r", 0, 1, 7, worker, 1, "a"))
