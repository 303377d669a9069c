"""Changed frames and encodings give a value or the one protocol error, and take little memory."""

import contextlib
import itertools
import random
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, seed, settings

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.timely.communication import wire
from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.wire import MORE, FrameDecoder, frames
from tests.timely.communication.codec.test_round_trip import Loose, same, values

FRAME_BYTES = 24  # small, so that messages in parts stay short
LIMITS = (10, 23, 24, 25, 60, 1000)  # of a message
HEAD_BYTES = 5
EXPANSION = 64  # bytes of memory per received byte; half of it is for dicts with one key
CLAIMED_BYTES = 33 << 20  # claimed by lengths of arrays without content, see `tags`

Heard = tuple[list[tuple[int, bytes]], str | None]  # messages, and the error that ended them


# Frames


def stream_of(rng: random.Random) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return messages and their frames in a stream, with different kinds interleaved."""
    sent = [(rng.randrange(5), rng.randbytes(rng.choice([0, 1, 7, 23, 24, 25, 48, 49, 100]))) for _ in range(8)]
    lanes: dict[int, list[tuple[bytes, int | None]]] = {}  # kind -> frames, each with the message it completes
    for number, (kind, body) in enumerate(sent):
        parts = frames(kind, body)
        lanes.setdefault(kind, []).extend((part, number if part is parts[-1] else None) for part in parts)
    order, stream = [], b""
    while any(lanes.values()):
        part, number = lanes[rng.choice([kind for kind, parts in lanes.items() if parts])].pop(0)
        stream += part
        order += [] if number is None else [sent[number]]
    return order, stream


def changed(stream: bytes, rng: random.Random) -> bytes:
    """Return the stream with a few changed bytes, among them frame heads."""
    data = bytearray(stream)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(data) + 1)
        length = rng.choice([0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 2**31, 2**32 - 1])
        head = length.to_bytes(4, "big") + bytes([rng.choice([0, 4, 5, 16]) | rng.choice([0, MORE])])
        piece = rng.choice([b"", head, head * 50, rng.randbytes(3), data[place : place + 40]])
        data[place : place + rng.choice([0, 1, 5, 30])] = piece
    return bytes(data)


def cut(stream: bytes, rng: random.Random) -> list[bytes]:
    """Return the stream in pieces, perhaps of one byte."""
    places = sorted(rng.choices(range(len(stream) + 1), k=rng.choice([0, 1, 5, 100])))
    pieces = itertools.pairwise([0, *places, len(stream)])
    return [stream[start:end] for start, end in pieces] if rng.random() < 0.9 else [bytes([byte]) for byte in stream]


def heard(pieces: list[bytes], limit: int) -> Heard:
    """Decode the pieces. The decoder must never keep more than a message of each kind and a frame."""
    decoder, messages = FrameDecoder(limit), []
    try:
        for piece in pieces:
            for kind, payload in decoder.feed(piece):
                assert len(payload) <= limit
                messages.append((kind, bytes(payload)))
            assert len(decoder._rest) < HEAD_BYTES + min(limit, FRAME_BYTES)
            assert all(len(part) <= limit for part in decoder._parts.values()) and len(decoder._parts) <= MORE
    except ProtocolError as error:
        return messages, str(error)
    return messages, None


def attack_frames(rng: random.Random) -> None:
    """Decode an intact stream and a changed one, each cut in two ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MAX_FRAME_BYTES", FRAME_BYTES)
        sent, stream = stream_of(rng)
        assert heard(cut(stream, rng), 1000) == (sent, None)
        wrong, limit = changed(stream, rng), rng.choice(LIMITS)
        whole = heard([wrong], limit)
        assert whole == heard(cut(wrong, rng), limit) == heard(cut(wrong, rng), limit)
        differ = (at for at, pair in enumerate(zip(stream, wrong)) if pair[0] != pair[1])
        intact = next(differ, min(len(stream), len(wrong)))
        if limit == LIMITS[-1]:
            before = heard([stream[:intact]], limit)[0]
            assert whole[0][: len(before)] == before, "what came before the change is untouched"


def test_what_a_decoder_makes_of_changed_frames_does_not_depend_on_where_they_are_cut() -> None:
    for number in range(400):
        attack_frames(random.Random(number))


# Values


def nodes_of(tree: Any) -> Iterator[list[Any]]:
    """Yield the lists in a tree."""
    rest = [tree]
    while rest:
        node = rest.pop()
        if type(node) is list and node:
            yield node
            rest += node


def changed_tree(tree: Any, rng: random.Random) -> Any:
    """Return the tree of an encoding with a few changed nodes: other tags, other parts, or exchanged ones."""
    tree = [tags.LIST, [tree]]
    for _ in range(rng.randint(1, 3)):
        nodes = list(nodes_of(tree))
        node, other = rng.choice(nodes), rng.choice(nodes)
        place = rng.randrange(len(node))
        match rng.randrange(6):
            case 0:
                node[0] = rng.randrange(45)
            case 1:
                node[place] = rng.choice([None, -1, 2**63, 0.5, "", "a", b"", b"\0" * 40, [], [[]], True, "<f8"])
            case 2:
                node[place] = msgpack.unpackb(msgpack.packb(other, unicode_errors="surrogatepass"), **LENIENT)
            case 3:
                node.insert(place, rng.choice([0, [], "a", [tags.LIST, [1]]]))
            case 4:
                del node[place]
                node += [] if node else [tags.LIST, []]
            case _:
                for _ in range(rng.choice([3, 99, 200])):
                    node[place] = rng.choice([[tags.TUPLE, [tags.LIST, [node[place]]]], [tags.LIST, [node[place]]]])
                return tree
    return tree


LENIENT: dict[str, Any] = {"unicode_errors": "surrogatepass", "strict_map_key": False}


def attack_value(value: Any, rng: random.Random) -> None:
    """Check that a value arrives intact, and that its changed encoding is refused or gives a value that can travel."""
    packed = encode(value)
    assert same(decode(packed), value)
    tree = changed_tree(msgpack.unpackb(packed, **LENIENT), rng)
    with contextlib.suppress(ProtocolError):
        arrived = decode(msgpack.packb(tree, unicode_errors="surrogatepass"))
        with contextlib.suppress(CannotTravel):  # an object that only a codec makes
            decode(encode(arrived))
    for _ in range(3):
        data = bytearray(packed)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(data) + 1)
            piece = rng.choice([b"", rng.randbytes(2), b"\xdd\0\0\x10\0", b"\x91" * 200])
            data[place : place + rng.randrange(5)] = piece
        with contextlib.suppress(ProtocolError):
            decode(data)


def run_values(check: Callable[[Any, random.Random], None], examples: int, rng: random.Random | None = None) -> None:
    """Pass `examples` values to `check`, drawn from the generator or the same ones each time."""
    dice = rng or random.Random(1)
    quiet = settings(max_examples=examples, database=None, deadline=None, derandomize=rng is None,
                     suppress_health_check=list(HealthCheck))  # fmt: skip
    test = quiet(given(values)(lambda value: check(value, random.Random(dice.getrandbits(64)))))
    (test if rng is None else seed(rng.getrandbits(64))(test))()


def attack_values(rng: random.Random) -> None:
    """Check some hundred values."""
    run_values(attack_value, 300, rng)


def test_changed_encodings_are_refused_or_values_that_can_travel() -> None:
    run_values(attack_value, 60)


@pytest.mark.slow
def test_many_changed_encodings_are_refused_or_values_that_can_travel() -> None:
    run_values(attack_value, 500)


def attack_memory(rng: random.Random) -> None:
    """Check that an encoding of a random shape takes memory in proportion to its length."""
    count = rng.choice([0, 5, 4000, 4000, 60_000])
    leaves = [[tags.STRS, bytes(count)], [tags.INT32S, bytes(4 * count)], [tags.LIST, [0] * (count % 4096)]]
    leaf: Any = rng.choice(leaves)
    tree = leaf
    for _ in range(rng.randint(0, 8)):
        times = rng.choice([1, 1, 2, 3])
        keys = ["a", "b", "c"][:times]
        tree = rng.choice([
            [tags.COLUMNS, [tree] * times], [tags.PARTS, [tree] * times], [tags.TUPLE, tree], [tags.SET, tree],
            [tags.LIST, [tree] * times], [tags.DICT, tree, tree], [tags.DEQUE, 3, tree], [tags.COUNTER, tree, leaf],
            [tags.ROWS, [tags.DICT, keys], [tree] * times], [tags.ROWS, [tags.LIST], [tree] * times],
            [tags.ROWS, [tags.DATACLASS, Loose.__module__, "Loose", ["a", "b"]], [tree] * 2],
            [tags.PLAIN_COLUMN, rng.choice([tags.DATE, tags.DATETIME, tags.DECIMAL]), tree, None],
            [tags.LISTS, leaf, tree], [tags.LISTS, [tags.INT32S, struct.pack("<i", 1) * count], tree],
        ])  # fmt: skip
    data = msgpack.packb(tree)
    if rng.random() < 0.3:
        data = b"\xdd\0\0\x10\0" * rng.randint(1, 1200) + data
    tracemalloc.start()
    try:
        with contextlib.suppress(ProtocolError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < CLAIMED_BYTES + (EXPANSION << tags.NESTED_COLUMNS_MAX) * len(data), (peak, len(data), tree)


def test_no_encoding_takes_memory_out_of_proportion() -> None:
    for number in range(60):
        attack_memory(random.Random(number))
