"""Frames survive any cutting of the byte stream; bytes that are no frames are refused."""

import contextlib
import itertools
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, ConfigMismatch, PeerFailed, PeerLost, ProtocolError
from megaflow.timely.communication import wire
from megaflow.timely.communication.channel import Lane
from megaflow.timely.communication.wire import FrameDecoder, Kind

messages = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3, 4]), st.binary(max_size=60)), max_size=12)


def feed(decoder: FrameDecoder, pieces: list[bytes]) -> list[tuple[int, bytes]]:
    return [(kind, bytes(payload)) for piece in pieces for kind, payload in decoder.feed(piece)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in itertools.pairwise(bounds)]


@given(messages, st.lists(st.integers(0, 10_000), max_size=20))
def test_messages_arrive_whole_wherever_the_stream_is_cut(sent: list[tuple[int, bytes]], places: list[int]) -> None:
    stream = b"".join(frame for kind, body in sent for frame in wire.frames(kind, body))
    assert feed(FrameDecoder(), cut(stream, places)) == sent


@given(st.data(), messages, st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_of_large_messages_of_different_kinds_may_be_interleaved(
    data: st.DataObject, sent: list[tuple[int, bytes]], places: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MAX_FRAME_BYTES", 16)
        lanes: dict[int, list[bytes]] = {}
        for kind, body in sent:
            lanes.setdefault(kind, []).extend(wire.frames(kind, body, b"1234"))
        stream = b""
        while any(lanes.values()):
            kind = data.draw(st.sampled_from([kind for kind, frames in lanes.items() if frames]))
            stream += lanes[kind].pop(0)
        received = feed(FrameDecoder(), cut(stream, places))
    for kind in lanes:
        assert [body for k, body in received if k == kind] == [b"1234" + body for k, body in sent if k == kind]


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_random_bytes_are_messages_or_a_protocol_error(pieces: list[bytes]) -> None:
    try:
        feed(FrameDecoder(1000), pieces)
    except ProtocolError as error:
        assert "limit" in str(error)


@given(st.binary(max_size=200))
def test_random_records_are_values_or_a_protocol_error(payload: bytes) -> None:
    message = partial(wire.unpack_message, Lane.DATA)
    for read in (wire.unpack_record, wire.unpack_failure, message):
        with contextlib.suppress(ProtocolError):
            read(payload)


@pytest.mark.parametrize("limit", [10, wire.MAX_FRAME_BYTES, wire.MAX_MESSAGE_BYTES])
def test_an_oversized_length_is_refused_before_its_payload_comes(limit: int) -> None:
    length = min(limit, wire.MAX_FRAME_BYTES) + 1
    with pytest.raises(ProtocolError, match=str(length)):
        feed(FrameDecoder(limit), [length.to_bytes(4, "big") + b"\0"])


def test_a_message_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 400)
    part = wire.frames(Kind.DATA | wire.MORE, b"x" * 400)
    with pytest.raises(ProtocolError, match="1000"):
        feed(FrameDecoder(1000), part * 3)


@pytest.mark.parametrize("limit", [512, wire.MAX_FRAME_BYTES, wire.MAX_MESSAGE_BYTES])
@pytest.mark.parametrize("length", [0, 1, 400])
def test_the_first_of_endless_small_parts_is_refused(limit: int, length: int) -> None:
    decoder = FrameDecoder(limit)
    [part] = wire.frames(Kind.GREETING | wire.MORE, b"x" * length)
    with pytest.raises(ProtocolError, match="not full"):
        feed(decoder, [part])


@given(st.integers(0, 5000), st.integers(1, 200))
def test_all_parts_of_a_message_but_the_last_are_full(length: int, room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "MAX_FRAME_BYTES", 16 + room)
        parts = wire.frames(Kind.DATA, b"x" * length, b"1234")
        assert all(len(part) == 5 + 16 + room for part in parts[:-1])
        [(_, body)] = feed(FrameDecoder(), parts)
    assert len(body) == 4 + length


def test_a_message_above_the_limit_is_refused_where_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_MESSAGE_BYTES", wire.MAX_FRAME_BYTES + 1)
    with pytest.raises(CannotTravel, match="smaller pieces"):
        wire.frames(Kind.DATA, b"x" * (wire.MAX_FRAME_BYTES + 1), b"1")


def test_no_frame_is_longer_than_the_limit() -> None:
    frames = wire.frames(Kind.STATE, b"x" * 3 * wire.MAX_FRAME_BYTES, b"prefix")
    assert len(frames) == 4
    assert max(map(len, frames)) == wire.MAX_FRAME_BYTES + 5


@pytest.mark.parametrize("kind", [PeerLost, PeerFailed, ConfigMismatch])
def test_a_failure_arrives_as_the_same_error(kind: type[Exception]) -> None:
    [(_, payload)] = feed(FrameDecoder(), wire.pack_failure(kind("why\nand where \udc80")))  # type: ignore[arg-type]
    error = wire.unpack_failure(payload)
    assert type(error) is kind
    assert str(error) == "why\nand where ?"


def test_the_end_of_a_long_traceback_travels() -> None:
    [(_, payload)] = feed(FrameDecoder(), wire.pack_failure(PeerFailed("ä" * 100_000 + "ValueError: this")))
    text = str(wire.unpack_failure(payload))
    assert text.endswith("ValueError: this")
    assert len(text.encode()) <= wire.MAX_REPORT_BYTES + 4
