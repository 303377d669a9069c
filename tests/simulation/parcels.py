"""Bins that travel in many parcels, and the bound on what of them is under way, for runs on a simulated cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from megaflow import migration
from megaflow.migration import Chunk
from megaflow.testing import Network, SimulatedCluster
from megaflow.testing.network import Route
from megaflow.timely.communication.allocator import Lane
from megaflow.timely.communication.codec import decode


@contextmanager
def small(seed: int, cluster: SimulatedCluster) -> Iterator[None]:
    """In the block, chunks are of a few keys in most seeds, and more than one parcel for a worker is a failure."""
    usual = migration.CHUNK_BYTES
    migration.CHUNK_BYTES = Random(f"chunks {seed}").choice([1, 1, 40, usual])
    watch(cluster._network, f"seed {seed}")
    try:
        yield
    finally:
        migration.CHUNK_BYTES = usual


def watch(network: Network, title: str) -> None:
    """Fail as soon as a worker has more than one parcel of an operator's bins under way to another."""
    put = network.put

    def put_and_count(route: Route, body: bytes) -> None:
        put(route, body)
        if route[2] is Lane.STATE:
            (most,) = under_way(network, route).most_common(1) or [(None, 0)]
            assert most[1] <= 1, f"{title}: {most[1]} parcels are under way from worker {route[0]} to worker {route[1]}"

    network.put = put_and_count  # type: ignore[method-assign]


def under_way(network: Network, route: Route) -> Counter[tuple[int, int]]:
    """Channel -> the parcels that are on a route, or arrived and not read."""
    source, target, lane = route
    sent = [decode(body) for body in network._routes.get(route, ())]
    sent += [
        (envelope.channel, envelope.body)
        for envelope in network.allocator(target).arrived
        if (envelope.source, envelope.lane) == (source, lane)
    ]
    return Counter(channel for channel, body in sent if type(body) is tuple and isinstance(body[1][0], Chunk))
