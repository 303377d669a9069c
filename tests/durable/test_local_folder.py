"""A store in a folder of this machine: file modes, the lock, the fence, and folders that are not stores."""

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megaflow.durable.incarnation import begin
from megaflow.durable.local_folder import LOCK, NEXT_LOCK, LocalFolder, open_for_a_job, open_in_a_job, open_to_look
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from tests.durable.launchers import APP, History, Launcher, check_kept


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[LocalFolder]:
    opened = open_for_a_job(tmp_path / "state")
    yield opened
    opened.close_folder()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_and_its_files_are_their_owners_only(folder: LocalFolder, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        begin(Store(folder), APP)
        Store(folder).put("i1-w0-000001.seg", [b"a", b"b"])
    finally:
        os.umask(before)
    assert mode(tmp_path / "state") == 0o700
    assert {path.name: mode(path) for path in (tmp_path / "state").iterdir()} == dict.fromkeys(
        (LOCK, "000000000001.commit", "i1-w0-000001.seg"), 0o600
    )


def test_a_file_is_read_in_pieces_and_known_by_its_length(folder: LocalFolder) -> None:
    store = Store(folder)
    store.put("i1-w0-000001.seg", [b"abc", b"def"])
    assert store.list() == {"i1-w0-000001.seg": 6}
    assert store.read("i1-w0-000001.seg") == b"abcdef"
    assert [store.read("i1-w0-000001.seg", start, 3) for start in (0, 2, 5, 9)] == [b"abc", b"cde", b"f", b""]


def test_a_name_is_given_once(folder: LocalFolder) -> None:
    store = Store(folder)
    assert store.commit("000000000001.commit", b"mine")
    assert not store.commit("000000000001.commit", b"yours")
    with pytest.raises(FileExistsError):
        store.put("000000000001.commit", [b"yours"])
    assert store.read("000000000001.commit") == b"mine"
    assert set(store.list()) == {"000000000001.commit"}


def test_what_is_gone_already_may_be_removed(folder: LocalFolder) -> None:
    store = Store(folder)
    store.put("i1-w0-000001.seg", [b"a"])
    store.delete(["i1-w0-000002.seg", "i1-w0-000001.seg"])
    assert store.list() == {}


def test_checkpoints_survive_from_launcher_to_launcher(folder: LocalFolder, tmp_path: Path) -> None:
    history = History()
    path = tmp_path / "state"
    for _ in range(3):
        launcher = Launcher(history, lambda: Store(LocalFolder(path)))
        for whole in (False, True, False):
            assert launcher.checkpoint(whole)
        assert len(check_kept(Store(folder))) == 2
    assert launcher.incarnation.latest.checkpoint == 9
    assert len(list(path.iterdir())) < 15


def test_a_store_in_use_is_refused_and_its_holder_named(folder: LocalFolder, tmp_path: Path) -> None:
    for path in (tmp_path / "state", tmp_path / "state" / ".." / "state"):
        with pytest.raises(StoreError, match=rf"the store \S+ is in use by process {os.getpid()} on '"):
            open_for_a_job(path)


def test_the_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    path = tmp_path / "state"
    code = "import os, sys; from megaflow.durable.local_folder import open_for_a_job as o; o(sys.argv[1]); os._exit(9)"
    ended = subprocess.run([sys.executable, "-c", code, path], timeout=180, check=False)
    assert ended.returncode == 9 and (path / LOCK).exists()
    open_for_a_job(path).close_folder()


def test_who_takes_a_store_over_has_the_lock_whatever_becomes_of_the_older_one(
    tmp_path: Path
) -> None:
    path = tmp_path / "state"
    older = open_for_a_job(path)
    taken = open_for_a_job(path, take_over=True)
    assert taken.taken_from is not None and taken.taken_from.pid == os.getpid()
    with pytest.raises(StoreError, match="is in use by process"):
        open_for_a_job(path, take_over=True)  # two take-overs at once
    taken.take_lock_over()
    assert set(os.listdir(path)) == {LOCK}
    older.close_folder()
    with pytest.raises(StoreError, match=r"in use by process .* --take-over continues it here"):
        open_for_a_job(path)
    taken.close_folder()
    (path / NEXT_LOCK).touch()  # left by a launcher that died while it took the store over
    for take_over in (True, False):
        free = open_for_a_job(path, take_over)
        assert free.taken_from is None and free.lengths() == {}
        free.close_folder()


def test_a_lock_tells_who_had_it_before(tmp_path: Path) -> None:
    words = []
    for _ in range(40):
        folder = open_for_a_job(tmp_path / "state")
        assert folder.words_before[-30:] == tuple(words[-30:]) and folder.word not in words
        words.append(folder.word)
        folder.close_folder()
    first = open_for_a_job(tmp_path / "state")
    taking = open_for_a_job(tmp_path / "state", take_over=True)
    assert first.word in taking.words_before and first.words_before[-1] == words[-1]
    taking.close_folder()
    first.close_folder()


def test_a_take_over_that_is_refused_leaves_the_lock_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    healthy = open_for_a_job(path)
    open_for_a_job(path, take_over=True).close_folder()  # it was refused before it could begin
    assert set(os.listdir(path)) == {LOCK}
    with pytest.raises(StoreError, match="is in use by process"):
        open_for_a_job(path)
    healthy.close_folder()
    open_for_a_job(path).close_folder()


def test_who_locks_what_was_the_lock_a_moment_ago_has_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another launcher takes the store over between opening the file and locking it, and the older one ends."""
    older, flock = open_for_a_job(tmp_path), fcntl.flock
    taken: list[LocalFolder] = []

    def late(file: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        taken.append(open_for_a_job(tmp_path, take_over=True))
        taken[0].take_lock_over()
        older.close_folder()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(StoreError, match="is in use by process"):
        open_for_a_job(tmp_path)
    taken[0].close_folder()


def test_of_two_that_take_a_store_over_at_once_one_is_refused(folder: LocalFolder, tmp_path: Path) -> None:
    other = LocalFolder(tmp_path / "state")
    assert other._locked(NEXT_LOCK)[0] is not None
    with pytest.raises(StoreError, match="is in use"):
        open_for_a_job(tmp_path / "state", take_over=True)
    other.close_folder()


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "state"
    held = open_for_a_job(path)
    command = [sys.executable, "-c", "print('up', flush=True); input()"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"up\n"
        held.close_folder()
        open_for_a_job(path).close_folder()
    finally:
        child.communicate(b"\n", timeout=180)


def test_a_lock_file_that_says_nothing_is_no_hindrance(tmp_path: Path) -> None:
    held = open_for_a_job(tmp_path / "state")
    (tmp_path / "state" / LOCK).write_text("{")
    with pytest.raises(StoreError, match="state is in use: wait until that job ends"):
        open_for_a_job(tmp_path / "state")
    held.close_folder()


def test_a_system_that_cannot_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreError, match="cannot be locked: No locks available; keep the store on a local file system"):
        open_for_a_job(tmp_path / "state")


def test_a_folder_that_holds_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    before = mode(tmp_path)
    for open_it in (open_for_a_job, open_to_look):
        with pytest.raises(StoreError, match="is not a store, it holds other files but no commit"):
            open_it(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    assert mode(tmp_path) == before


@pytest.mark.parametrize("for_a_copy", [False, True])
def test_a_lock_of_somebody_elses_makes_no_store_of_a_folder(tmp_path: Path, for_a_copy: bool) -> None:
    """A copy would remove existing files."""
    for name in (LOCK, "thesis.txt"):
        (tmp_path / name).write_text("years of work")
    with pytest.raises(StoreError, match="is not a store, it holds other files but no commit"):
        open_for_a_job(tmp_path, for_a_copy=for_a_copy)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"years of work"}


def test_what_is_left_of_a_store_that_had_not_begun_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    open_for_a_job(folder).close_folder()
    (folder / "000000000001.commit.0.tmp").write_text("")
    open_for_a_job(folder).close_folder()
    (folder / "i1-w0-000001.seg").write_text("")
    (folder / "i1-w0-000002.seg.0.tmp").write_text("")
    open_for_a_job(folder, for_a_copy=True).close_folder()
    with pytest.raises(StoreError, match="is not a store, it holds segments but no commit"):
        open_for_a_job(folder)


def test_a_full_disk_is_no_matter_of_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, data: bytes, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StoreError, match=r"cannot be locked: No space left on device$"):
        open_for_a_job(tmp_path / "state")


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        open_for_a_job(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot be opened: No such file"):
        open_for_a_job(tmp_path / "none" / "state")
    with pytest.raises(StoreError, match=r"the store .*/none cannot be opened: No such file"):
        open_in_a_job(tmp_path / "none")
    with pytest.raises(StoreError, match="as a store: No such file"):
        open_to_look(tmp_path / "none")


def test_a_process_that_ended_before_its_first_commit_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    open_for_a_job(tmp_path / "state").close_folder()
    again = open_for_a_job(tmp_path / "state")
    assert begin(Store(again), APP).latest.number == 1
    again.close_folder()


def test_a_store_is_looked_at_while_it_is_in_use(folder: LocalFolder, tmp_path: Path) -> None:
    begin(Store(folder), APP)
    looking = open_to_look(tmp_path / "state")
    assert list(Store(looking).list()) == ["000000000001.commit"]
    looking.close_folder()
