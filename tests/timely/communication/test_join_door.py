"""A process asks a running cluster for admission, at the port of any member."""

from concurrent.futures import Future
from typing import Any

import pytest

from megaflow.errors import ConfigMismatch, ConnectTimeout, JoinDenied, PeerLost, ProtocolError
from megaflow.timely.communication.channel import MAIL, Envelope
from megaflow.timely.communication.client import Client
from megaflow.timely.membership import founding
from megaflow.timely.rescale.join_door import ASKS_MAX, JoinDoor, ask_to_join
from megaflow.timely.rescale.messages import TOPIC, Admission, Denied, JoinAsk
from tests.ports import closed_port

ADMISSION = Admission(
    3, 7, (14, 15), 1, founding([0, 1]), {0: ("here", 1, (0,)), 4: ("there", 2, (1,))}, ((0, founding([0, 1])),)
)
HERE = ("here.example", 2103)


def ask(cluster: Any, *ports: int, server: int | None = None, seconds: float = 60.0) -> "Future[Admission]":
    """Ask at these ports of this machine, in a thread."""
    contacts = [("127.0.0.1", port) for port in ports]
    asked: Future[Admission] = cluster.run(ask_to_join, contacts, b"a secret of the tests", HERE, 2, server, seconds)
    return asked


def next_ask(runner: Any) -> JoinAsk:
    """Return the request that a worker finds in its mail."""
    envelope = runner.next()
    assert envelope[:2] == (MAIL, runner.index) and envelope.body[0] == TOPIC
    assert isinstance(envelope.body[1], JoinAsk)
    return envelope.body[1]


def finish_all(runners: list[Any]) -> None:
    for runner in runners:
        runner.finish()
    for runner in runners:
        runner.ended()


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("server", [None, 3])
def test_a_request_comes_by_mail_and_the_answer_goes_back(run_cluster: Any, process: int, server: int | None) -> None:
    cluster, members = run_cluster(2, workers=2)
    asked = ask(cluster, cluster.ports[process], server=server)
    request = next_ask(members[2 * process])
    assert request == JoinAsk(request.key, *HERE, 2, server)
    members[2 * process].do(cluster.doors[process].answer, request.key, ADMISSION)
    assert asked.result(180) == ADMISSION
    members[2 * process].do(cluster.doors[process].answer, request.key, ADMISSION)  # no process waits now
    finish_all(members)
    assert all(member.arrived.empty() for member in members)


def test_several_requests_are_told_apart(run_cluster: Any) -> None:
    cluster, [member] = run_cluster(1)
    asked = {server: ask(cluster, *cluster.ports, server=server) for server in (10, 11, 12)}
    for _ in asked:
        request = next_ask(member)
        member.do(cluster.doors[0].answer, request.key, Denied(f"there is no worker {request.server}"))
    for server, future in asked.items():
        with pytest.raises(JoinDenied, match=f"this process may not join: there is no worker {server}"):
            future.result(180)
    finish_all([member])


def test_who_has_not_finished_yet_is_asked(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(1, workers=2)
    zero.finish()
    zero.ended()
    asked = ask(cluster, *cluster.ports)
    one.do(cluster.doors[0].answer, next_ask(one).key, ADMISSION)
    assert asked.result(180) == ADMISSION
    finish_all([one])


def test_when_the_worker_that_was_asked_finishes_the_request_is_denied(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(1, workers=2)
    asked = ask(cluster, *cluster.ports)
    next_ask(zero)
    zero.finish()
    zero.ended()
    with pytest.raises(JoinDenied, match="the cluster has come to its end"):
        asked.result(180)
    finish_all([one])


def test_the_last_answer_still_arrives_when_the_process_ends(run_cluster: Any) -> None:
    cluster, [zero] = run_cluster(1)
    asked = ask(cluster, *cluster.ports)
    next_ask(zero)
    finish_all([zero])
    with pytest.raises(JoinDenied, match="the cluster has come to its end"):
        asked.result(180)


def test_the_first_contact_that_answers_is_enough(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(2)
    with closed_port() as (_, closed):
        asked = ask(cluster, closed, cluster.ports[1], cluster.ports[0])
        one.do(cluster.doors[1].answer, next_ask(one).key, ADMISSION)
        assert asked.result(180) == ADMISSION
    finish_all([zero, one])


def test_when_a_contact_dies_the_next_one_is_asked(run_cluster: Any) -> None:
    cluster, [zero] = run_cluster(1)
    other, [first] = run_cluster(1)
    asked = ask(cluster, other.ports[0], cluster.ports[0])
    next_ask(first)
    other.fabrics[0].close()
    zero.do(cluster.doors[0].answer, next_ask(zero).key, ADMISSION)
    assert asked.result(180) == ADMISSION
    finish_all([zero])


def test_contacts_that_do_not_answer_are_named_with_the_reason(run_cluster: Any) -> None:
    cluster, [zero] = run_cluster(1)
    with closed_port() as (_, closed):
        asked = ask(cluster, closed, cluster.ports[0], seconds=2.0)
        with pytest.raises(ConnectTimeout) as raised:
            asked.result(180)
    assert f"within 2 s: 127.0.0.1:{closed} (Connection refused); " in str(raised.value)
    assert f"127.0.0.1:{cluster.ports[0]} (127.0.0.1:{cluster.ports[0]} sent nothing" in str(raised.value)
    finish_all([zero])


def test_another_secret_is_refused_at_once(run_cluster: Any) -> None:
    cluster, [zero] = run_cluster(1)
    with pytest.raises(ConfigMismatch, match=r"this process cannot join: 127.0.0.1:\d+ refuses .*same MEGAFLOW_SECRET"):
        ask_to_join([("127.0.0.1", cluster.ports[0])], b"another", HERE, 1, None, 60)
    finish_all([zero])
    assert zero.arrived.empty()


@pytest.mark.parametrize(
    "wrong", [{"host": 1}, {"port": "2101"}, {"workers": None}, {"server": "0"}, {"server": [0]}, {"host": None}]
)
def test_a_request_of_another_shape_is_refused(run_cluster: Any, secret: bytes, wrong: dict[str, Any]) -> None:
    cluster, [zero] = run_cluster(1)
    hello = {"host": "here", "port": 1, "workers": 1, "server": None} | wrong
    with pytest.raises((PeerLost, ProtocolError)):
        Client.connect("127.0.0.1", cluster.ports[0], secret, "join", hello)
    finish_all([zero])
    assert zero.arrived.empty()


def test_who_talks_on_is_sent_away_and_who_hangs_up_is_forgotten(run_cluster: Any, secret: bytes) -> None:
    cluster, [zero] = run_cluster(1)
    hello = {"host": "here", "port": 1, "workers": 1, "server": None}
    with Client.connect("127.0.0.1", cluster.ports[0], secret, "join", hello) as client:
        key = next_ask(zero).key
        client.send("and another thing")
        with pytest.raises(PeerLost):
            client.receive(180)
    zero.do(cluster.doors[0].answer, key, ADMISSION)
    finish_all([zero])


class FakeConnection:
    """Connection as the door uses it."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.closed = False

    def send(self, value: object) -> None:
        self.sent.append(value)

    def close(self) -> None:
        self.closed = True


def test_only_so_many_wait_at_a_time() -> None:
    door, posted = JoinDoor([4, 5]), list[Envelope]()
    door.attach(lambda worker, topic, body: posted.append(Envelope(MAIL, worker, body)))
    connections: list[Any] = [FakeConnection() for _ in range(ASKS_MAX + 1)]
    hello = {"host": "here", "port": 1, "workers": 1, "server": None}
    for connection in connections[:-1]:
        door.connected(connection, hello)
    with pytest.raises(ConfigMismatch, match=f"{ASKS_MAX} processes are already waiting to join"):
        door.connected(connections[-1], hello)
    assert {envelope.source for envelope in posted} == {4} and len(posted) == ASKS_MAX
    door.lost(connections[0])
    door.connected(connections[-1], hello)
    door.answer(posted[0].body.key, Denied("no"))
    door.answer(posted[1].body.key, Denied("no"))
    assert (connections[0].sent, connections[0].closed) == ([], False)
    assert (connections[1].sent, connections[1].closed) == ([Denied("no")], True)
    door.finished(5)
    assert not connections[2].sent
    door.finished(4)
    assert all(connection.closed and len(connection.sent) == 1 for connection in connections[1:])
    with pytest.raises(ConfigMismatch, match="no process can join any longer"):
        door.connected(connections[0], hello)
