"""Lines that the launcher reads are cut like those of files, and read only as far as requested."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.control.coordinator.reading.split_pool import name_key, place_of
from megaflow.errors import SourceError, UsageError
from megaflow.job.launcher.inputs.launcher_input import find_input
from megaflow.job.launcher.inputs.pulled_source import PulledLines
from tests.rights import without_rights


def test_files_may_be_said_to_go_on_from_each_other(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text("line\n", encoding="utf-8")
    found = find_input(f"{tmp_path}/*.txt?ordered-by=name", 2, "replace")
    assert [os.path.basename(split.path) for split in found.splits] == ["a.txt", "b.txt"]
    assert found.names.ordered == ("",)
    named = find_input({"a": str(tmp_path / "a.txt"), "b": f"{tmp_path}/b.txt?ordered-by=name"}, 2, "replace")
    assert named.names.ordered == ("b",) and not find_input(str(tmp_path), 2, "replace").names.ordered
    with pytest.raises(SourceError, match=r"Did you mean '.*b\.txt\?ordered-by=name'\?"):
        find_input(f"{tmp_path}/b.txt?ordered-by=names", 2, "replace")


def test_a_file_is_one_split_and_unordered_it_is_cut_into_several(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "odd?unordered"):
        (tmp_path / name).write_bytes(b"line\n" * 10_000)

    def pieces(spec: str) -> list[str]:
        splits = find_input(str(tmp_path / spec), 2, "replace").splits
        return [os.path.relpath(split.path, tmp_path) for split in splits]

    named = find_input({"a": f"{tmp_path}/a.txt?unordered", "b": f"{tmp_path}/b.txt"}, 2, "replace")
    assert named.names.unordered == ("a",)
    assert find_input(f"{tmp_path}/a.txt?unordered", 2, "replace").names.unordered == ("",)
    assert pieces("a.txt") == ["a.txt"]
    assert pieces("?.txt") == ["a.txt", "b.txt"], "a question mark is a character of globs"
    assert pieces("a.txt?unordered") == ["a.txt"] * 8
    assert pieces("?.txt?unordered") == ["a.txt"] * 4 + ["b.txt"] * 4
    assert pieces("odd?unordered") == ["odd?unordered"], "what exists is taken literally"
    assert pieces("odd?unordered?unordered") == ["odd?unordered"] * 8
    assert pieces("odd?[a-z]nordered") == ["odd?unordered"], "an unknown option is part of the glob"
    assert find_input("-?unordered", 2, "replace").pushed


@pytest.mark.parametrize("option", ["unorderd", "Unordered", "un-ordered"])
def test_an_option_that_was_perhaps_meant_is_named(tmp_path: Path, option: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\n")
    with pytest.raises(SourceError, match=r"no file matches.* Did you mean '.*a\.txt\?unordered'\?"):
        find_input(f"{path}?{option}", 2, "replace")
    with pytest.raises(SourceError, match=r"'.*b\.txt': no such file") as refusal:
        find_input(f"{tmp_path / 'b.txt'}?unordered", 2, "replace")
    assert "Did you mean" not in str(refusal.value)
    with pytest.raises(SourceError, match=r"Did you mean 'spark:kafka:\?kafka.*&subscribe=x'"):
        find_input("kafka:x", 1, "replace")
    with pytest.raises(SourceError, match=r"Did you mean 'spark:text:in/'"):
        find_input("sprak:text:in/", 1, "replace")


def test_a_file_of_almost_this_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "river.txt").write_text("a\n")
    monkeypatch.chdir(tmp_path)
    for wrong, right in (("rivre.txt", "river.txt"), (f"{tmp_path}/rver.txt", f"{tmp_path}/river.txt")):
        with pytest.raises(SourceError, match=rf"no such file or directory .* Did you mean '{right}'\?$"):
            find_input(wrong, 1, "replace")
    (tmp_path / "b.jsonl").write_text("{}\n")
    for wrong in ("orders.txt", "no/such/river.txt", "a.jsonl", "river2.txt"):
        with pytest.raises(SourceError, match=r"no such file or directory \(from '[^']*'\)\.$"):
            find_input(wrong, 1, "replace")


def test_inputs_by_name_are_found_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder/a", "folder/b", "big"):
        (tmp_path / name).write_bytes(b"line\n" * 10_000)
    lines, big = ["one", "two"], tmp_path / "big"
    given = {"x": str(tmp_path / "folder"), "y": big, "z": lines, "w": "-", "v": f"{big}?unordered"}
    found = find_input(given, 1, "replace")
    assert found.names.lines == ("v", "w", "x", "y", "z") and set(found.pushed) == {"z", "w"}
    assert [(split.number, split.input) for split in found.splits] == [
        (number, name) for number, name in enumerate(["x", "x", "y", "v", "v", "v", "v"])
    ]
    source = found.pushed["z"]
    assert isinstance(source, PulledLines) and [*source] == [*lines]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "lines is an empty dict"),
        ({"a-b": "-"}, r"lines: 'a-b' must be a name, as in flow.lines\('orders'\)"),
        ({"a": {"b": "-"}}, "The lines 'a' must be a specification or an iterable of str, not a dict"),
        ({"a": 5}, "an iterable of str, a streaming DataFrame, or a dict of these by name, not 5"),
        ({"a": "-", "b": "-"}, "The lines 'a' and 'b' all read standard input"),
        ({"a": "spark:text:x", "b": ["x"]}, "The lines 'a' come from Spark.* Give them alone by --rows a=spark:"),
    ],
)
def test_names_that_cannot_be_read_are_refused(given: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_input(given, 1, "replace")


def test_a_missing_file_says_that_it_may_be_no_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the lines 'date': Cannot read.*\('date' names an input: if the first part"):
        find_input({"date": str(tmp_path / "none")}, 1, "replace")


@pytest.mark.parametrize("order, natural", [("name", False), ("natural", True)])
def test_digits_in_names_count_as_numbers_if_asked(tmp_path: Path, order: str, natural: bool) -> None:
    for number in (2, 10):
        (tmp_path / f"part-{number}").write_text("a\n")
    found = find_input({"x": f"{tmp_path}?ordered-by={order}"}, 2, "replace")
    assert found.names.ordered == ("x",) and {split.natural for split in found.splits} == {natural}
    assert sorted(found.splits, key=place_of)[0].path.endswith("part-2" if natural else "part-10")


@settings(max_examples=300)
@given(st.lists(st.lists(st.sampled_from(["a", "-", "0", "1", "2", "10", "00", "9" * 12]), max_size=5).map("".join)))
@example(["a0", "a"])
def test_names_with_numbers_are_sorted_as_numbers(names: list[str]) -> None:
    def model(name: str) -> list[Any]:
        parts = re.split("([0-9]+)", name)
        return [*(int(each) if place % 2 else each for place, each in enumerate(parts))]

    found = sorted(names, key=lambda name: name_key(name, True))
    assert [model(name) for name in found] == sorted(map(model, names))
    assert found == sorted(sorted(names, reverse=True), key=lambda name: name_key(name, True)), "equal numbers: by text"


def test_a_name_like_that_of_a_closed_folder_is_not_suggested(tmp_path: Path) -> None:
    for name in ("logs1", "logs2"):
        (tmp_path / name).mkdir()
    (tmp_path / "logs1").chmod(0)
    with without_rights(), pytest.raises(SourceError, match=r"logs1' cannot be searched: Permission denied") as caught:
        find_input(str(tmp_path / "logs1"), 1, "strict")
    assert "Did you mean" not in str(caught.value)
