"""What a commit keeps of deliveries when its store draws another lineage."""

from dataclasses import replace

import pytest

from megaflow.durable.commits import Commit, SinkToken, commit_from_bytes, deliveries_of
from megaflow.durable.incarnation import Standing, renewed
from megaflow.durable.lineage import (
    after_deliveries,
    before,
    compare,
    forked,
    last_deliveries,
    others,
    sinks_found,
    standing_of,
)
from megaflow.errors import StoreUnfit
from megaflow.timely.communication.codec.encode import encode

DELIVERED = Commit(
    9, 7, 41, 2, lineage="a", delivered=(("box", 7), ("heap", 5), ("new", 0)),
    delivered_tokens=(("box", ("x", "y")), ("heap", ("z",))),
)  # fmt: skip


def earlier(commit: Commit, sink: str) -> Standing:
    standing = before(standing_of(commit), sink)
    assert standing is not None
    return standing


def test_last_deliveries_are_compared_until_there_are_new_ones() -> None:
    now = renewed(DELIVERED, ["heap"])
    assert now.delivered_before == (("box", "a", 7, ("x", "y")),) and now.delivered_tokens == ()
    assert before(standing_of(now), "heap") is before(standing_of(now), "new") is None
    again = renewed(now)
    assert again.delivered_before == now.delivered_before and again.earlier == (now.lineage, "a")
    assert commit_from_bytes("000000000009.commit", again.to_bytes()) == again
    standing = earlier(again, "box")
    assert standing.lineage == "a" and compare(standing, "box", (7, frozenset("xy")), None, False) is None
    for found in ((7, frozenset("x")), (6, frozenset("v")), (8, frozenset("v"))):
        with pytest.raises(StoreUnfit):
            compare(standing, "box", found, None, False)
    lost = compare(standing, "box", None, None, False)
    assert lost is not None and "nothing notes that there" in lost.text
    later = replace(again, checkpoint=8)
    assert after_deliveries(later, again, ["box", "new"]).delivered_before == again.delivered_before
    assert after_deliveries(later, again, ["box"], dropped=["box"]).delivered_before == ()
    assert after_deliveries(later, again, ["new"]).delivered_before == ()
    delivered = replace(again, delivered=(("box", 8),))
    assert after_deliveries(later, delivered, ["box"]).delivered_before == ()


def test_rows_of_earlier_lineages_and_of_parents_are_another_copy() -> None:
    standing = Standing("c", ("a",), ("b",), 9, (("box", 8), ("new", 0)))
    assert (others(standing, "box"), others(standing, "new")) == (("b", "a"), ("a",))
    with pytest.raises(StoreUnfit, match="or of the job from which it was forked"):
        compare(standing, "box", None, 12, False)


def test_last_deliveries_are_those_before_the_newest_checkpoint() -> None:
    tokens = (SinkToken("box", 8, encode("w"), 1), SinkToken("box", 8, encode("v"), 0))
    waiting = replace(DELIVERED, checkpoint=8, tokens=tokens)
    assert last_deliveries(standing_of(waiting)) == {"box": ("box", 7, ("x", "y")), "heap": ("heap", 5, ("z",))}
    then = after_deliveries(waiting, waiting, ["box", "heap", "new"])
    assert last_deliveries(standing_of(then))["box"] == deliveries_of(8, tokens)["box"] == ("box", 8, ("v", "w"))
    given_up = after_deliveries(waiting, waiting, ["box", "heap", "new"], dropped=["box"])
    assert [*last_deliveries(standing_of(given_up))] == ["heap"]
    assert last_deliveries(standing_of(renewed(DELIVERED, ["heap"]))) == {"box": ("box", 7, ("x", "y"))}


def test_rows_that_go_while_a_run_lasts_are_lost() -> None:
    standing = standing_of(DELIVERED, found=("heap",))
    latest = replace(DELIVERED, delivered=(("box", 8), ("heap", 5), ("new", 0)))
    assert sinks_found(DELIVERED, standing) == ("heap",) and sinks_found(latest, standing) == ("box", "heap")
    again = standing_of(latest, found=sinks_found(latest, standing))
    assert compare(again, "new", None, None, False) is None
    for sink in ("box", "heap"):
        with pytest.raises(StoreUnfit, match="They were there when the job began"):
            compare(again, sink, None, None, False)


def test_a_fork_has_delivered_nothing_before() -> None:
    assert forked(DELIVERED).delivered_before == () and forked(DELIVERED).parents == ("a",)
