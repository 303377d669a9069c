"""`megaflow state get | export | copy` read from a store."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from megaflow.cli.main import cli
from megaflow.cli.state_reading import open_output
from megaflow.durable.copying import Origin
from megaflow.durable.incarnation import read_commits
from megaflow.durable.local_folder import open_for_a_job
from megaflow.durable.store import Store
from megaflow.errors import StoreDamaged
from megaflow.timely.communication.codec import user_types
from tests.durable.kept_histories import KeptHistory, no_waiting_for_the_disk, words
from tests.timely.communication.codec.registrations import undone
from tests.words import says

__all__ = ["no_waiting_for_the_disk"]  # a fixture for all tests here

VISITS = '''
from dataclasses import dataclass

@dataclass
class Visit:
    where: str
    times: int

class Plain:
    def __init__(self): self.n = 1

def dataflow(flow):
    return (flow.lines().map(lambda line: (line, int(flow.args[0])))
            .stateful_state_machine(lambda key, value, state: (state, []), hash=len, bins=4, name="count"))
'''


def state(*words: object) -> Result:
    return CliRunner().invoke(cli, ["state", *map(str, words)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    words(tmp_path / "state").close()
    return tmp_path / "state"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Path]:
    """A program with a hash and classes of its own. Afterwards its module is unloaded."""
    path = tmp_path / "visits_of_a_test.py"
    path.write_text(VISITS)
    with undone():
        yield path
    sys.modules.pop(path.stem, None)


@pytest.mark.parametrize(
    ("key", "shown"),
    [("rose", "3"), ('"rose"', "3"), ("7", "seven"), ("7.0", "seven"), ('["a", 1]', "2")],
)
def test_get_finds_a_key_by_its_json_or_its_text(store: Path, key: str, shown: str) -> None:
    done = state("get", store, "count", key)
    assert (done.exit_code, done.stdout) == (0, f"{shown}\n"), done.output


def test_get_json_has_the_checkpoint_too(store: Path) -> None:
    done = state("get", store, "count", '["a", 1]', "--json", "--checkpoint", 2)
    assert json.loads(done.stdout) == {"operator": "count", "key": ["a", 1], "state": 2, "checkpoint": 2}


def test_a_key_may_begin_with_a_dash(tmp_path: Path) -> None:
    history = KeptHistory(tmp_path)
    history.checkpoint({-7: "minus seven"})
    assert state("get", tmp_path, "count", "-7").stdout == "minus seven\n"
    history.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("count", "rsoe"), "Operator 'count' has no key 'rsoe' at checkpoint 3. It has 4 keys. Did you mean 'rose'?"),
        (("count", "8"), "Operator 'count' has no key '8' at checkpoint 3. It has 4 keys, such as "),
        (("conut", "rose"), "checkpoint 3 has no operator 'conut'; did you mean 'count'? It has: count"),
        (("count", "is", "--checkpoint", 9), "has no checkpoint 9; it has 1, 2, 3"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(store: Path, words: tuple[object, ...], said: str) -> None:
    done = state("get", store, *words)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert said in done.stderr


def test_export_gives_a_line_for_each_key(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = state("export", store)
    assert done.exit_code == 0, done.output
    found = {json.dumps(each["key"]): each["state"] for each in map(json.loads, done.stdout.splitlines())}
    assert found == {'"a"': 2, '"rose"': 3, "7": "seven", '["a", 1]': 2}
    monkeypatch.setenv("MEGAFLOW_OUTPUT", "none")  # meant for `megaflow run`
    assert state("export", store).stdout == done.stdout
    assert (dash := state("export", store, "--output", "-")).stdout == done.stdout and dash.stderr == ""
    one = state("export", store, "count", "--output", tmp_path / "out.jsonl")
    assert (one.exit_code, one.stdout) == (0, ""), one.output
    assert says(one.stderr, "4 keys of checkpoint 3", str(tmp_path / "out.jsonl"))
    assert (tmp_path / "out.jsonl").read_text() == done.stdout
    again = state("export", store, "count", "--output", tmp_path / "out.jsonl")
    assert again.exit_code == 2 and "the file already exists. Name a new one." in again.stderr


def test_lines_that_cannot_be_written_are_not_the_stores_fault(store: Path, tmp_path: Path) -> None:
    done = state("export", store, "--output", tmp_path / "none" / "out.jsonl")
    assert done.exit_code == 1
    assert says(done.stderr, "megaflow: ", f"{tmp_path}/none/out.jsonl", "No such file or directory")


def test_a_state_that_json_has_no_form_for_is_refused_and_no_half_file_is_left(tmp_path: Path) -> None:
    history = KeptHistory(tmp_path / "state")
    history.checkpoint({"a": 1, "b": b"bytes"})
    done = state("export", tmp_path / "state", "--output", tmp_path / "out.jsonl")
    assert done.exit_code == 1
    assert "Operator 'count', key 'b': JSON has no form for b'bytes' of type builtins.bytes. In Python" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
    history.close()


def test_a_store_of_a_hash_of_its_own_is_read_with_its_program(tmp_path: Path, app: Path) -> None:
    history = words(tmp_path / "state", hash=lambda key: len(str(key)))
    without = state("get", tmp_path / "state", "count", "rose")
    assert without.exit_code == 1 and "the program has its own hash=" in without.stderr
    assert without.stderr.endswith(". Name the program with --app FILE.\n")
    app.write_text(VISITS.replace("hash=len", "hash=lambda key: len(str(key))"))
    done = state("get", tmp_path / "state", "count", "rose", "--app", app, "--", "1")
    assert (done.exit_code, done.stdout) == (0, "3\n"), done.output
    history.close()


def test_states_of_classes_that_are_not_known_are_shown_by_name_and_size(tmp_path: Path, app: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    user_types.add_folder(str(tmp_path))
    visits = __import__(app.stem)
    history = KeptHistory(tmp_path / "state", hash=len)
    history.checkpoint({"ann": visits.Visit("here", 3), "bob": visits.Visit("there", 1)})
    history.checkpoint({"eve": visits.Plain()})
    history.close()
    bare = KeptHistory(tmp_path / "plainly hashed")
    bare.checkpoint({"ann": visits.Visit("here", 3)})
    bare.close()
    del sys.modules[app.stem]

    shown = state("get", tmp_path / "plainly hashed", "count", "ann")
    assert shown.stdout.startswith("visits_of_a_test.Visit, "), shown.output
    assert shown.stdout.endswith(" bytes: name its program with --app FILE to show it\n")
    record = json.loads(state("export", tmp_path / "plainly hashed").stdout)
    assert (record["key"], record["state"]["types"]) == ("ann", ["visits_of_a_test.Visit"])
    assert app.stem not in sys.modules

    done = state("get", tmp_path / "state", "count", "ann", "--app", app, "--json", "--", "1")
    assert json.loads(done.stdout)["state"] == {"where": "here", "times": 3}, done.output
    refused = state("export", tmp_path / "state", "count", "--app", app, "--", "1")
    assert refused.exit_code == 1 and "key 'eve': JSON has no form for" in refused.stderr


def test_an_app_that_is_not_the_stores_is_refused(store: Path, app: Path, tmp_path: Path) -> None:
    app.write_text(VISITS.replace('"count"', '"sum"'))
    done = state("get", store, "count", "rose", "--app", app, "--", "1")
    assert done.exit_code == 2 and "has no stateful operator 'count'. It has: sum" in done.stderr


def test_copy_makes_a_store_and_refuses_a_folder_in_use(store: Path, tmp_path: Path) -> None:
    done = state("copy", store, tmp_path / "copy")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"copied checkpoint 3, epoch 30, to {tmp_path / 'copy'}: 3 segments, ")
    assert state("verify", tmp_path / "copy").exit_code == 0
    again = state("copy", store, tmp_path / "copy")
    assert again.exit_code == 1 and "is not empty" in again.stderr
    one = state("copy", store, tmp_path / "one", "--checkpoint", 1, "--json")
    assert json.loads(one.stdout)["checkpoint"] == 1
    assert json.loads(state("ls", tmp_path / "one", "--json").stdout)["checkpoints"][0]["checkpoint"] == 1


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A store of six checkpoints. The second has a name."""
    history = KeptHistory(tmp_path / "state")
    for number in range(1, 7):
        history.checkpoint({"n": number}, whole=range(4), names=["nightly"] if number == 2 else [])
    history.close()
    return tmp_path / "state"


def test_a_checkpoint_is_chosen_by_its_name(named: Path, tmp_path: Path) -> None:
    assert state("get", named, "count", "n", "--checkpoint", "nightly").stdout == "2\n"
    wrong = state("get", named, "count", "n", "--checkpoint", "nigthly")
    assert wrong.exit_code == 1
    assert "has no checkpoint nigthly; did you mean 'nightly'? It has 2, 4, 5, 6, nightly" in wrong.stderr
    assert state("copy", named, tmp_path / "copy", "--checkpoint", "nightly").exit_code == 0
    assert state("get", tmp_path / "copy", "count", "n", "--checkpoint", "nightly").stdout == "2\n"
    shown = state("ls", named)
    assert [row.split()[0] for row in shown.stdout.splitlines()[2:6]] == ["2", "4", "5", "6"]
    assert shown.stdout.splitlines()[2].endswith("  nightly")
    records = json.loads(state("ls", named, "--json").stdout)["checkpoints"]
    assert [(each["checkpoint"], each["names"]) for each in records] == [(2, ["nightly"]), (4, []), (5, []), (6, [])]


def test_rm_lets_a_checkpoint_go_that_has_a_name(named: Path) -> None:
    wrong = state("rm", named, "weekly")
    assert wrong.exit_code == 1 and "no checkpoint is named 'weekly'; available: nightly" in wrong.stderr
    done = state("rm", named, "nightly")
    assert done.stdout == f"removed the name 'nightly' from {named}\n", done.output
    assert [each["checkpoint"] for each in json.loads(state("ls", named, "--json").stdout)["checkpoints"]] == [4, 5, 6]
    assert state("verify", named).exit_code == 0
    assert state("rm", named / "none", "nightly").exit_code == 1 and not (named / "none").exists()


def test_rm_json_is_a_record(named: Path) -> None:
    assert json.loads(state("rm", named, "nightly", "--json").stdout) == {"store": str(named), "removed": "nightly"}


def test_json_of_a_key_that_is_not_there_is_null(store: Path) -> None:
    done = state("get", store, "count", "rsoe", "--json")
    assert json.loads(done.stdout) == {"operator": "count", "key": "rsoe", "state": None, "checkpoint": 3}
    assert done.exit_code == 1 and "Did you mean 'rose'?" in done.stderr


def test_what_is_sound_can_be_read_though_the_newest_commit_is_damaged(named: Path, tmp_path: Path) -> None:
    newest = max(named.glob("*.commit"))
    content = bytearray(newest.read_bytes())
    content[40] ^= 1
    newest.write_bytes(content)
    shown = state("ls", named)
    assert shown.exit_code == 1 and f"{newest.name} is damaged" in shown.stderr
    assert [row.split()[0] for row in shown.stdout.splitlines()[2:5]] == ["2", "4", "5"]
    assert state("get", named, "count", "n", "--checkpoint", "nightly").stdout == "2\n"
    assert state("get", named, "count", "n", "--checkpoint", 5).stdout == "5\n"
    refused = state("get", named, "count", "n")
    assert refused.exit_code == 1 and f"{newest.name} is damaged at byte 20" in refused.stderr
    assert refused.stderr.endswith("; readable checkpoints, by number: 2, 4, 5\n")
    with pytest.raises(StoreDamaged):
        open_store_to_run(named)
    Origin(str(named), "nightly").close()


def open_store_to_run(path: Path) -> None:
    folder = open_for_a_job(path)
    try:
        read_commits(Store(folder))
    finally:
        folder.close_folder()


def test_rm_in_a_store_that_is_locked_by_no_job_says_who_has_it(named: Path) -> None:
    folder = open_for_a_job(named)
    done = state("rm", named, "nightly")
    assert done.exit_code == 1 and says(done.stderr, f"is in use by process {os.getpid()} on ", "by --runtime-dir")
    folder.close_folder()


def is_open(path: Path) -> bool:
    """Whether this process has a file open that has or had this name."""
    opened = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            opened.append(os.readlink(each))
    return any(name.startswith(str(path)) for name in opened)


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_output_that_is_broken_off_is_removed_and_closed_and_the_reason_stays(tmp_path: Path, is_gone: bool) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(KeyboardInterrupt), open_output(str(path)) as write:
        write("a line")
        assert is_open(path)
        if is_gone:
            path.unlink()
        raise KeyboardInterrupt
    assert not path.exists() and not is_open(path)
