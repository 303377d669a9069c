"""Lines are joined so that splitting restores them, whatever they contain and however they come.

Arrow is used where it is installed, rows where it is not or where they are requested.
"""

import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megaflow.errors import SourceError, UsageError
from megaflow.spark.push import (
    VARIABLE,
    LinePacking,
    StageJob,
    choose_transfer,
    chunks,
    join_column,
    join_lines,
    push_batches,
    push_rows,
)

LINES = st.lists(st.text(max_size=20) | st.text("\n\0012é", max_size=6), min_size=1, max_size=30)
JOB = StageJob("q", "r", 0, ((0, "h", 1),), b"secret")


@given(LINES)
@example(["\n", "\0", "\x000\n", "\x001", "\n"])
def test_joined_lines_split_into_the_same_lines(lines: list[str]) -> None:
    joined = join_lines(lines)
    assert joined.text.split(joined.separator) == lines
    assert joined.lines == len(lines)
    assert joined.separator[0] not in joined.separator[1:], "two places of it could overlap"


@given(LINES, st.integers(1, 40))
def test_chunks_hold_all_lines_in_order_and_little_more_than_the_limit(lines: list[str], limit: int) -> None:
    cut = list(chunks(iter(lines), limit))
    assert [line for chunk in cut for line in chunk] == lines
    assert all(sum(len(line) + 1 for line in chunk[:-1]) < limit for chunk in cut)


@given(st.lists(st.none() | LINES.map(lambda lines: lines[0])), st.integers(0, 5), st.integers(1, 40), st.booleans())
def test_a_column_is_joined_within_the_limit_without_its_nulls(
    values: list[str | None], skipped: int, limit: int, wide: bool
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    column = pyarrow.array(values, pyarrow.large_string() if wide else pyarrow.string())[skipped:]
    joined = list(join_column(column, limit))
    lines = [each.text.split(each.separator) for each in joined]
    assert [line for some in lines for line in some] == [value for value in values[skipped:] if value is not None]
    assert [each.lines for each in joined] == [len(some) for some in lines]
    sizes = [[len(line.encode()) for line in some] for some in lines]
    assert all(len(some) == 1 or sum(some) <= limit for some in sizes)
    assert all(sum(some) + following[0] > limit for some, following in pairwise(sizes)), "as long as may be"


@pytest.mark.parametrize(
    "push",
    [
        lambda job, rows: push_batches(job, LinePacking(), rows),
        lambda job, rows: push_rows(job, LinePacking(), 0, rows),
    ],
)
def test_nothing_is_pushed_outside_a_task(push: Any) -> None:
    with pytest.raises(SourceError, match="only from inside a Spark task"):
        list(push(JOB, []))


def test_the_secret_is_not_shown() -> None:
    assert "secret" not in repr(JOB)


def test_arrow_is_taken_without_being_asked_for() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    assert choose_transfer({}) == ("arrow", "lines leave Spark as Arrow batches")


def test_rows_can_be_forced() -> None:
    assert choose_transfer({VARIABLE: "rows"}) == ("rows", f"lines leave Spark as rows ({VARIABLE}=rows)")


@pytest.mark.parametrize("missing", ["pandas", "pyarrow"])
def test_without_arrow_lines_are_rows_and_what_to_install_is_said(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "pyarrow":
        pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, missing, None)
    transfer, said = choose_transfer({})
    assert transfer == "rows"
    assert f"{missing} >= " in said.lower() and said.endswith("pip install 'megaflow[arrow]'")


def test_another_transfer_is_refused() -> None:
    with pytest.raises(UsageError, match=f"{VARIABLE}=arow: must be rows or unset"):
        choose_transfer({VARIABLE: "arow"})
