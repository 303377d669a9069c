"""All processes of a user share one secret, which no other user can read."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megaflow.errors import NoPrivateFolder, UsageError
from megaflow.timely.communication.secret import folders_to_read, load_secret, private_folder
from tests.rights import without_room


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("MEGAFLOW_SECRET", raising=False)
    monkeypatch.delenv("MEGAFLOW_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "given\n")
    assert load_secret() == b"given"
    assert not list(runtime.iterdir())


def test_an_empty_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", " ")
    with pytest.raises(UsageError, match="MEGAFLOW_SECRET is empty"):
        load_secret()


def test_a_secret_that_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "\udc80")  # a byte that is not UTF-8
    with pytest.raises(UsageError, match="MEGAFLOW_SECRET is not UTF-8"):
        load_secret()


def test_processes_that_start_at_once_read_one_secret(runtime: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = {future.result() for future in [pool.submit(load_secret) for _ in range(32)]}
    assert len(found) == 1
    assert len(found.pop()) == 64
    assert [path.name for path in (runtime / "megaflow").iterdir()] == ["secret"]


def test_folder_and_file_are_private(runtime: Path) -> None:
    load_secret()
    assert stat.S_IMODE((runtime / "megaflow").stat().st_mode) == 0o700
    assert stat.S_IMODE((runtime / "megaflow" / "secret").stat().st_mode) == 0o600


@pytest.mark.parametrize(("name", "mode"), [("megaflow", 0o755), ("megaflow/secret", 0o640)])
def test_what_others_can_reach_is_refused(runtime: Path, name: str, mode: int) -> None:
    load_secret()
    (runtime / name).chmod(mode)
    with pytest.raises(UsageError, match=f"mode {mode:o}.*chmod"):
        load_secret()


def test_a_link_in_place_of_the_file_or_folder_is_refused(runtime: Path) -> None:
    load_secret()
    (runtime / "megaflow" / "secret").rename(runtime / "elsewhere")
    (runtime / "megaflow" / "secret").symlink_to(runtime / "elsewhere")
    with pytest.raises(UsageError, match="cannot read the secret"):
        load_secret()
    (runtime / "megaflow").rename(runtime / "real")
    (runtime / "megaflow").symlink_to(runtime / "real")
    with pytest.raises(UsageError, match="not a folder"):
        load_secret()


def test_a_folder_of_another_user_does_not_stop_a_user(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    if os.getuid():
        pytest.skip("only root can make a folder of another user")
    monkeypatch.setenv("HOME", str(runtime / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    (runtime / "home").mkdir()
    for taken in (runtime / "megaflow", runtime / f"megaflow-{os.getuid()}"):
        taken.mkdir(mode=0o700)
        os.chown(taken, 12345, 12345)
    assert private_folder() == runtime / "home" / ".cache" / "megaflow"
    (runtime / "home").rename(runtime / "gone")
    with pytest.raises(NoPrivateFolder, match=r"belongs to user 12345.*MEGAFLOW_RUNTIME_DIR"):
        private_folder()
    with pytest.raises(UsageError, match="MEGAFLOW_SECRET"):
        load_secret()
    monkeypatch.setenv("MEGAFLOW_SECRET", "given")
    assert load_secret() == b"given"


def test_the_runtime_dir_of_the_user_comes_first(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", str(runtime / "own" / "run"))
    assert private_folder() == runtime / "own" / "run" / "megaflow"
    (runtime / "file").touch()
    monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", str(runtime / "file"))
    with pytest.raises(NoPrivateFolder, match="cannot make"):
        private_folder()


def test_no_temporary_folder_is_named_as_the_reason(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)  # to be found anew
    monkeypatch.setenv("HOME", str(runtime / "no home"))
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    reason = r"\(no temporary folder can be written to\)\. Name one by"
    with without_room(), pytest.raises(NoPrivateFolder, match=reason):
        private_folder()
    monkeypatch.setenv("HOME", str(runtime))
    with without_room():
        assert folders_to_read()[0] == runtime / ".cache" / "megaflow"


def test_a_secret_that_cannot_be_written_is_one_sentence(runtime: Path) -> None:
    said = "cannot write the secret .*/secret: File too large; make room there, or set MEGAFLOW_SECRET"
    with without_room(), pytest.raises(UsageError, match=said):
        load_secret()
    assert not list(private_folder().iterdir())


def test_root_reads_the_folders_of_other_users(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    monkeypatch.setenv("HOME", str(runtime / "no home"))
    own, other, open_to_all = private_folder(), runtime / "megaflow-12345", runtime / "megaflow-12346"
    for folder, mode in ((other, 0o700), (open_to_all, 0o755)):
        folder.mkdir()
        folder.chmod(mode)
        if os.getuid() == 0:
            os.chown(folder, 12345, 12345)
    first, others = folders_to_read()
    found = [folder for folder in others if runtime in folder.parents]
    assert first == own and found == ([other] if os.getuid() == 0 else [])


@pytest.mark.skipif(os.getuid() != 0, reason="only root reads the folders of other users")
def test_root_reads_the_folder_of_a_service_that_it_names(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    folder = runtime / "service" / "megaflow"
    monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", str(folder.parent))
    assert folders_to_read() == (folder, []), "it is made"
    os.chown(folder, 12345, 12345)
    assert folders_to_read() == (None, [folder])
    with pytest.raises(NoPrivateFolder, match="belongs to user 12345"):
        private_folder()  # where a job of root's own would write
    folder.chmod(0o755)
    with pytest.raises(NoPrivateFolder):
        folders_to_read()


def test_without_a_runtime_folder_the_temporary_one_is_used(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    assert private_folder() == runtime / f"megaflow-{os.getuid()}"
