"""Several outputs are written, made durable and cut back as one; a store tells them apart."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.durable.commits import OutputLength
from megaflow.errors import OutputError, StoreError, UsageError
from megaflow.job.launcher.outputs.output_specs import open_outputs, parse_outputs
from megaflow.job.launcher.outputs.several_outputs import SeveralOutputs, compare_lengths, compare_outputs, together
from megaflow.job.launcher.outputs.writer import ListWriter, NothingWriter


@given(st.lists(st.tuples(st.sampled_from(["", "late", "bad"]), st.integers(0, 3), st.booleans())), st.data())
def test_they_are_cut_back_to_what_each_was_at_one_moment(
    steps: list[tuple[str, int, bool]], data: st.DataObject
) -> None:
    lists: dict[str, list[int]] = {"": [], "late": [], "bad": []}
    outputs = SeveralOutputs({name: ListWriter(some) for name, some in lists.items()})
    moments = {outputs.hold(): {name: [*some] for name, some in lists.items()}}
    for number, (name, count, syncs) in enumerate(steps):
        outputs.parts[name].write(number, [number] * count)
        if syncs:
            moments[outputs.sync()] = {name: [*some] for name, some in lists.items()}
        if moments and data.draw(st.integers(0, 4)) == 0:
            length = data.draw(st.sampled_from(sorted(moments)))
            outputs.committed(length)
            moments = {each: what for each, what in moments.items() if each >= length}
        if data.draw(st.integers(0, 4)) == 0:
            length = data.draw(st.sampled_from(sorted(moments)))
            outputs.cut_back(length)
            assert lists == moments[length]
            moments = {each: what for each, what in moments.items() if each <= length}


def test_one_of_several_files_may_be_truncated_by_another_program(tmp_path: Path) -> None:
    outputs = open_outputs({"": f"jsonl:{tmp_path}/all", "late": f"jsonl:{tmp_path}/late"})
    outputs.hold()
    lengths = []
    for first, second in ((60, 20), (0, 40)):  # together the files are as long as before
        outputs.parts[""].write(1, ["a" * first])
        outputs.parts["late"].write(1, ["b" * second])
        lengths.append(outputs.sync())
        said = {each.output.rpartition("/")[2]: each.length for each in outputs.lengths(lengths[-1])}
        assert said == {name: (tmp_path / name).stat().st_size for name in ("all", "late")}
        (tmp_path / "all").write_text("")
    assert lengths[0] < lengths[1]
    with pytest.raises(StoreError, match=r"/all (has|was truncated)"):
        outputs.cut_back(lengths[0])
    outputs.close()


def test_a_store_knows_each_by_its_name_and_what_it_is_written_to(tmp_path: Path) -> None:
    given = {"": f"jsonl:{tmp_path}/all", "late": f"csv:{tmp_path}/late"}
    first = open_outputs(given)
    assert first.forms == (("", "jsonl"), ("late", "csv"))
    first.hold()
    first.parts[""].write(1, ["{}"])
    first.parts["late"].write(1, [("a",), "1\n"])
    said = first.lengths(first.sync())
    named = [(f"jsonl:{tmp_path}/all", 3), (f"late=csv:{tmp_path}/late", 4)]
    assert [(each.output, each.length) for each in said] == named and all(each.fingerprint for each in said)
    first.parts["late"].write(2, [("a",), "2\n"])
    first.close()
    again = open_outputs(dict(reversed(given.items())), mode="resume")
    now = again.lengths(again.hold())
    compare_outputs("kept", said, now)
    compare_lengths(said, now)
    assert now[1] == said[0] and now[0] != said[1]
    again.check_content(said)
    with pytest.raises(StoreError, match=r"--output late=csv:.* does not have the bytes that this job wrote"):
        again.check_content([said[0], replace(said[1], fingerprint=said[0].fingerprint)])
    again.check_content(said)
    again.cut_back(again.length_of(said))
    again.parts["late"].write(2, [("a",), "3\n"])
    again.close()
    assert (tmp_path / "all").read_text() == "{}\n" and (tmp_path / "late").read_text() == "a\n1\n3\n"


def test_other_outputs_than_a_store_names_are_refused() -> None:
    late, bad, main = (OutputLength(name, 5) for name in ("late=jsonl:/l", "bad=jsonl:/b", "-"))
    with pytest.raises(StoreError, match=r"store kept belongs to --output late=jsonl:/l, not bad=jsonl:/b\. Outputs"):
        compare_outputs("kept", [main, late], [main, bad])
    with pytest.raises(StoreError, match=r"store kept belongs to --output late=jsonl:/l\. Outputs"):
        compare_outputs("kept", [main, late], [main])
    with pytest.raises(StoreError, match=r"store kept belongs to --output -, not late=jsonl:/l\. Outputs"):
        compare_outputs("kept", [main], [main, late])
    with pytest.raises(StoreError, match=r"--output late=jsonl:/l is gone or empty, but had 5 bytes"):
        compare_lengths([main, late], [OutputLength(late.output, 0), main])


def test_an_output_that_is_shorter_than_the_store_says_is_refused() -> None:
    said = OutputLength("jsonl:/x", 100)
    with pytest.raises(StoreError, match=r"--output jsonl:/x has 99 bytes, but had 100 bytes at"):
        compare_lengths([said], [OutputLength("jsonl:/x", 99)])


def test_one_that_cannot_be_flushed_keeps_no_other_open(tmp_path: Path) -> None:
    outputs = open_outputs({"": f"jsonl:{tmp_path}/all", "full": "jsonl:/dev/full"})
    outputs.parts[""].write(1, ["{}"])
    outputs.parts["full"].write(1, ["{}"])
    with pytest.raises(OutputError, match="/dev/full"):
        outputs.close()
    assert (tmp_path / "all").read_text() == "{}\n"


def test_a_lone_output_is_its_writer() -> None:
    writer = NothingWriter()
    assert together({"": writer}) is writer and isinstance(together({"": writer, "late": writer}), SeveralOutputs)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["9=-"], "'9' cannot name an output. Use an identifier, as in --output late=jsonl:PATH"),
        (["late=-", "late=none"], "--output late=- and --output late=none: Give only one of them"),
        (["-", "none"], "--output - and --output none: Give only one of them; NAME=SPEC is for a named output"),
    ],
)
def test_an_output_has_one_place_and_a_name_that_a_program_can_say(given: list[str], why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_outputs(given)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("late", "why"),
    [
        ("jsonl:{}/all", "Both would write to the same place. Name another"),
        ("csv:{}/link", "Both would write to the same place. Name another"),
        ("spark:parquet:{}/x", "Spark reads only the stream that the dataflow returns, not named outputs"),
        ("{}/x.csv", "did you mean late=csv:{}/x.csv?"),
        ("lines", "must be - (standard output), jsonl:PATH, csv:PATH"),
    ],
)
def test_outputs_go_apart_and_a_refusal_leaves_no_file(tmp_path: Path, late: str, why: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "all")
    with pytest.raises(UsageError) as refused:
        open_outputs({"": f"jsonl:{tmp_path}/all", "late": late.format(tmp_path)})
    assert why.format(tmp_path) in str(refused.value) and "--output late=" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_two_are_not_both_standard_output_and_what_becomes_of_files_is_about_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--output - and --output late=-: Both .*--output none drops"):
        open_outputs({"": "-", "late": "-"})
    (tmp_path / "late").write_text("before\n")
    open_outputs({"": "none", "late": f"jsonl:{tmp_path}/late"}, mode="append").close()
    with pytest.raises(UsageError, match="it goes with --output jsonl:PATH, not with none"):
        open_outputs({"": "none", "late": "none"}, mode="append")
