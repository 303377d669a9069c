"""The place that `--output` names is written as promised, and a user's existing data is left alone."""

import contextlib
import errno
import io
import json
import os
from pathlib import Path

import pytest

from megaflow.durable.commits import OutputLength
from megaflow.errors import MegaflowError, OutputError, StoreError, UsageError
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_file import FileWriter, TextWriter
from megaflow.job.launcher.outputs.output_specs import open_writer
from megaflow.job.launcher.outputs.several_outputs import compare_lengths
from megaflow.job.launcher.outputs.writer import NothingWriter
from megaflow.job.worker.writing.json_lines import as_json_lines
from megaflow.job.worker.writing.output import as_text
from tests.words import says


def test_text_shows_strings_bare_and_other_records_by_their_repr() -> None:
    stream = io.StringIO()
    writer = TextWriter(stream)
    writer.write(1, as_text(1, ["a b", ("a", 1), None, "'", 2.5]))
    writer.write(2, [])
    writer.close()
    assert stream.getvalue() == "a b\n('a', 1)\nNone\n'\n2.5\n"


def test_json_lines_hold_time_and_record(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    writer = open_writer(f"jsonl:{path}")
    assert isinstance(writer, FileWriter)
    writer.write(17, as_json_lines(17, [("wörd", 3), "line\nend", "\ud800"]))
    writer.flush()
    assert path.read_text(encoding="utf-8").splitlines()[0] == '{"time": 17, "record": ["wörd", 3]}'
    writer.write(18, as_json_lines(18, [{1: 2}]))
    writer.close()
    objects = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(o["time"], o["record"]) for o in objects] == [
        (17, ["wörd", 3]), (17, "line\nend"), (17, "\ufffd"), (18, {"1": 2})
    ]  # fmt: skip


def test_the_words_of_output_are_checked(tmp_path: Path) -> None:
    assert isinstance(open_writer("none"), NothingWriter)
    assert isinstance(open_writer("-"), TextWriter)
    for words in ("", "jsonl:", "json:x", "out.txt", f"jsonl:{tmp_path}/no/such/folder/x", f"jsonl:{tmp_path}"):
        with pytest.raises(UsageError, match="--output"):
            open_writer(words)
    with pytest.raises(UsageError, match=r"spark:FORMAT:PATH or none; did you mean jsonl:out/counts.jsonl\?$"):
        open_writer("out/counts.jsonl")
    for wrong, right in (("josnl:x", "jsonl:x"), ("late=CSV:x", "late=csv:x"), ("sprak:parquet:x", "spark:parquet:x")):
        name, _, spec = wrong.rpartition("=")
        with pytest.raises(UsageError, match=rf"--output {wrong}: must be .*; did you mean {right}\?$"):
            open_writer(spec, name=name)


@pytest.mark.parametrize("spec", ["jsonl:-", "csv:-", "csv:-?columns=a,b"])
def test_a_file_named_as_standard_output_is_is_refused_and_both_are_named(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kind = spec.partition(":")[0]
    with pytest.raises(UsageError, match=rf"Standard output is {kind}:/dev/stdout; a file named '-' is {kind}:./-"):
        open_writer(spec)
    assert not [*tmp_path.iterdir()]
    with pytest.raises(UsageError, match=r"--append .* goes with --output jsonl:PATH"):
        open_writer("none", mode="append")


def test_a_path_may_begin_with_the_tilde_of_a_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_writer("jsonl:~/out.jsonl").name == f"jsonl:{tmp_path}/out.jsonl"


def test_a_file_that_is_not_empty_is_refused_unless_told_what_becomes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.touch()
    open_writer(f"jsonl:{path}").close()
    path.write_text("old")
    with pytest.raises(UsageError, match="not empty; --overwrite replaces its content, --append adds to it"):
        open_writer(f"jsonl:{path}")
    assert path.read_text() == "old"
    wanted: dict[Mode, str] = {"append": "old\nnew\n", "overwrite": "new\n"}
    for mode, text in wanted.items():
        writer = open_writer(f"jsonl:{path}", mode=mode)
        writer.write(1, ["new"])
        writer.close()
        assert path.read_text() == text


@pytest.mark.parametrize(("mode", "begins"), [("overwrite", ""), ("append", "old\n")])
def test_a_file_that_a_store_names_is_cut_back_and_written_on(tmp_path: Path, mode: Mode, begins: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("old")
    writer = open_writer(f"jsonl:{path}", mode=mode)
    before = writer.hold()
    assert before == (3 if mode == "append" else 0) and path.read_text() == "old"
    writer.write(1, ["first"])
    length = writer.sync()
    assert length == len(begins + "first\n") == path.stat().st_size
    writer.write(2, ["second"])
    writer.cut_back(length)
    writer.write(2, ["again"])
    writer.flush()
    assert path.read_text() == begins + "first\nagain\n"
    writer.close()
    for committed, text in ((length, begins + "first\nthird\n"), (before, begins + "third\n")):
        resumed = open_writer(f"jsonl:{path}", mode="resume")
        resumed.hold()
        resumed.cut_back(committed)
        resumed.write(3, ["third"])
        resumed.close()
        assert path.read_text() == text
    resumed = open_writer(f"jsonl:{path}", mode="resume")
    size = path.stat().st_size
    with pytest.raises(StoreError, match=rf"out.jsonl has {size} bytes, but had 1000 at the last checkpoint"):
        resumed.cut_back(1000)
    resumed.close()
    assert path.stat().st_size == size


def test_what_was_cut_back_stays_when_nothing_follows(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    writer = open_writer(f"jsonl:{path}")
    writer.write(1, ["first"])
    writer.cut_back(writer.sync())
    writer.close()
    assert path.read_text() == "first\n"


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("mode", ["new", "overwrite", "append", "resume"])
def test_lines_follow_what_another_program_leaves(tmp_path: Path, kind: str, mode: Mode) -> None:
    path = tmp_path / "out"
    path.touch()
    writer = open_writer(f"{kind}:{path}", mode=mode)
    writer.hold()
    writer.write(1, ["1\n"])
    writer.flush()
    os.truncate(path, 1)
    writer.write(2, ["2\n"])
    writer.close()
    assert path.read_text().split() == ["12"]


def sized(writer: FileWriter, length: int) -> OutputLength:
    """Return what a store records at a length of the writer."""
    [said] = writer.lengths(length)
    return said


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("more", [0, 1, 9, 10_000])
def test_truncated_file_is_reported_and_goes_on_from_new_length(tmp_path: Path, left: int, more: int) -> None:
    path = tmp_path / "out.jsonl"
    writer = FileWriter(str(path))
    reports: list[str] = []
    writer.report = reports.append
    writer.hold()
    lengths = []
    for line in ("first", "second"):
        writer.write(1, [line])
        lengths.append(writer.sync())
    assert lengths == [6, 13] and not reports
    os.truncate(path, left)
    writer.write(2, ["."] * more)
    lengths.append(writer.sync())
    content = b"first\nsecond\n"[:left] + b".\n" * more
    assert path.read_bytes() == content
    [report] = reports
    assert says(report, "truncated by another program", f"{len(content)} bytes")
    assert lengths == sorted(set(lengths)) and sized(writer, lengths[-1]).length == len(content)
    writer.write(3, ["third"])
    lengths.append(writer.sync())
    said = sized(writer, lengths[-1])
    assert len(reports) == 1 and said.length == len(content) + 6
    writer.write(4, ["fourth"])
    writer.cut_back(lengths[-1])
    assert path.read_bytes() == content + b"third\n"
    for length in lengths[:2]:
        with pytest.raises(StoreError, match="was truncated by another program after the last checkpoint"):
            writer.cut_back(length)
    writer.close()
    assert path.read_bytes() == content + b"third\n"
    again = FileWriter(str(path), "resume")
    again.hold()
    again.check_content([said])
    again.close()


@pytest.mark.parametrize("more", [0, 1, 10_000])
def test_store_of_file_before_it_was_truncated_is_refused(tmp_path: Path, more: int) -> None:
    path = tmp_path / "out.jsonl"
    writer = FileWriter(str(path))
    writer.hold()
    writer.write(1, ["first"])
    said = sized(writer, writer.sync())
    os.truncate(path, 0)
    writer.write(2, ["."] * more)
    writer.close()
    before = path.read_bytes()
    again = FileWriter(str(path), "resume")
    now = again.lengths(again.hold())
    with pytest.raises(StoreError, match="Put back the file that this job wrote"):
        compare_lengths([said], now)
        again.check_content([said])
    again.close()
    assert path.read_bytes() == before


def test_two_jobs_do_not_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    writer, other = (open_writer(f"jsonl:{path}") for _ in range(2))
    writer.hold()
    with pytest.raises(OutputError, match=r"out.jsonl: Another job writes to this file\. Wait until"):
        other.hold()
    writer.close()
    other.close()


def test_a_file_written_between_check_and_lock_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = (open_writer(f"jsonl:{path}") for _ in range(2))
    first.hold()
    first.write(1, ["first"])
    first.close()
    with pytest.raises(UsageError, match="the file is not empty"):
        second.hold()
    second.close()
    assert path.read_text() == "first\n"


def test_a_file_removed_between_check_and_lock_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = (open_writer(f"jsonl:{path}") for _ in range(2))
    first.hold()
    first.close()  # it wrote nothing, so it removes the file that it made
    with pytest.raises(OutputError, match="Another job writes to this file"):
        second.hold()
    second.close()


def test_a_closed_file_is_unlocked_though_a_fork_has_it(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    writer = open_writer(f"jsonl:{path}")
    writer.hold()
    assert isinstance(writer, FileWriter)
    inherited = os.dup(writer._file.number)
    writer.write(1, ["first"])
    writer.close()
    other = open_writer(f"jsonl:{path}", mode="append")
    other.hold()
    other.close()
    os.close(inherited)


@pytest.mark.parametrize(("code", "goes_on"), [(errno.ENOLCK, True), (errno.ENOSYS, True), (errno.EIO, False)])
def test_a_file_system_without_locks_is_written_to(
    code: int, goes_on: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", fail)
    writer = open_writer(f"jsonl:{tmp_path / 'out.jsonl'}")
    with contextlib.nullcontext() if goes_on else pytest.raises(OutputError, match="Cannot lock the file"):
        writer.hold()
    writer.close()


def test_what_a_launcher_writes_whose_place_is_taken_goes_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    older = open_writer(f"jsonl:{path}")
    older.hold()
    older.write(1, ["first"])
    length = older.sync()
    older.write(2, ["lost"])
    older.flush()
    path.chmod(0o640)
    for number in range(2):  # the second one takes the place of the first one
        newer = open_writer(f"jsonl:{path}", mode="resume")
        newer.hold(take_over=True)
        assert path.read_text().startswith("first\n"), "nothing changes before the store is taken over"
        newer.cut_back(length)
        newer.write(2, ["again"])
        older.write(3, ["of the sleeper"])
        older.flush()
        older.cut_back(0)
        newer.write(3, ["more"])
        newer.flush()
        assert path.read_text() == "first\nagain\nmore\n", number
        third = open_writer(f"jsonl:{path}", mode="resume")
        with pytest.raises(OutputError, match="Another job writes"):
            third.hold()
        third.close()
        older.close()
        older = newer
    older.close()
    assert os.listdir(tmp_path) == ["out.jsonl"] and path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("how", ["renamed", "removed", "replaced"])
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_file_that_loses_its_name_ends_the_job(tmp_path: Path, how: str, is_durable: bool) -> None:
    path = tmp_path / "out.jsonl"
    writer = open_writer(f"jsonl:{path}")
    writer.hold()
    writer.write(1, ["first"])
    end = writer.sync if is_durable else writer.flush
    end()
    if how == "removed":
        path.unlink()
    else:
        path.rename(tmp_path / "old")
    if how == "replaced":
        (tmp_path / "old").replace(tmp_path / "copy")
        path.write_text("copy\n")
        (tmp_path / "copy").unlink()
    writer.write(2, ["second"])
    if how == "renamed" and not is_durable:
        end()
        assert (tmp_path / "old").read_text() == "first\nsecond\n"
    else:
        with pytest.raises(OutputError, match=r"out\.jsonl: The file was .*removed or replaced while the job ran"):
            end()
    writer.close()


def test_a_launcher_that_slept_while_it_took_a_file_over_leaves_it_to_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("first\n")
    slept, newer = (open_writer(f"jsonl:{path}", mode="resume") for _ in range(2))
    for writer in (slept, newer):
        writer.hold(take_over=True)
    newer.cut_back(6)
    newer.write(2, ["second"])
    newer.flush()
    with pytest.raises(MegaflowError, match="Cannot write the job's output"):
        slept.cut_back(6)
    slept.close()
    newer.close()
    assert path.read_text() == "first\nsecond\n" and os.listdir(tmp_path) == ["out.jsonl"]


def test_an_older_launcher_that_has_written_nothing_does_not_remove_the_file_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    older = open_writer(f"jsonl:{path}")
    newer = open_writer(f"jsonl:{path}", mode="resume")
    newer.hold(take_over=True)
    newer.cut_back(0)
    newer.write(1, ["first"])
    newer.flush()
    older.close()
    newer.close()
    assert path.read_text() == "first\n"


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_job_that_fails_before_its_first_output_leaves_the_file_as_it_was(tmp_path: Path, mode: Mode) -> None:
    path, new = tmp_path / "out.jsonl", tmp_path / "new.jsonl"
    path.write_text("old")
    open_writer(f"jsonl:{path}", mode=mode).close()
    assert path.read_text() == "old"
    open_writer(f"jsonl:{new}", mode=mode).close()
    assert not new.exists(), "it would only be in the way"


def test_a_job_without_output_empties_what_it_replaces_at_its_end(tmp_path: Path) -> None:
    path, new = tmp_path / "out.jsonl", tmp_path / "new.jsonl"
    path.write_text("old\n")
    wanted: list[tuple[Path, Mode, str]] = [(path, "append", "old\n"), (path, "overwrite", ""), (new, "new", "")]
    for each, mode, text in wanted:
        writer = open_writer(f"jsonl:{each}", mode=mode)
        writer.flush()
        writer.close()
        assert each.read_text() == text


def test_devices_and_pipes_pass(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    modes: tuple[Mode, ...] = ("new", "overwrite", "append")
    for mode in modes:
        for path in (pipe, Path(os.devnull)):
            writer = open_writer(f"jsonl:{path}", mode=mode)
            writer.write(1, [mode])
            writer.close()
    assert os.read(reading, 100) == b"new\noverwrite\nappend\n"
    os.close(reading)


def test_standard_output_goes_on_where_the_shell_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        file.write("old\n")
        file.flush()
        monkeypatch.setattr("megaflow.job.launcher.outputs.opened_output.STDOUT", file.fileno())
        writer = open_writer("jsonl:/dev/stdout", mode="overwrite")
        writer.write(1, ["new"])
        writer.close()
    assert path.read_text() == "old\nnew\n"


def test_what_the_job_reads_is_never_its_output(tmp_path: Path) -> None:
    folder, text = tmp_path / "books", tmp_path / "books" / "a.txt"
    folder.mkdir()
    text.write_text("precious")
    (tmp_path / "hard.txt").hardlink_to(text)
    (tmp_path / "soft.txt").symlink_to(text)
    (folder / "sub").mkdir()
    spark = f"spark:text:{folder}"
    glob, late = f"spark:text:{tmp_path}/b*?latestFirst=true", f"spark:text:{folder}?pathGlobFilter=*.txt"
    everywhere = [str(text), f"{text}?unordered", str(folder), f"{folder}/*.txt", f"{tmp_path}/**/*.txt"]
    everywhere += [spark, glob, f"spark:text:file://{folder}"]
    for path in (text, tmp_path / "hard.txt", tmp_path / "soft.txt"):
        for lines in everywhere:
            for mode in ("new", "overwrite", "append"):
                with pytest.raises(UsageError, match="The job would read its own output as input"):
                    open_writer(f"jsonl:{path}", lines, mode)  # type: ignore[arg-type]
    for path, lines in (
        (folder / "new.txt", str(folder)), (folder / "new.txt", f"{folder}/*"), (folder / "new.txt", spark),
        (folder / "sub" / "new.txt", spark), (folder / "new.txt", late),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="would read its own output"):
            open_writer(f"jsonl:{path}", lines)
        assert not path.exists()
    assert text.read_text() == "precious"
    for path, lines in (
        (folder / "new.jsonl", f"{folder}/*.txt"), (folder / ".new", spark), (folder / "_out" / "new", spark),
        (folder / "new.jsonl", late), (tmp_path / "new.jsonl", spark), (folder / "new.txt", "spark:rate:"),
    ):  # fmt: skip
        path.parent.mkdir(exist_ok=True)
        open_writer(f"jsonl:{path}", lines).close()


def test_standard_input_is_an_input_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    path.write_text("precious")
    with path.open() as file:
        monkeypatch.setattr("megaflow.job.launcher.inputs.launcher_input.STDIN", file.fileno())
        with pytest.raises(UsageError, match="would read its own output"):
            open_writer(f"jsonl:{path}", "-", "overwrite")


def test_a_file_that_the_shell_appends_output_to_is_no_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "text"
    with path.open("a") as file:
        monkeypatch.setattr("megaflow.job.launcher.outputs.output_specs.STDOUT", file.fileno())
        with pytest.raises(UsageError, match=r"--output -: The job would read its own output as input \('.*/text'\)"):
            open_writer("-", str(tmp_path))
        open_writer("-", "spark:rate:")
