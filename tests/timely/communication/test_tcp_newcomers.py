"""Processes join a running cluster and leave it; only the loss of a member stops it."""

import socket
from collections.abc import Sequence
from typing import Any

import pytest

from megaflow.errors import ConfigMismatch, ConnectTimeout, PeerFailed, PeerLost, ProtocolError
from megaflow.timely.communication.allocator import FailureReport
from megaflow.timely.communication.channel import MAIL, Channel, Envelope, Lane
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.communication.rendezvous import PEER_ROLE, PeerAddress
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.tcp_fabric import TcpFabric
from megaflow.timely.communication.wire import frames
from megaflow.timely.rescale.messages import TOPIC, LinkLost
from tests.ports import closed_port


def finish_all(runners: Sequence[Any]) -> None:
    """Let all workers finish together; none may fail."""
    for runner in runners:
        runner.finish()
    for runner in runners:
        runner.ended()


def promote_all(runners: Sequence[Any], ids: Sequence[int]) -> None:
    for runner in runners:
        runner.do(runner.end.promote, ids)


def expect_lost(runner: Any, ids: tuple[int, ...]) -> None:
    assert runner.next() == Envelope(MAIL, runner.index, (TOPIC, LinkLost(ids)))


def everybody_hears_everybody(runners: Sequence[Any]) -> None:
    for runner in runners:
        for other in runners:
            if other is not runner:
                runner.send(other.index, ("from", runner.index))
    for runner in runners:
        sources = {runner.next().source for _ in range(len(runners) - 1)}
        assert sources == {other.index for other in runners} - {runner.index}


# Coming -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("processes", "workers"), [(1, 1), (2, 2), (3, 1)])
def test_a_newcomer_is_a_member_like_the_others_once_promoted(run_cluster: Any, processes: int, workers: int) -> None:
    cluster, members = run_cluster(processes, workers)
    newcomers = cluster.newcomer().join()
    ids = [runner.index for runner in newcomers]
    everybody_hears_everybody([*members, *newcomers])
    promote_all([*members, *newcomers], ids)
    promote_all(members, ids)  # a second time changes nothing
    everybody_hears_everybody([*members, *newcomers])
    finish_all([*members, *newcomers])


def test_one_newcomer_comes_after_the_other_and_the_later_one_knows_the_earlier(run_cluster: Any) -> None:
    cluster, runners = run_cluster(2)
    for change in (3, 5, 6):
        newcomer = cluster.newcomer(change)
        runners += newcomer.join()
        promote_all(runners, newcomer.own.ids)
        cluster.peers.append(newcomer.own)
    everybody_hears_everybody(runners)
    finish_all(runners)


def test_a_member_that_finishes_early_waits_for_the_newcomers_goodbye(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(2)
    [two] = cluster.newcomer().join()
    promote_all([zero, one, two], [2])
    zero.finish()
    one.finish()
    two.send(0, "to one who has finished")
    finish_all([zero, one, two])


def test_a_newcomer_is_reported_with_its_address(run_cluster: Any) -> None:
    cluster, members = run_cluster(1)
    newcomer = cluster.newcomer()
    newcomers = newcomer.join()
    assert f"connected to process 1 at 127.0.0.1:{newcomer.own.port} (worker 1)" in cluster.reports
    promote_all([*members, *newcomers], [1])
    finish_all([*members, *newcomers])


# Lost before it takes part ------------------------------------------------------------------


def test_a_newcomer_lost_before_it_is_promoted_is_news_to_every_worker_and_no_more(run_cluster: Any) -> None:
    cluster, members = run_cluster(2, workers=2)
    newcomer = cluster.newcomer()
    newcomer.fabric.join(cluster.peers, newcomer.own, 1)
    newcomer.fabric.close()
    for member in members:
        expect_lost(member, (4, 5))
        member.send(4, "to one who is gone")
    everybody_hears_everybody(members)
    finish_all(members)


def test_a_newcomer_that_fails_stops_nobody(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    newcomer = cluster.newcomer()
    newcomer.fabric.join(cluster.peers, newcomer.own, 1)
    TcpAllocator(newcomer.fabric, 2).abort(FailureReport(2, "there:1", "ValueError: boom"))
    for member in members:
        expect_lost(member, (2,))
    finish_all(members)
    assert any("which was joining: worker 2 at there:1 failed:\nValueError: boom" in text for text in cluster.reports)


def test_a_newcomer_that_breaks_the_protocol_stops_nobody(run_cluster: Any) -> None:
    cluster, members = run_cluster(1)
    [newcomer] = cluster.newcomer().join()
    link = newcomer.end._fabric.peers.links[0]
    newcomer.do(lambda: (link.queue(0, [frames(99, b"unknown kind")[0]]), newcomer.end.flush()))
    expect_lost(members[0], (1,))
    finish_all(members)


def test_a_newcomer_that_says_goodbye_is_lost_as_well(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    [newcomer] = cluster.newcomer().join()
    newcomer.finish()
    for member in members:
        expect_lost(member, (2,))
    finish_all(members)
    newcomer.ended()


def test_a_newcomer_that_is_lost_stays_out(run_cluster: Any) -> None:
    cluster, members = run_cluster(1)
    newcomer = cluster.newcomer()
    newcomer.fabric.join(cluster.peers, newcomer.own, 1)
    newcomer.fabric.close()
    expect_lost(members[0], (1,))
    with pytest.raises(ConfigMismatch, match="process 1 with worker 1 is already connected"):
        cluster.newcomer(1).join()
    finish_all(members)


def test_a_member_that_fails_stops_a_newcomer_too(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(2)
    [two] = cluster.newcomer().join()
    zero.do(zero.end.abort, FailureReport(0, "", "boom"))
    for runner in (one, two):
        with pytest.raises(PeerFailed, match="worker 0 failed:\nboom"):
            runner.ended()


def test_a_lost_member_stops_a_newcomer_too(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(2)
    [two] = cluster.newcomer().join()
    cluster.fabrics[0].close()
    for runner in (one, two):
        with pytest.raises(PeerLost, match="process 0 at"):
            runner.ended()
    with pytest.raises(Exception, match="closed its connections"):
        zero.ended()


def test_nobody_waits_for_a_newcomer_at_the_end(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    [newcomer] = cluster.newcomer().join()
    finish_all(members)
    assert {newcomer.next().body for _ in members} == {(TOPIC, LinkLost((0,))), (TOPIC, LinkLost((1,)))}
    finish_all([newcomer])


# Lost as a member ---------------------------------------------------------------------------


def test_a_newcomer_lost_after_it_is_promoted_stops_the_cluster_and_is_named(run_cluster: Any) -> None:
    cluster, members = run_cluster(2, workers=2)
    newcomer = cluster.newcomer()
    newcomer.fabric.join(cluster.peers, newcomer.own, 1)
    promote_all(members, newcomer.own.ids)
    newcomer.fabric.close()
    for member in members:
        with pytest.raises(PeerLost, match=rf"lost process 2 at 127.0.0.1:{newcomer.own.port} \(workers 4, 5\)"):
            member.ended()


def test_promoting_one_who_is_lost_already_fails_at_once_everywhere(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    newcomer = cluster.newcomer()
    newcomer.fabric.join(cluster.peers, newcomer.own, 1)
    newcomer.fabric.close()
    for member in members:
        expect_lost(member, (2,))
    with pytest.raises(PeerLost, match=r"lost process 2 at .* \(worker 2\)"):
        members[0].do(members[0].end.promote, [2])
    with pytest.raises(PeerLost, match=r"lost process 2 at .* \(worker 2\)"):
        members[1].ended()


def test_promoting_one_who_never_came_fails(run_cluster: Any) -> None:
    _, members = run_cluster(1)
    with pytest.raises(PeerLost, match=r"the new workers \[7\] have never connected"):
        members[0].do(members[0].end.promote, [0, 7])


# Parting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_member_leaves_and_its_address_is_used_again(run_cluster: Any, workers: int) -> None:
    cluster, members = run_cluster(2, workers)
    place = ("127.0.0.1", 0)
    for change in (1, 4, 9):
        newcomer = cluster.newcomer(
            change, process=1 + change, ids=range(10 * change, 10 * change + workers), address=place
        )
        place = (newcomer.own.host, newcomer.own.port)
        newcomers = newcomer.join()
        promote_all([*members, *newcomers], newcomer.own.ids)
        everybody_hears_everybody([*members, *newcomers])
        for runner in newcomers:
            runner.finish()
        for member in members:
            member.send(newcomer.own.ids[0], "last")
            member.do(member.end.forget, newcomer.own.ids)
            member.do(member.end.forget, newcomer.own.ids)  # a second time changes nothing
            member.send(newcomer.own.ids[0], "dropped")
        for runner in newcomers:
            runner.ended()
        everybody_hears_everybody(members)
    finish_all(members)


def test_a_founder_leaves(run_cluster: Any) -> None:
    _, [zero, one, two] = run_cluster(3)
    zero.send(2, "before")
    zero.do(zero.end.forget, [2])
    zero.send(2, "after")
    one.do(one.end.forget, [2])
    assert two.next().body == "before"
    finish_all([two])
    assert two.arrived.empty()
    everybody_hears_everybody([zero, one])
    finish_all([zero, one])


def test_what_was_sent_before_parting_still_arrives(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    [newcomer] = cluster.newcomer().join()
    promote_all([*members, newcomer], [2])
    large = b"0123456789" * 500_000
    for member in members:
        member.do(lambda end=member.end: (end.send(2, Channel(Lane.DATA, 0, 0), large), end.forget([2])))
    assert {newcomer.next().body for _ in members} == {large}
    finish_all([newcomer])
    finish_all(members)


def test_the_loss_of_one_who_has_parted_is_none(run_cluster: Any) -> None:
    cluster, members = run_cluster(2, workers=2)
    newcomer = cluster.newcomer()
    newcomer.fabric.join(cluster.peers, newcomer.own, 1)
    promote_all(members, newcomer.own.ids)
    for member in members:
        if member.index != 1:  # one worker of a process is enough
            member.do(member.end.forget, newcomer.own.ids)
    newcomer.fabric.close()
    everybody_hears_everybody(members)
    finish_all(members)
    assert all(member.arrived.empty() for member in members)


def test_each_worker_parts_by_itself_and_the_goodbye_comes_after_the_last_one(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(1, workers=2)
    newcomers = cluster.newcomer().join()
    two = newcomers[0]
    promote_all([zero, one, *newcomers], [2, 3])
    zero.do(zero.end.forget, [2, 3])
    zero.send(2, "dropped")
    one.send(2, "you have left")
    assert two.next() == Envelope(Channel(Lane.DATA, 0, 0), 1, "you have left")
    two.send(0, "unheard")
    two.send(1, "thanks")
    assert one.next().body == "thanks"
    finish_all([one])  # a worker that has finished has also left
    finish_all(newcomers)
    finish_all([zero])
    assert zero.arrived.empty()


def test_one_who_is_gone_before_the_last_worker_parts_still_gets_its_goodbye(run_cluster: Any) -> None:
    cluster, [zero, one] = run_cluster(1, workers=2)
    newcomers = cluster.newcomer().join()
    promote_all([zero, one, *newcomers], [2, 3])
    link = zero.end._fabric.peers.links[2]
    zero.do(zero.end.forget, [2, 3])
    for newcomer in newcomers:
        newcomer.finish()
    while link._readable:  # the end of its stream has not come yet
        zero.do(zero.end.flush)
    one.do(one.end.forget, [2, 3])
    for newcomer in newcomers:
        newcomer.ended()
    finish_all([zero, one])


def test_a_newcomer_sent_away_hears_all_that_was_said_and_then_that_the_members_are_gone(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    [newcomer] = cluster.newcomer().join()
    for member in members:
        member.do(lambda end=member.end: (end.send(2, MAIL, "go"), end.forget([2])))
    heard = [newcomer.next() for _ in range(4)]
    for index in (0, 1):
        said = heard.index(Envelope(MAIL, index, "go"))
        assert said < heard.index(Envelope(MAIL, 2, (TOPIC, LinkLost((index,)))))
    newcomer.send(0, "unheard")
    finish_all([newcomer])
    everybody_hears_everybody(members)
    finish_all(members)


def test_one_who_was_sent_away_may_come_again_on_the_same_address(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    first = cluster.newcomer(1)
    [runner] = first.join()
    for member in members:
        member.do(member.end.forget, [2])
    finish_all([runner])
    second = cluster.newcomer(2, process=3, ids=[3], address=(first.own.host, first.own.port))
    [runner] = second.join()
    promote_all([*members, runner], [3])
    finish_all([*members, runner])


# Refused ------------------------------------------------------------------------------------


def test_who_comes_too_late_is_refused(run_cluster: Any) -> None:
    cluster, members = run_cluster(1)
    members[0].do(members[0].end.forget, [1])  # the change was cancelled before any process joined
    with pytest.raises(ConfigMismatch, match="change 4 of the membership has ended: ask to join again"):
        cluster.newcomer(4).join()
    [newcomer] = cluster.newcomer(5, process=2, ids=[2]).join()
    promote_all([*members, newcomer], [2])
    with pytest.raises(ConfigMismatch, match="change 5 of the membership has ended"):
        cluster.newcomer(5, process=3, ids=[3]).join()
    finish_all([*members, newcomer])


def test_another_secret_is_refused_and_the_others_go_on(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    with pytest.raises(ConfigMismatch, match="the secrets differ"):
        cluster.newcomer(secret=b"another").join()
    everybody_hears_everybody(members)
    finish_all(members)


def test_another_number_of_workers_is_refused(run_cluster: Any) -> None:
    cluster, members = run_cluster(1)
    with pytest.raises(ConfigMismatch, match=r"process 1 at .* has 3 workers, but the processes here have 1"):
        cluster.newcomer(ids=[1, 2, 3]).join()
    finish_all(members)


def test_the_ids_of_others_are_refused(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    cluster.peers.pop(0)
    with pytest.raises(ConfigMismatch, match="process 7 with worker 0 is already connected"):
        cluster.newcomer(process=7, ids=[0]).join()
    finish_all(members)


@pytest.mark.parametrize(
    "wrong",
    [{"change": "1"}, {"change": None}, {"ids": []}, {"ids": ["a"]}, {"ids": None}, {"process": "x"}, {"port": None}],
)
def test_a_hello_of_another_shape_is_refused(run_cluster: Any, secret: bytes, wrong: dict[str, Any]) -> None:
    cluster, members = run_cluster(1)
    hello = {"process": 1, "ids": [1], "workers": 1, "host": "localhost", "port": 1, "change": 1} | wrong
    with pytest.raises((PeerLost, ProtocolError)):
        Client.connect("127.0.0.1", cluster.ports[0], secret, PEER_ROLE, hello)
    finish_all(members)


def test_where_there_is_no_way_in_newcomers_are_refused(make_cluster: Any, secret: bytes, serve: Any) -> None:
    cluster = make_cluster(1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member = PeerAddress(0, *listener.getsockname(), (0,))
        fabric = TcpFabric(listener, [0], secret)
        fabric.connect([member], 0, 1)
        serving = cluster.run(serve, TcpAllocator(fabric, 0))
        newcomer = cluster.newcomer(ids=[1])
        with pytest.raises(ConfigMismatch, match="no process can join"):
            newcomer.fabric.join([member], newcomer.own, 1)
        fabric.close()
        assert "closed its connections" in str(serving.exception(60))


def test_a_member_that_does_not_answer_is_named(run_cluster: Any) -> None:
    cluster, members = run_cluster(1)
    with closed_port() as (host, port):
        cluster.peers.append(PeerAddress(5, host, port, (5,)))
        with pytest.raises(ConnectTimeout, match=rf"process 1 waited 2 s for process 5 at {host}:{port}"):
            cluster.newcomer(process=1, ids=[1]).join(2.0)
    expect_lost(members[0], (1,))
    finish_all(members)


def test_another_process_at_a_members_address_is_named(run_cluster: Any) -> None:
    cluster, members = run_cluster(2)
    first, second = cluster.peers
    cluster.peers[:] = [PeerAddress(9, first.host, first.port, (9,)), second]
    with pytest.raises(ConfigMismatch, match="is process 0, but process 2 lists it as process 9"):
        cluster.newcomer(process=2, ids=[2]).join()
    finish_all(members)


def test_in_a_single_process_there_is_nobody_to_promote_or_forget() -> None:
    [end] = [LocalFabric([0]).allocator(0)]
    end.promote([0, 1])
    end.forget([1])
    end.send(0, Channel(Lane.DATA, 0, 0), "still here")
    assert end.receive()[0].body == "still here"
