"""Arrow where it is installed, rows where it is not or where they are asked for."""

import sys

import pytest

from megaflow.errors import UsageError
from megaflow.spark.transfer import VARIABLE, choose_transfer


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
    with pytest.raises(UsageError, match=f"{VARIABLE}=arow: it must be rows, or not set"):
        choose_transfer({VARIABLE: "arow"})
