"""A store copied with the system's tools, such as rsync, while its job runs."""

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.durable.incarnation import begin
from megaflow.durable.inspection import verify
from megaflow.durable.local_folder import LocalFolder, open_for_a_job, open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from tests.durable.launchers import APP, History, Launcher, check_kept


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda file: None)


def launcher_at(path: Path, kept: int) -> Launcher:
    path.mkdir()
    launcher = Launcher(History(), lambda: Store(LocalFolder(path)), kept)
    for number in range(4):
        assert launcher.checkpoint(whole=number % 2 == 0)
    return launcher


def copy(source: Path, target: Path, before_each: Callable[[int], None] = lambda place: None) -> None:
    """Copy the files by name, and skip those that vanish meanwhile."""
    target.mkdir(exist_ok=True)
    names = sorted(each.name for each in source.iterdir())
    for place, name in enumerate(names):
        before_each(place)
        if not (target / name).exists():
            with contextlib.suppress(FileNotFoundError):
                shutil.copy(source / name, target / name)


def is_whole(path: Path) -> bool:
    """Whether a store verifies. If it does, a job can resume from it, otherwise it is refused."""
    try:
        folder = open_to_look(path)
        damage = verify(Store(folder)).damage
        folder.close_folder()
    except StoreError:
        damage = ("it is not a store",)
    if damage and any(path.iterdir()):
        with pytest.raises(StoreError):
            begin(Store(open_for_a_job(path)), APP)
    elif not damage:
        [newest, *_] = check_kept(Store(LocalFolder(path)))
        assert newest.checkpoint >= 4
    return not damage


@pytest.mark.parametrize("checkpoints", [1, 2, 5])
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_copy_of_a_store_in_use_is_whole_or_refused_and_the_next_attempt_completes_it(
    kept: int, checkpoints: int, tmp_path: Path
) -> None:
    whole = set()
    for place in range(2 * kept + 3):
        source, target = tmp_path / f"store{place}", tmp_path / f"copy{place}"
        launcher = launcher_at(source, kept)

        def go_on(at: int, place: int = place, launcher: Launcher = launcher) -> None:
            for number in range(checkpoints if at == place else 0):
                assert launcher.checkpoint(whole=number % 2 == 0)

        copy(source, target, go_on)
        whole.add(is_whole(target))
        copy(source, target)
        assert is_whole(target)
    assert False in whole, "nothing was in the way of any copy"


def test_segments_without_a_commit_are_no_store_to_begin_anew_with(tmp_path: Path) -> None:
    launcher_at(tmp_path / "store", kept=2)
    copy(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "copy" / "lock").touch()
    for commit in (tmp_path / "copy").glob("*.commit"):
        commit.unlink()
    with pytest.raises(StoreError, match="copy is not a store, it holds segments but no commit"):
        open_for_a_job(tmp_path / "copy")
