"""Processes that do not fit together report why, on both sides; processes that never arrive are named."""

import socket
import time
from typing import Any

import pytest

from megaflow.errors import ConfigMismatch, ConnectTimeout
from megaflow.timely.communication.rendezvous import PeerAddress
from megaflow.timely.communication.tcp_fabric import TcpFabric
from tests.ports import closed_port


def meet(cluster: Any, *settings: tuple[list[PeerAddress], int, int], timeout: float = 60.0) -> list[BaseException]:
    """Connect each fabric with its own settings; return the errors."""
    meetings = [
        cluster.run(fabric.connect, peers, process, workers, timeout)
        for fabric, (peers, process, workers) in zip(cluster.fabrics, settings)
    ]
    errors = [meeting.exception(60) for meeting in meetings]
    assert all(errors)
    return errors


def test_different_numbers_of_workers_are_named_on_both_sides(make_cluster: Any) -> None:
    cluster = make_cluster(2)
    for error in meet(cluster, (cluster.peers, 0, 1), (cluster.peers, 1, 3)):
        assert isinstance(error, ConfigMismatch)
        assert "3 workers per process" in str(error) or "with 3" in str(error)
        assert "same -w" in str(error)


def test_different_numbers_of_processes_are_named_on_both_sides(make_cluster: Any) -> None:
    cluster = make_cluster(2)
    third = PeerAddress(2, "127.0.0.1", 1, (2,))
    for error in meet(cluster, (cluster.peers, 0, 1), ([*cluster.peers, third], 1, 1)):
        assert isinstance(error, ConfigMismatch)
        assert "for 3" in str(error)
        assert "for 2" in str(error)


def test_a_missing_peer_is_named_with_its_address(make_cluster: Any) -> None:
    cluster = make_cluster(3)
    second = cluster.run(cluster.fabrics[1].connect, cluster.peers, 1, 1, 60.0)
    first = cluster.run(cluster.fabrics[0].connect, cluster.peers, 0, 1, 2.0)
    for error in (first.exception(60), second.exception(60)):
        assert isinstance(error, ConnectTimeout)
        assert f"process 2 at 127.0.0.1:{cluster.ports[2]}" in str(error)
        assert "process 1 at" not in str(error)


def test_a_dialled_peer_that_does_not_answer_is_named_with_the_reason(make_cluster: Any) -> None:
    cluster = make_cluster(2)
    with closed_port() as (host, port):
        cluster.peers[0] = PeerAddress(0, host, port, (0,))
        with pytest.raises(ConnectTimeout, match=f"process 0 at {host}:{port} .Connection refused"):
            cluster.fabrics[1].connect(cluster.peers, 1, 1, 0.3)


def test_a_peer_that_comes_late_is_waited_for(make_cluster: Any, collect: Any) -> None:
    cluster = make_cluster(2)
    with socket.socket() as late:
        late.bind(("127.0.0.1", 0))
        cluster.peers[0] = PeerAddress(0, *late.getsockname(), (0,))
        dialling = cluster.run(cluster.fabrics[1].connect, cluster.peers, 1, 1)
        while cluster.fabrics[1]._rendezvous is None or "refused" not in str(cluster.fabrics[1]._rendezvous.timeout(1)):
            assert not dialling.done()
            time.sleep(0.01)
        late.listen()
        fabric = TcpFabric(late, [0], b"a secret of the tests")
        fabric.connect(cluster.peers, 0, 1)
        dialling.result(180)
        fabric.close()


def test_another_secret_is_refused_at_once_with_the_address(make_cluster: Any) -> None:
    cluster = make_cluster(2)
    waiting = cluster.run(cluster.fabrics[0].connect, cluster.peers, 0, 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stranger = TcpFabric(listener, [1], b"another")
        with pytest.raises(ConfigMismatch, match=rf"127.0.0.1:{cluster.ports[0]}.*same MEGAFLOW_SECRET"):
            stranger.connect(cluster.peers, 1, 1)
        stranger.close()
    assert not waiting.done()


def test_a_second_process_with_the_same_number_is_refused_and_the_first_goes_on(
    make_cluster: Any, collect: Any, serve: Any, secret: bytes
) -> None:
    cluster = make_cluster(2)
    a, b = cluster.connect()
    serving = cluster.run(serve, a)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        double = TcpFabric(listener, [1], secret)
        with pytest.raises(ConfigMismatch, match="process 1 is already connected"):
            double.connect(cluster.peers, 1, 1)
        double.close()
    assert not serving.done()
    assert not b.receive()


def test_a_list_in_another_order_is_named(make_cluster: Any) -> None:
    cluster = make_cluster(3)
    zero, one, two = cluster.peers
    swapped = [
        PeerAddress(0, one.host, one.port, (0,)), PeerAddress(1, zero.host, zero.port, (1,)), two
    ]  # fmt: skip
    cluster.run(cluster.fabrics[0].connect, cluster.peers, 0, 1)
    with pytest.raises(ConfigMismatch, match=r"is process 0, but process 2 lists it as process 1"):
        cluster.fabrics[2].connect(swapped, 2, 1)
