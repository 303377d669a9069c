"""The stored format of captured streams: a reader gets the written events, and takes nothing else for events."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, SourceError
from megaflow.timely import Messages, Product, Progress
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.dataflow.capture import event_format as events
from megaflow.timely.dataflow.capture.event_format import HEADER, MAGIC, Event, EventDecoder, encode_event

TIMES = st.recursive(st.integers(0, 2**70), lambda outer: st.builds(Product, outer, st.integers(0, 9)), max_leaves=3)
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
RECORDS = SCALARS | st.tuples(SCALARS, SCALARS)
EVENTS = st.builds(Progress, st.lists(st.tuples(TIMES, st.integers(-3, 3)), max_size=4)) | st.builds(
    Messages, TIMES, st.lists(RECORDS, min_size=1, max_size=6)
)

SAMPLE: list[Event] = [
    Messages(0, ["to", "be"]),
    Progress([(3, 1), (0, -1)]),
    Messages(3, [("word", 1), None, 2.5]),
    Progress([(3, -1)]),
]


def stored(content: list[Event]) -> bytes:
    return HEADER + b"".join(encode_event(event) for event in content)


def decoded(pieces: list[bytes]) -> tuple[list[Event], EventDecoder]:
    """Decode bytes piece by piece; return all events and the decoder."""
    decoder = EventDecoder("sample.events")
    found = []
    for piece in pieces:
        decoder.feed(piece)
        while (event := decoder.next()) is not None:
            found.append(event)
    return found, decoder


SHAPES: list[Event] = [Messages(7, [{"n": n, "w": "a"} for n in range(4)]), Messages(8, [[n] for n in range(4)])]


def test_version_2_is_these_bytes() -> None:
    assert stored([Progress([(0, 1), (Product(2, 3), -1)]), Messages(7, ["a", "b"])]) == bytes.fromhex(
        "896d6567 61666c6f 77206576 656e7473 00000002"
        "00000022 2639cbcd 92079200 92009200 92920792 00929207 92009100 01920792 00929207 92009202 03ff"
        "00000013 f37a82fb 92079200 93019207 92009107 920092a1 61a162"
    )
    assert stored(SHAPES) == bytes.fromhex(
        "896d6567 61666c6f 77206576 656e7473 00000002"
        "00000035 f81aa92e 92079200 93019207 92009107 932a9209 92a16ea1 779292"
        "03c41000 00000001 00000002 00000003 00000092 02c40761 00610061 0061"
        "00000036 99adeb2d 92079200 93019207 92009108 932b"
        "9203c410 01000000 01000000 01000000 01000000 9203c410 00000000 01000000 02000000 03000000"
    )


def test_what_was_written_in_version_1_is_read() -> None:
    assert decoded([bytes.fromhex(
        "896d6567 61666c6f 77206576 656e7473 00000001"
        "0000004b 9d988443 92079200 93019207 92009107 92009493 09920092 a16ea177 92009200 a1619309"
        "920092a1 6ea17792 009201a1 61930992 0092a16e a1779200 9202a161 93099200 92a16ea1 77920092 03a161"
        "0000001f 1ebd4a1a 92079200 93019207 92009108 92009492 00910092 00910192 00910292 009103"
    )])[0] == SHAPES  # fmt: skip


@given(st.lists(EVENTS, max_size=5), st.data())
def test_events_come_back_equal_however_the_bytes_are_cut(content: list[Event], data: st.DataObject) -> None:
    whole = stored(content)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)])]
    found, decoder = decoded(pieces)
    assert repr(found) == repr(content)  # also the types
    assert decoder.offset == len(whole)


@pytest.mark.parametrize("length", range(len(stored(SAMPLE))))
def test_a_cut_gives_the_complete_events_and_a_message_with_the_place(length: int) -> None:
    ends = [len(stored(SAMPLE[:count])) for count in range(len(SAMPLE) + 1)]
    found, decoder = decoded([stored(SAMPLE)[:length]])
    assert found == SAMPLE[: max(sum(end <= length for end in ends) - 1, 0)]
    start = max((end for end in ends if end <= length), default=0)
    message = str(decoder.end())
    assert message.startswith(f"sample.events: ended at byte {length}, ")
    if start < length:
        what = "event" if start else "header"
        assert f"{length - start} bytes into the {what} that begins at byte {start};" in message


@pytest.mark.parametrize("position", range(len(stored(SAMPLE))))
def test_a_changed_byte_is_found_and_named_with_its_place(position: int) -> None:
    ends = [len(stored(SAMPLE[:count])) for count in range(len(SAMPLE) + 1)]
    for bit in range(8):
        damaged = bytearray(stored(SAMPLE))
        damaged[position] ^= 1 << bit
        decoder = EventDecoder("sample.events")
        decoder.feed(bytes(damaged))
        found = []
        with pytest.raises(SourceError, match=r"^sample\.events: ") as caught:
            while (event := decoder.next()) is not None:
                found.append(event)
            raise decoder.end()  # a length that claims more bytes than there are
        before = sum(end <= position for end in ends) - 1
        assert found == SAMPLE[: max(before, 0)]
        if position >= len(HEADER):
            assert f"byte {ends[before]}" in str(caught.value)


def test_another_file_is_refused_as_soon_as_it_differs() -> None:
    with pytest.raises(SourceError, match=r"words\.txt: begins with b'the '; a captured stream begins with "):
        decoder = EventDecoder("words.txt")
        decoder.feed(b"the ")
        decoder.next()


def test_another_version_is_refused_by_number() -> None:
    with pytest.raises(SourceError, match=r"is in version 3 .* reads versions 1 and 2"):
        decoded([MAGIC + b"\0\0\0\x03" + stored(SAMPLE)[len(HEADER) :]])


@pytest.mark.parametrize(
    "value",
    [(0, [(0, 1)]), (0, [((), 1)]), (0, [((-1,), 1)]), (0, [((True,), 1)]), (0, [((0,), 1.0)]), (0, [((0,),)]), (0, 1),
     (1, (0,)), (1, (0,), "ab"), (1, 0, []), (2, (0,), []), None, "text"],
)  # fmt: skip
def test_a_sound_frame_that_holds_no_event_is_refused(value: Any) -> None:
    with pytest.raises(SourceError, match=rf"damaged at byte {len(HEADER)}: this is not an event"):
        decoded([HEADER + framed(encode(value))])


def test_bytes_that_are_no_value_are_refused() -> None:
    with pytest.raises(SourceError, match="this is not an event: cannot decode 2 received bytes"):
        decoded([HEADER + framed(b"\xc1\xc1")])


def framed(payload: bytes) -> bytes:
    return events._PREFIX.pack(len(payload), events._checksum(payload)) + payload


def test_a_length_beyond_the_limit_is_refused_before_its_bytes_come() -> None:
    with pytest.raises(SourceError, match="damaged at byte 20: an event of 4294967295 bytes is larger than"):
        decoded([HEADER + b"\xff\xff\xff\xff\0\0\0\0"])


def test_what_cannot_travel_is_named() -> None:
    with pytest.raises(CannotTravel, match=r"type _thread\.lock"):
        encode_event(Messages(0, [__import__("threading").Lock()]))


def test_a_batch_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 1000)
    with pytest.raises(CannotTravel, match=r"a batch of 20\d\d bytes is larger than the limit of 1000"):
        encode_event(Messages(0, ["a" * 2000]))
