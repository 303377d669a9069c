"""Segments: they are read back as written, also in pieces, and every flipped bit is noticed."""

import random
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.durable.blocks import Block, BlockKind, CutHeader, pack, pack_timers, states_of
from megaflow.durable.segments import (
    SegmentReader,
    SegmentRef,
    SegmentWriter,
    segment_name,
)
from megaflow.errors import StoreDamaged, StoreError
from tests.words import says

HEADER = CutHeader(number=7, time=310, since=6, worker=1)
NAME = segment_name(3, 1, 17)

BLOCKS = st.builds(
    lambda kind, operator, bin, pairs: pack(kind, operator, bin, list(pairs), list(pairs.values())),
    st.sampled_from(BlockKind),
    st.sampled_from(["count", "sessions", "größe"]),
    st.none() | st.integers(0, 1 << 20),
    st.dictionaries(st.text(), st.none() | st.integers(), max_size=5),
)


def names() -> Iterator[str]:
    return (segment_name(3, 1, sequence) for sequence in count(17))


def written(blocks: list[Block]) -> tuple[SegmentRef, bytes]:
    writer = SegmentWriter(HEADER)
    for block in blocks:
        writer.add(block)
    ref, parts = writer.finish(NAME)
    return ref, b"".join(parts)


def reader(content: bytes) -> SegmentReader:
    return SegmentReader(NAME, lambda start, length: content[start : start + length], len(content))


def some_blocks() -> list[Block]:
    return [
        pack(BlockKind.DELTA, "count", None, ["a", "b", "c"], [1, None, 3]),
        pack(BlockKind.BIN, "count", 5, ["a"], [1]),
        pack(BlockKind.BIN, "count", 6, [], []),
        pack_timers("sessions", None, [(311, "a", "over"), (400, "b", None)]),
    ]


@given(st.lists(BLOCKS, max_size=6))
def test_what_is_written_is_read_in_order(blocks: list[Block]) -> None:
    ref, content = written(blocks)
    read = reader(content)
    assert (read.header, list(read.blocks())) == (HEADER, blocks)
    assert (ref.length, ref.checkpoint, ref.worker) == (len(content), 7, 1)
    assert ref.keys == sum(block.count for block in blocks)


def test_a_block_is_read_by_itself_and_the_others_are_not_touched() -> None:
    _, content = written(some_blocks())
    touched: list[tuple[int, int]] = []

    def read(start: int, length: int) -> bytes:
        touched.append((start, length))
        return content[start : start + length]

    segment = SegmentReader(NAME, read, len(content))
    touched.clear()
    [entry] = [each for each in segment.entries if each.bin == 5]
    assert states_of(segment.block(entry)) == [1]
    assert touched == [(entry.offset, entry.keys_length + entry.states_length)]


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_noticed(content: bytes, bit: int) -> None:
    with pytest.raises(StoreError, match=f"^{NAME} (is damaged at byte|has format)"):
        list(reader(flipped(content, bit)).blocks())


def test_each_flipped_bit_of_a_small_segment_is_noticed() -> None:
    _, content = written(some_blocks())
    for bit in range(8 * len(content)):
        check_noticed(content, bit)


def test_flipped_bits_of_a_large_segment_are_noticed() -> None:
    rng = random.Random(1)
    keys = [list(range(at, at + 500)) for at in range(0, 50_000, 500)]
    _, content = written([pack(BlockKind.DELTA, "count", None, run, run) for run in keys])
    for _ in range(100):
        check_noticed(content, rng.randrange(8 * len(content)))


def test_a_segment_that_is_cut_off_anywhere_is_damaged() -> None:
    _, content = written(some_blocks())
    for length in range(len(content)):
        with pytest.raises(StoreDamaged, match=NAME):
            list(reader(content[:length]).blocks())


def test_the_error_says_where_and_what() -> None:
    _, content = written(some_blocks())
    entry = reader(content).entries[1]
    with pytest.raises(StoreDamaged) as raised:
        list(reader(flipped(content, 8 * entry.offset)).blocks())
    length = entry.keys_length + entry.states_length
    assert says(str(raised.value), f"{NAME} is damaged at byte {entry.offset}", "'count'", f"{length} bytes", "backup")


def test_blocks_that_a_disk_has_exchanged_are_noticed() -> None:
    _, content = written([pack(BlockKind.DELTA, "count", None, [key], [1]) for key in "ab"])
    first, second = reader(content).entries
    assert first.keys_length == second.keys_length
    a, b, end = first.offset, second.offset, second.offset + second.keys_length + second.states_length
    with pytest.raises(StoreDamaged):
        list(reader(content[:a] + content[b:end] + content[a:b] + content[end:]).blocks())


def test_a_segment_of_another_version_is_refused_with_what_to_do() -> None:
    _, content = written(some_blocks())
    with pytest.raises(StoreError) as raised:
        reader(content[:8] + (3).to_bytes(4, "little") + content[12:])
    assert not isinstance(raised.value, StoreDamaged)
    assert str(raised.value).startswith(f"{NAME} has format 3, but this megaflow reads formats up to 2: use")
