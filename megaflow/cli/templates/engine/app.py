"""The fewest stops from a station to each other: a loop, in which a better number leads to others until none is left.

A line "a b" is a track between two stations. Lines may come at any time: only what they change goes round again.
"""

from megaflow import Flow, Stream

START = "airport"

Offer = tuple[str, int]  # a station, and a number of stops in which it can be reached
Station = tuple[int | None, tuple[str, ...]]  # the fewest stops so far, and the neighbors


def arrive(name: str, message: str | int, station: Station | None) -> tuple[Station, list[Offer]]:
    """Take in a track to a neighbor or a number of stops. Offer the neighbors one stop more if that is news to them."""
    stops, neighbors = station or (0 if name == START else None, ())
    offers: list[Offer] = []
    if isinstance(message, str):
        neighbors = (*neighbors, message)
        offers = [] if stops is None else [(message, stops + 1)]
    elif stops is None or message < stops:
        stops = message
        offers = [(neighbor, stops + 1) for neighbor in neighbors]
    return (stops, neighbors), offers


def improve(name: str, stops: int, fewest: int | None) -> tuple[int, list[Offer]]:
    """Pass on each number of stops that is better than those before."""
    if fewest is not None and fewest <= stops:
        return fewest, []
    return stops, [(name, stops)]


def both_ways(line: str) -> list[tuple[str, str]]:
    """Return a pair of station and neighbor for each end of a track."""
    one, other = line.split()
    return [(one, other), (other, one)]


def dataflow(flow: Flow) -> Stream[Offer]:
    """Return each station's number of stops, again whenever it gets better."""
    tracks = flow.lines().flat_map(both_ways)
    with flow.scope.iterative("travel") as loop:
        handle, offers = loop.loop_variable(1)  # the offers of the round before
        made = tracks.enter(loop).concat(offers).stateful_state_machine(arrive)
        made.connect_loop(handle)
        reached = made.leave()
    return reached.filter(lambda offer: offer[0] != START).stateful_state_machine(improve)
