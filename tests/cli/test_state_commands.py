"""`megaflow state` shows the contents of a store, and whether it is sound."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from megaflow.cli.main import cli

KEPT = Path(__file__).resolve().parents[1] / "durable" / "stores" / "v1"
SEGMENT = "i1-w0-000002.seg"


def state(*words: object) -> Result:
    return CliRunner().invoke(cli, ["state", *map(str, words)])


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "state"))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def way_out(store: Path, checkpoint: int) -> str:
    return (
        f"Checkpoint {checkpoint} is the newest that is whole. To go on from there, copy it to a new folder by "
        f"megaflow state copy {store} NEW --checkpoint {checkpoint}, and give --state NEW."
    )


def test_ls_shows_the_checkpoints_oldest_first(store: Path) -> None:
    done = state("ls", store)
    assert done.exit_code == 0, done.output
    first, head, *rows = done.stdout.splitlines()
    assert first.startswith(f"store {store} of sessions.py: ")
    assert head.split()[:4] == ["checkpoint", "epoch", "age", "incarnation"]
    assert [row.split()[:2] for row in rows[:3]] == [["0", "0"], ["1", "10"], ["2", "20"]]
    assert rows[0].split()[2] == "-", "no checkpoint was taken then, so it has no age"
    assert rows[3:] == ["operator count: 2 bins", "operator sessions: 2 bins", "Spark batches up to 7"]


def test_ls_tells_of_what_no_checkpoint_names(store: Path) -> None:
    (store / "i1-w0-000009.seg").write_bytes(b"")
    done = state("ls", store)
    assert done.stdout.splitlines()[-1] == "1 file in no checkpoint: being written, or left by a crash"


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_json_is_one_record(store: Path, command: str) -> None:
    done = state(command, store, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert (record["store"], record["damage"], record["unnamed"]) == (str(store), [], [])
    newest = record["checkpoints"][-1]
    assert (newest["checkpoint"], newest["epoch"], newest["app"], newest["ended"]) == (2, 20, "sessions.py", False)
    assert newest["operators"] == [{"name": "count", "bins": 2}, {"name": "sessions", "bins": 2}]
    assert [segment["file"] for segment in newest["segments"]] == ["i1-w0-000001.seg", SEGMENT]
    assert newest["segments"][1]["bytes"] == (store / SEGMENT).stat().st_size
    assert newest["outputs"] == [{"output": "jsonl:out.jsonl", "bytes": 100}]


def test_a_sound_store_is_called_so(store: Path) -> None:
    done = state("verify", store)
    assert done.exit_code == 0, done.output
    size = sum(path.stat().st_size for path in store.glob("*.seg"))
    assert done.stdout == f"{store} is sound: 3 checkpoints, 2 segments, {size} bytes\n"


def test_verify_names_each_damaged_file_with_the_place(store: Path) -> None:
    flip(store / SEGMENT, 20)
    flip(store / "000000000002.commit", 40)
    done = state("verify", store)
    assert done.exit_code == 1 and done.stdout == ""
    said, *found = done.stderr.splitlines()
    assert said == f"megaflow: The store {str(store)!r} has 2 faults:"
    assert [line.split(": ")[0] for line in sorted(found)] == [
        "  000000000002.commit is damaged at byte 20",
        f"  {SEGMENT} is damaged at byte 12",
    ]
    assert all(line.endswith("restore the store from a backup") for line in found)
    assert state("ls", store).exit_code == 1
    record = json.loads(state("verify", store, "--json").stdout)
    assert sorted(record["damage"]) == sorted(line.strip() for line in found)


def test_verify_finds_flipped_bits_in_each_file(store: Path) -> None:
    for path in sorted(store.iterdir()):
        content = path.read_bytes()
        for at in range(0, len(content), 41):
            flip(path, at)
            assert state("verify", store, "--json").exit_code == 1, f"{path.name}, byte {at}"
            path.write_bytes(content)


def test_verify_finds_a_missing_segment_and_one_of_another_commit(store: Path) -> None:
    shutil.copy(store / "i1-w0-000001.seg", store / SEGMENT)
    done = state("verify", store)
    assert done.exit_code == 1 and f"names {SEGMENT} with " in done.stderr
    (store / SEGMENT).unlink()
    done = state("verify", store)
    assert done.exit_code == 1 and f"names {SEGMENT}, which is missing" in done.stderr


def test_verify_names_the_newest_whole_checkpoint(store: Path, tmp_path: Path) -> None:
    (store / SEGMENT).unlink()
    assert state("verify", store).stderr.splitlines()[-1] == way_out(store, 1)
    done = state("copy", store, tmp_path / "new", "--checkpoint", 1)
    assert done.exit_code == 0 and state("verify", tmp_path / "new").exit_code == 0, done.output
    (store / "i1-w0-000001.seg").unlink()
    assert "is the newest that is whole" not in state("verify", store).stderr, "checkpoint 0 has nothing"


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_what_is_no_store_is_refused(tmp_path: Path, command: str) -> None:
    done = state(command, tmp_path)
    assert done.exit_code == 1
    wanted = f"megaflow: {tmp_path} is not a store, it is empty: name the folder that was given to a job with --state\n"
    assert done.stderr == wanted
    done = state(command, tmp_path / "none")
    assert done.exit_code == 1 and "as a store: No such file or directory" in done.stderr


def test_a_command_without_a_folder_is_wrong_usage() -> None:
    assert state("ls").exit_code == 2
    assert state("tidy", "x").exit_code == 2


def test_help_names_the_commands() -> None:
    done = state("--help")
    assert done.exit_code == 0 and "ls" in done.stdout and "verify" in done.stdout
