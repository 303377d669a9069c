"""Bins that travel in many parcels, and a check of how much of them is under way, for runs on a simulated cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from megaflow.megaphone.base import chunks as migration
from megaflow.megaphone.base.chunks import Chunk
from megaflow.testing import EngineCluster, Network
from megaflow.testing.network import Route
from megaflow.timely.communication.channel import Channel, Lane


@contextmanager
def small(seed: int, cluster: EngineCluster) -> Iterator[None]:
    """In the block, use chunks of a few keys in most seeds, and fail if too much is under way to a worker."""
    usual = migration.CHUNK_BYTES
    migration.CHUNK_BYTES = Random(f"chunks {seed}").choice([1, 1, 40, 400, usual])
    watch(cluster._network, f"seed {seed}")
    try:
        yield
    finally:
        migration.CHUNK_BYTES = usual


def watch(network: Network, title: str) -> None:
    """Fail as soon as more of an operator's bins is under way between two workers than a chunk or one parcel."""
    put = network.put

    def put_and_count(route: Route, body: bytes) -> None:
        put(route, body)
        if route[2] is Lane.STATE:
            for sizes in under_way(network, route).values():
                assert len(sizes) == 1 or sum(sizes) <= migration.CHUNK_BYTES, (
                    f"{title}: parcels of {sizes} bytes are under way from worker {route[0]} to worker {route[1]}"
                )

    network.put = put_and_count  # type: ignore[method-assign]


def under_way(network: Network, route: Route) -> dict[Channel, list[int]]:
    """Return channel -> sizes of the parcels on a route, including those that arrived and are unread."""
    source, target, lane = route
    sent = network.under_way(route)
    sent += [
        envelope
        for envelope in network.allocator(target).arrived
        if (envelope.source, envelope.channel.lane) == (source, lane)
    ]
    found: dict[Channel, list[int]] = {}
    for channel, _, body in sent:
        if type(body) is tuple and isinstance(body[1][0], Chunk):
            found.setdefault(channel, []).append(sum(chunk.size for chunk in body[1]))
    return found
