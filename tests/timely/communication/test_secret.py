"""The secret is one for all processes of a user, and nobody else's."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.timely.communication.secret import load_secret, private_folder


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv("MEGAFLOW_SECRET", raising=False)
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


def test_without_a_runtime_folder_the_temporary_one_is_used(monkeypatch: pytest.MonkeyPatch, runtime: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime / "missing"))
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    assert private_folder() == runtime / f"megaflow-{os.getuid()}"
