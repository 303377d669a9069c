"""A profile's folder holds nothing else, and its numbers add up to the workers' measurements."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.job.profile.ledger import Tally, WorkerRecord
from megaflow.job.profile.report import check_profile, merge, profile_folder, profile_spec, table_text
from megaflow.job.spec import ProfileSpec


def record(worker: int, fold: float, parked: float, ended: bool = True) -> WorkerRecord:
    rows = (
        Tally("operator", "Map", "app.py:3", 0, 1, 4, 2, 200, 2, 200, 0.25, (("f", "app.py:1", 10, 0.1, 0.2),)),
        Tally("operator", "fold", "app.py:4", 0, 2, 3, 1, 150, 1, 1500, fold),
        Tally("engine", "parked", activations=7, seconds=parked),
    )
    return WorkerRecord(worker, 100 + worker, 0.25 + fold + parked, 0.5, ended, rows)


RECORDS = (record(0, 1.0, 0.75), record(5, 1.5, 0.25, ended=False))


def write(folder: Path, records: tuple[WorkerRecord, ...] = RECORDS) -> None:
    for each in records:
        (folder / f"worker-{each.worker}.json").write_text(json.dumps(asdict(each)))


def test_rows_of_all_workers_are_added_up_most_time_first() -> None:
    fold, parked, mapped = merge(RECORDS)
    assert (fold.name, fold.seconds, fold.activations, fold.records_in, fold.records_out) == ("fold", 2.5, 6, 300, 3000)
    assert (parked.name, parked.seconds, mapped.name, mapped.seconds) == ("parked", 1.0, "Map", 0.5)
    assert mapped.calls == (("f", "app.py:1", 20, 0.2, 0.4),)
    assert RECORDS[0].rows[0].seconds == 0.25, "what is added up stays as it was"


def test_the_files_say_what_the_workers_measured(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "new" / "profile"
    with profile_folder(ProfileSpec(str(folder)), said.append):
        write(folder)
    content = json.loads((folder / "operators.json").read_text())
    assert content["seconds"] == sum(row["seconds"] for row in content["rows"]) == 4.0
    for part in (content, *content["workers"]):
        assert sum(row["share"] for row in part["rows"]) == pytest.approx(1.0)
        assert sum(row["seconds"] for row in part["rows"]) == pytest.approx(part["seconds"])
    assert [worker["worker"] for worker in content["workers"]] == [0, 5]
    assert content["rows"][0].keys() == asdict(Tally("engine", "x")).keys() | {"share"}
    assert said == [
        f"profile of 2 workers, 4.00 s: {folder}/operators.txt",
        "   62.5%     2.50 s  fold (app.py:4)",
        "   12.5%     0.50 s  Map (app.py:3)",
    ]
    assert not (folder / "calls.txt").exists()


def test_the_table_names_rows_and_shares_and_tells_of_killed_workers() -> None:
    text = table_text(RECORDS, calls=False)
    lines = [line.split() for line in text.splitlines()]
    assert ["2.500", "62.5%", "6", "2", "300", "2", "3,000", "fold", "(app.py:4)"] in lines
    assert ["1.000", "25.0%", "14", "[parked]"] in lines and ["4.000", "100.0%", "all"] in lines
    assert "Worker 5 (process 105): 2.00 s, 0.50 s of it on a processor; it was killed" in text
    assert "Worker 0 (process 100): 2.00 s, 0.50 s of it on a processor\n" in text
    assert "cProfile" not in text and "cProfile" in table_text(RECORDS, calls=True)
    assert "All" not in table_text(RECORDS[:1], calls=False), "one worker is all"


def test_functions_are_shown_by_operator(tmp_path: Path) -> None:
    with profile_folder(ProfileSpec(str(tmp_path), calls=True), lambda line: None):
        write(tmp_path)
    lines = [line.split() for line in (tmp_path / "calls.txt").read_text().splitlines()]
    at = lines.index(["Map", "(app.py:3)"])
    assert lines[at + 2] == ["0.200", "0.400", "20", "f", "(app.py:1)"]


def test_a_failing_run_is_summed_up_and_keeps_its_error(tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt), profile_folder(ProfileSpec(str(tmp_path)), said.append):
        write(tmp_path, RECORDS[:1])
        raise KeyboardInterrupt
    assert said[0].startswith("profile of 1 worker, 2.00 s: ")
    with pytest.raises(KeyError), profile_folder(ProfileSpec(str(tmp_path)), said.append):
        (tmp_path / "worker-0.json").write_text("cut sho")
        raise KeyError
    assert "cannot summarize the profile" in said[-1]


def test_an_older_profile_is_cleared_away(tmp_path: Path) -> None:
    said: list[str] = []
    with profile_folder(ProfileSpec(str(tmp_path), calls=True), said.append):
        write(tmp_path)
        (tmp_path / "worker-0.pstats").touch()
    with profile_folder(ProfileSpec(str(tmp_path)), said.append):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["operators.txt"]
    assert said[-1].startswith("no profile in")


def test_a_folder_that_holds_anything_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "worker-7.txt").write_text("precious")
    spec = ProfileSpec(str(tmp_path))
    with pytest.raises(UsageError, match=r"has other files, such as 'worker-7\.txt'"):
        check_profile(spec, 1)
    with pytest.raises(UsageError, match="other files"), profile_folder(spec, lambda line: None):
        raise AssertionError("nothing may start")
    assert len(list(tmp_path.iterdir())) == 3


def test_what_is_no_folder_and_cannot_become_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.touch()
    with pytest.raises(UsageError, match="is not a folder"):
        check_profile(ProfileSpec(str(file)), 1)
    below = ProfileSpec(f"{file}/x")
    with pytest.raises(UsageError, match="Not a directory"), profile_folder(below, lambda line: None):
        raise AssertionError("nothing may start")


def test_two_runs_do_not_share_the_folder_of_a_profile(tmp_path: Path) -> None:
    spec = ProfileSpec(str(tmp_path))
    first, second = (profile_folder(spec, lambda line: None) for _ in range(2))
    with first, pytest.raises(UsageError, match="Another run is writing"), second:
        pass
    with profile_folder(spec, lambda line: None):
        pass


def test_what_is_asked_for_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert profile_spec(None) is None
    assert profile_spec("x", True) == ProfileSpec(os.path.join(tmp_path, "x"), True)
    assert profile_spec(Path("x")) == ProfileSpec(os.path.join(tmp_path, "x"))
    with pytest.raises(UsageError, match="add --profile"):
        profile_spec(None, True)
    with pytest.raises(UsageError, match="Name a folder"):
        profile_spec("")
    monkeypatch.setattr("sys.version_info", (3, 12, 1))
    with pytest.raises(UsageError, match="--processes"):
        check_profile(ProfileSpec("x", calls=True), 2)
    check_profile(ProfileSpec("x", calls=True), 1)
    check_profile(ProfileSpec("x"), 2)
