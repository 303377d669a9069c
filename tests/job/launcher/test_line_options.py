"""The text after a path's question mark is read as options if all are known and no file has that name."""

from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.job.launcher.inputs.line_options import LineOptions, options_meant, split_options


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("unordered", LineOptions("unordered", "")),
        ("encoding=Latin-1", LineOptions("", "iso8859-1")),
        ("encoding=utf-8-sig", LineOptions("", "utf-8")),
        ("encoding=cp1252&unordered", LineOptions("unordered", "cp1252")),
        ("ordered-by=name&encoding=utf-16", LineOptions("ordered-by=name", "utf-16")),
    ],
)
def test_options_stand_behind_the_path(options: str, found: LineOptions) -> None:
    assert split_options(f"logs/a?.txt?{options}") == ("logs/a?.txt", found)
    assert split_options(f"-?{options}") == ("-", found)


def test_a_path_that_exists_has_no_options(tmp_path: Path) -> None:
    path = tmp_path / "a?encoding=latin-1"
    path.touch()
    assert split_options(str(path)) == (str(path), LineOptions())
    assert split_options(f"{path}?encoding=utf-8") == (str(path), LineOptions("", "utf-8"))


@pytest.mark.parametrize("spec", ["a?b", "a?unordered&b", "a?encoding", "a?[a-z]nordered"])
def test_what_is_not_known_is_part_of_the_path(spec: str) -> None:
    assert split_options(spec) == (spec, LineOptions())


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("encoding=latin-99", "Python has no encoding of this name"),
        ("encoding=", "Python has no encoding"),
        ("encoding=latin-1&encoding=utf-8", "give one order and one encoding"),
        ("unordered&ordered-by=name", "give one order and one encoding"),
    ],
)
def test_wrong_options_are_refused(options: str, why: str) -> None:
    with pytest.raises(UsageError, match=rf"--lines a\.txt\?.*{why}"):
        split_options(f"a.txt?{options}")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("unorderd", "unordered"), ("ordered-by=names", "ordered-by=name"), ("encodng=latin-1", "encoding=latin-1"),
     ("Unordered&encodings=utf-16", "unordered&encoding=utf-16"), ("x", ""), ("unordered&x", "")],
)  # fmt: skip
def test_options_that_were_perhaps_meant_are_named(wrong: str, right: str) -> None:
    assert options_meant(f"a.txt?{wrong}") == (right and f"a.txt?{right}")
