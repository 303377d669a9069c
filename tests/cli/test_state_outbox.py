"""`megaflow state outbox` shows the waiting records, and changes them after a copy."""

import json
from pathlib import Path
from typing import Any

import pytest

from megaflow.durable.local_folder import open_for_a_job
from tests.cli.test_state_commands import state
from tests.durable.kept_histories import no_waiting_for_the_disk
from tests.durable.kept_outbox import keep_outbox

__all__ = ["no_waiting_for_the_disk"]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The folder of a store that no job uses."""
    keep_outbox(tmp_path / "kept")
    return tmp_path / "kept"


def waiting(store: Path) -> list[Any]:
    """Return the waiting records, as JSON."""
    done = state("outbox", store, "--json")
    assert done.exit_code == 0, done.output
    return [(each["record"], each["sink"], each["value"]) for each in json.loads(done.stdout)]


def test_outbox_shows_what_waits(store: Path) -> None:
    lines = state("outbox", store).stdout.splitlines()
    assert lines[:3] == ["aaaaaaaa:1  to table  ('x', 1)", "aaaaaaaa:2  to table  {'name': 'y'}", lines[2]]
    assert waiting(store)[0] == ("aaaaaaaa:1", "to table", ["x", 1]) and len(lines) == len(waiting(store))


def test_outbox_changes_a_store_after_a_copy(store: Path) -> None:
    was = waiting(store)
    done = state("outbox", store, "--drop", "aaaaaaaa:3", "--drop", "cccccccc:1", "--rewrite", "aaaaaaaa:1", '["z", 2]')
    assert done.exit_code == 0 and "Dropped 2 records and rewrote 1 record of checkpoint 2" in done.stdout, done.output
    [copy] = [path for path in store.parent.iterdir() if path.name.startswith("kept.before-")]
    assert waiting(copy) == was
    assert [value for _, _, value in waiting(store)][:2] == [["z", 2], {"name": "y"}] and len(waiting(store)) == 1202
    assert state("verify", store).exit_code == 0 and state("verify", copy).exit_code == 0


def test_the_copy_goes_where_it_was_asked_for(store: Path, tmp_path: Path) -> None:
    done = state("outbox", store, "--drop", "aaaaaaaa:1", "--backup", tmp_path / "mine", "--json")
    assert json.loads(done.stdout)["backup"] == str(tmp_path / "mine") and len(waiting(tmp_path / "mine")) == 1204


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drop", "aaaaaaaa:9"], "No record 'aaaaaaaa:9' waits in"),
        (["--rewrite", "aaaaaaaa:1", "{x}"], "'{x}' is not JSON"),
        (["--rewrite", "aaaaaaaa:1", '["z"]'], "--rewrite aaaaaaaa:1: Give 2 columns, as the record ('x', 1) has."),
        (["--rewrite", "aaaaaaaa:1", "7"], "Give 2 columns"),
        (["--rewrite", "aaaaaaaa:2", '{"nam": "z"}'], "Give 1 column, as the record {'name': 'y'} has."),
        (["--drop", "aaaaaaaa:1", "--backup", "."], ""),
    ],
)
def test_what_is_refused_changes_nothing(store: Path, words: list[str], said: str) -> None:
    files = sorted(path.name for path in store.parent.rglob("*"))
    done = state("outbox", store, *words)
    assert done.exit_code in (1, 2) and said in done.stderr
    assert sorted(path.name for path in store.parent.rglob("*")) == files


PROGRAM = """
from megaflow.connect import DatabaseSink

def dataflow(flow):
    return flow.lines().write(DatabaseSink("sqlite:never.db", "t", ["a", "b", "c"]), "to table")
"""


def test_a_program_says_which_columns_its_sink_has(store: Path, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PROGRAM)
    words = ("outbox", store, "--app", tmp_path / "app.py", "--rewrite")
    done = state(*words, "aaaaaaaa:1", '["z", 1]')
    assert done.exit_code == 2 and "The sink 'to table' refuses this: the record ('z', 1) is not a row" in done.stderr
    done = state(*words, "aaaaaaaa:1", '["z", 1, 2]')
    assert done.exit_code == 0 and waiting(store)[0][2] == ["z", 1, 2], done.stderr
    (tmp_path / "app.py").write_text(PROGRAM.replace("to table", "other"))
    done = state(*words, "aaaaaaaa:2", '["z", 1, 2]')
    assert done.exit_code == 2 and "The program has no sink 'to table'. It has: other." in done.stderr


def test_a_record_that_is_no_row_may_become_anything(store: Path) -> None:
    done = state("outbox", store, "--rewrite", "aaaaaaaa:3", '["z", 1, 2]')
    assert done.exit_code == 0 and ("aaaaaaaa:3", "to table", ["z", 1, 2]) in waiting(store)


def test_a_store_that_a_job_uses_is_not_changed(store: Path) -> None:
    folder = open_for_a_job(store)
    try:
        done = state("outbox", store, "--drop", "aaaaaaaa:1")
        assert done.exit_code == 1 and "is in use" in done.stderr
        assert waiting(store)
    finally:
        folder.close_folder()
