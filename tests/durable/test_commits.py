"""Commits: they survive encoding and decoding, and every flipped bit is noticed."""

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.durable.commits import (
    COMMIT_FORMAT,
    Commit,
    Fingerprint,
    OperatorCut,
    OutputLength,
    SinkToken,
    SourcePartition,
    SplitRemainder,
    UntakenLines,
    check_checkpoint_name,
    commit_from_bytes,
    commit_name,
    commit_numbers,
    needed,
)
from megaflow.durable.segments import SegmentRef, segment_name
from megaflow.errors import StoreDamaged, StoreError, UsageError
from megaflow.quick_dataclass import dataclass
from megaflow.timely.communication.codec.encode import encode
from tests.words import says

FULL = Commit(
    number=42,
    checkpoint=40,
    time=310,
    incarnation=3,
    app="wordcount.py",
    written_at=1.5e9,
    next_worker=4,
    operators=(OperatorCut("count", "state_machine", (39, None, 40), form="counts"),),
    segments=(SegmentRef(segment_name(3, 1, 17), 40, 1, 1000, (1 << 32) - 1, 12),),
    splits=(SplitRemainder(0, "/data/größe-\udcff.txt", 10, 20, "ab12"),),
    spark=(("3f2a", 17),),
    outputs=(OutputLength("jsonl:out", 1 << 40),),
    tokens=(SinkToken("db", 40, b"\x00\xff"),),
    table=(0, 1, 0),
    plan=b"plan",
    watermark=-5,
    ended=True,
    code=Fingerprint("app.py:dataflow", ("a", "\udcff"), {"app.py": "12ab"}),
    untaken=(UntakenLines(SegmentRef(segment_name(3, 1, 18), 40, 1, 50, 9, 1), 3),),
    named=(("before-upgrade", 42), ("nightly", 17)),
)  # fmt: skip
NAME = commit_name(42)


def test_the_others_that_count_are_the_kept_ones_and_those_with_a_name() -> None:
    assert replace(FULL, kept=(41, 17, 12)).others == (41, 17, 12)
    assert replace(FULL, kept=(41,)).others == (41, 17)


@pytest.mark.parametrize("name", ["nightly", "v1.2", "a", "before_the-upgrade", "x" * 64])
def test_a_name_is_a_word(name: str) -> None:
    check_checkpoint_name(name)


@pytest.mark.parametrize("name", ["", "7", "-x", ".", "a/b", "a b", "é", "x" * 65, "a\n"])
def test_what_could_be_a_number_or_a_path_is_no_name(name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a checkpoint"):
        check_checkpoint_name(name)


def test_a_commit_comes_back_from_its_bytes() -> None:
    assert commit_from_bytes(NAME, FULL.to_bytes()) == FULL
    bare = Commit(number=1, checkpoint=0, time=0, incarnation=1)
    assert commit_from_bytes(commit_name(1), bare.to_bytes()) == bare


@given(
    st.builds(Commit, number=st.just(42), incarnation=st.integers(1, 9)),
)
def test_any_commit_comes_back_from_its_bytes(commit: Commit) -> None:
    named = tuple(replace(each, name=segment_name(1, 0, at)) for at, each in enumerate(commit.segments))
    commit = replace(commit, segments=named)
    assert repr(commit_from_bytes(NAME, commit.to_bytes())) == repr(commit)  # repr, because NaN is not equal to itself


def test_each_flipped_bit_is_noticed() -> None:
    content = FULL.to_bytes()
    for bit in range(8 * len(content)):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreError, match=f"^{NAME} (is damaged at byte|has format)"):
            commit_from_bytes(NAME, bytes(changed))


def test_a_commit_that_is_cut_off_anywhere_or_goes_on_is_damaged() -> None:
    content = FULL.to_bytes()
    for wrong in (*(content[:length] for length in range(len(content))), content + b"\0"):
        with pytest.raises(StoreDamaged):
            commit_from_bytes(NAME, wrong)


def test_a_commit_under_the_name_of_another_is_damaged() -> None:
    with pytest.raises(StoreDamaged, match="it is commit 42"):
        commit_from_bytes(commit_name(43), FULL.to_bytes())


@dataclass(frozen=True, slots=True)
class LaterCommit(Commit):
    shards: int = 1


@dataclass(frozen=True, slots=True)
class LaterCut(OperatorCut):
    layout: str = "wide"


@pytest.mark.parametrize(
    "later, field",
    [
        (LaterCommit(42, 40, 310, 3), "shards"),
        (replace(FULL, operators=(LaterCut("count", "state_machine", (39,)),)), "layout"),
    ],
)
def test_fields_of_a_newer_megaflow_are_no_damage(later: Commit, field: str) -> None:
    with pytest.raises(StoreError) as refused:
        commit_from_bytes(NAME, later.to_bytes())
    assert not isinstance(refused.value, StoreDamaged)
    assert says(str(refused.value), NAME, repr(field), "a newer one wrote it", "from before the upgrade")


def test_a_commit_of_another_version_is_refused_with_what_to_do() -> None:
    content = FULL.to_bytes()
    with pytest.raises(StoreError, match=f"{NAME} has format 7, but .* reads formats up to {COMMIT_FORMAT}: use"):
        commit_from_bytes(NAME, content[:8] + (7).to_bytes(4, "little") + content[12:])


@pytest.mark.parametrize(
    "fields",
    [
        {"number": True},
        {"number": "42"},
        {"table": [0, 1]},
        {"table": (0, None)},
        {"spark": (("3f2a",),)},
        {"operators": ({"name": "count", "kind": "", "bases": (1,), "more": 1},)},
        {"operators": ({"name": "count"},)},
        {"plan": "text"},
        {"more": 1},
        {"segments": ({"name": "../x", "checkpoint": 1, "worker": 0, "length": 1, "crc": 0, "keys": 0},)},
    ],
)
def test_a_field_of_another_type_is_damage(fields: dict[str, object]) -> None:
    bare = Commit(number=42, checkpoint=0, time=0, incarnation=1)
    plain = {name: getattr(bare, name) for name in Commit.__dataclass_fields__} | fields
    rest = encode(plain)
    length = len(rest).to_bytes(4, "little")
    content = FULL.to_bytes()[:12] + length + zlib.crc32(rest, zlib.crc32(length)).to_bytes(4, "little") + rest
    with pytest.raises(StoreDamaged):
        commit_from_bytes(NAME, content)


def test_only_names_of_commits_are_numbers_of_commits() -> None:
    files = ["000000000007.commit", "000000000042.commit", "7.commit", "000000000008.commit.0.tmp", "i1-w0-000001.seg"]
    assert commit_numbers(files) == [7, 42]


@given(st.data())
def test_a_segment_is_needed_while_a_bin_was_not_written_whole_after_it(data: st.DataObject) -> None:
    checkpoints = st.integers(1, 6)
    segments = [
        SegmentRef(segment_name(1, 0, at), each, 0, 1, 0, 0) for at, each in enumerate(data.draw(st.lists(checkpoints)))
    ]
    operators = [
        OperatorCut(name, "", tuple(data.draw(st.lists(st.none() | checkpoints, min_size=1, max_size=3))))
        for name in ("a", "b")
    ]
    kept = needed(operators, segments)
    for segment in segments:
        is_read = any(base is None or segment.checkpoint >= base for each in operators for base in each.bases)
        assert is_read <= (segment in kept)
    assert [each.checkpoint for each in kept] == sorted(each.checkpoint for each in kept)


def test_how_much_of_a_text_was_read_came_later() -> None:
    rest = SplitRemainder(0, "a", 3, 10, "00")
    commit = Commit(1, 1, 5, 1, splits=(rest, replace(rest, number=1, skip=77)))
    assert commit.to_bytes().count(b"skip") == 1, "stores without compressed files can be read by what does not know it"
    assert commit_from_bytes(commit_name(1), commit.to_bytes()) == commit


def test_a_field_that_came_later_is_written_if_it_says_something_and_read_if_it_is_not_there() -> None:
    lines = UntakenLines(SegmentRef("i1-w0-000001.seg", 3, 0, 100, 7, 2), 5)
    commit = Commit(4, 3, 7, 1, spark=(("q", 2),), untaken=(lines,))
    assert commit_from_bytes(commit_name(4), commit.to_bytes()) == commit
    assert commit.files == (lines.segment,)
    before = replace(commit, untaken=()).to_bytes()
    assert b"untaken" in commit.to_bytes() and b"untaken" not in before
    assert commit_from_bytes(commit_name(4), before) == replace(commit, untaken=())
    orders = SplitRemainder(0, "/a", 10, 20, "print", "orders")
    named, bare = (replace(commit, splits=(each,)) for each in (orders, replace(orders, input="")))
    assert all(commit_from_bytes(commit_name(4), each.to_bytes()) == each for each in (named, bare))
    assert b"orders" in named.to_bytes() and b"input" not in bare.to_bytes(), "lines without a name are as before"


def test_stores_spell_a_renamed_field_as_before() -> None:
    commit = Commit(4, 3, 7, 1, partitions=(SourcePartition(-1, "lines", b"p", b"at"),))
    assert b"portions" in commit.to_bytes() and b"partitions" not in commit.to_bytes()
    assert commit_from_bytes(commit_name(4), commit.to_bytes()) == commit


def test_the_types_of_columns_came_later_and_none_are_known_without() -> None:
    commit = Commit(4, 3, 7, 1, columns=(("orders", (("", "str"), ("id", "int"))),))
    assert commit_from_bytes(commit_name(4), commit.to_bytes()) == commit
    without = replace(commit, columns=())
    assert commit_from_bytes(commit_name(4), without.to_bytes()) == without
    before = replace(commit, columns=None)
    assert b"columns" not in before.to_bytes() and commit_from_bytes(commit_name(4), before.to_bytes()) == before


def test_the_clock_of_a_job_came_later_and_the_watermark_was_always_there() -> None:
    commit = Commit(4, 3, 7, 1, watermark=-5, clock=1_500_000)
    assert commit_from_bytes(commit_name(4), commit.to_bytes()) == commit
    before = replace(commit, clock=0).to_bytes()
    assert b"clock" not in before and commit_from_bytes(commit_name(4), before) == replace(commit, clock=0)
