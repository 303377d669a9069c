"""A CSV file has its column names in the first line, exactly once, even after it was cut back and appended to."""

import os
from pathlib import Path

import pytest

from megaflow.errors import OutputError, ProgramError, UsageError
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_specs import open_writer
from megaflow.job.launcher.outputs.writer import Writer

AB = ("a", "b")


def opened(path: Path, mode: Mode = "new", columns: str = "") -> Writer:
    return open_writer(f"csv:{path}{f'?columns={columns}' if columns else ''}", mode=mode)


def test_the_columns_come_first_and_once(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    writer = opened(path)
    assert (writer.form, writer.name) == ("csv", f"csv:{path}")
    writer.write(1, [AB, "1,2\n", AB, '"x\ny",\n'])
    writer.write(2, [AB])
    writer.write(2, ["5,6\n"])
    writer.close()
    assert path.read_text() == 'a,b\n1,2\n"x\ny",\n5,6\n'


def test_columns_that_are_given_are_there_even_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    writer = opened(path, columns='a,"b,c"')
    assert writer.form == 'csv:["a", "b,c"]' and path.read_text() == ""
    writer.flush()
    assert path.read_text() == 'a,"b,c"\n'
    writer.write(1, ["1,2\n"])
    writer.close()
    assert path.read_text() == 'a,"b,c"\n1,2\n'


@pytest.mark.parametrize("columns", ["", "a,b"])
def test_a_file_that_is_cut_back_to_nothing_or_to_some_rows_has_one_first_line(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "out.csv"
    said = [] if columns else [AB]
    writer = opened(path, columns=columns)
    writer.hold()
    writer.write(1, [*said, "1,2\n"])
    writer.cut_back(0)
    writer.write(1, [*said, "1,2\n"])
    length = writer.sync()
    writer.write(2, [*said, "3,4\n"])
    writer.cut_back(length)
    writer.write(2, [*said, "3,4\n"])
    length = writer.sync()
    writer.write(3, [*said, "5,6\n"])
    writer.close()
    resumed = opened(path, "resume", columns)
    resumed.hold()
    resumed.cut_back(length)
    resumed.write(3, [*said, "5,6\n"])
    resumed.close()
    assert path.read_text() == "a,b\n1,2\n3,4\n5,6\n"


def test_what_is_appended_to_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    path.write_text("a,b\r\n0,0\r\n")
    writer = opened(path, "append")
    writer.write(1, [AB, "1,2\n"])
    with pytest.raises(ProgramError, match=r"record has the columns b, a, but the file has a, b"):
        writer.write(2, [("b", "a"), "1,2\n"])
    writer.close()
    assert path.read_bytes() == b"a,b\r\n0,0\r\n1,2\n"
    with pytest.raises(UsageError, match="the file has the columns a, b; name these columns or another file"):
        opened(path, "append", "b,a")
    with pytest.raises(UsageError, match=f"--output csv:{path}: the file is not empty; --overwrite"):
        opened(path)
    writer = opened(path, "overwrite", "c")
    writer.flush()
    writer.close()
    assert path.read_text() == "c\n"


@pytest.mark.parametrize("columns", ["a,a", "a,,b"])
def test_columns_are_named_once_each(tmp_path: Path, columns: str) -> None:
    with pytest.raises(UsageError, match=r"columns= must name each column once, as in \?columns=word,count"):
        opened(tmp_path / "out.csv", columns=columns)
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("columns", ["", "?columns=a,b"])
@pytest.mark.parametrize("is_synced", [True, False])
def test_file_that_another_program_empties_begins_with_columns_again(
    tmp_path: Path, columns: str, is_synced: bool
) -> None:
    path = tmp_path / "out.csv"
    writer = open_writer(f"csv:{path}{columns}")
    writer.hold()
    for row in ("1,2\n", "3,4\n", "5,6\n"):
        writer.write(1, [("a", "b"), row])
        writer.flush()
        assert path.read_text() == f"a,b\n{row}"
        os.truncate(path, 0)
        if is_synced:
            [said] = writer.lengths(writer.sync())
            assert path.read_text() == "a,b\n" and said.length == 4
    writer.write(1, ["7,8\n", "9,10\n"])
    [said] = writer.lengths(writer.sync())
    writer.close()
    assert path.read_text() == "a,b\n7,8\n9,10\n"
    again = open_writer(f"csv:{path}{columns}", mode="resume")
    again.hold()
    again.check_content([said])
    again.close()


def test_checkpoint_of_file_without_its_columns_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    writer = open_writer(f"csv:{path}")
    writer.hold()
    writer.write(1, [("a", "b"), "1,2\n"])
    writer.sync()
    writer.write(1, ["3,4\n"])  # waits in the buffer
    os.truncate(path, 0)
    with pytest.raises(OutputError, match=r"truncated the file .* first line does not name the columns"):
        writer.sync()
    writer.close()
