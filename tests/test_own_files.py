"""A fork of a process gets none of the files that belong to that process alone."""

import contextlib
import fcntl
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from megaflow.durable.local_folder import open_for_a_job
from megaflow.job.exit_report import ReportPipe
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_specs import open_writer
from megaflow.own_files import close_own, handing_on, keep, keep_socket, open_own
from tests.forks import forked


def is_null(file: int) -> bool:
    return os.path.samestat(os.fstat(file), os.stat(os.devnull))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[int]:
    file = open_own(tmp_path / "own", os.O_RDWR | os.O_CREAT)
    yield file
    close_own(file)


def open_as(number: int, path: Path) -> None:
    """Open a file under this number, which is free. Others may be free too."""
    file = os.open(path, os.O_RDONLY)
    if file != number:
        os.dup2(file, number, inheritable=False)
        os.close(file)


def locks(path: Path) -> bool:
    """Return whether a file can be locked now."""
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def test_fork_gets_null_device_under_same_number(own: int, tmp_path: Path) -> None:
    other = os.open(tmp_path / "own", os.O_RDONLY)
    again = keep(os.dup(own))
    with forked(lambda: [is_null(file) for file in (own, other, again)]) as said:
        assert said == "[True, False, True]"
    assert not is_null(own)
    os.close(other)
    close_own(again)


def test_lock_ends_with_owner_though_its_fork_lives(own: int, tmp_path: Path) -> None:
    lock = open_own(tmp_path / "own", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with forked(lambda: fcntl.flock(lock, fcntl.LOCK_UN)):
        assert not locks(tmp_path / "own")
        close_own(lock)
        assert locks(tmp_path / "own")


def test_number_of_closed_file_is_any_file_again(own: int, tmp_path: Path) -> None:
    file = open_own(tmp_path / "own", os.O_RDONLY)
    close_own(file)
    open_as(file, tmp_path / "own")
    with forked(lambda: is_null(file)) as said:
        assert said == "False"
    os.close(file)


def test_fork_of_fork_keeps_files_of_its_parent(own: int, tmp_path: Path) -> None:
    def in_fork() -> str:
        os.close(own)
        open_as(own, tmp_path / "own")
        with forked(lambda: is_null(own)) as said:
            return said

    with forked(in_fork) as said:
        assert said == repr("False")


def test_fork_without_room_for_another_file_gets_none_either(own: int, tmp_path: Path) -> None:
    def in_fork() -> int:
        file = open_own(tmp_path / "own", os.O_RDONLY)
        room = max(file, *map(int, os.listdir("/proc/self/fd"))) + 8  # the process of the tests may have hundreds open
        resource.setrlimit(resource.RLIMIT_NOFILE, (room, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        with contextlib.suppress(OSError):
            while True:
                os.dup(file)
        if not (pid := os.fork()):
            with contextlib.suppress(OSError):
                os._exit(is_null(file))
            os._exit(2)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    with forked(in_fork) as said:
        assert said == "1"


@pytest.mark.parametrize("handed", [True, False])
def test_process_with_preexec_fn_gets_only_what_is_handed_on(own: int, tmp_path: Path, handed: bool) -> None:
    lock = open_own(tmp_path / "own", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    command = [sys.executable, "-c", "input()"]
    with handing_on(*([lock] if handed else [])):
        other = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lock], preexec_fn=bool)
    close_own(lock)
    assert locks(tmp_path / "own") is not handed
    other.communicate(b"\n")
    assert other.returncode == 0 and locks(tmp_path / "own")


def test_port_and_connection_end_with_owner_though_its_fork_lives() -> None:
    listener = keep_socket(socket.create_server(("127.0.0.1", 0)))
    place = listener.getsockname()
    client = socket.create_connection(place)
    server = keep_socket(listener.accept()[0])
    with forked():
        server.close()
        assert client.recv(1) == b""
        client.close()
        listener.close()
        socket.create_server(place).close()


def test_end_of_child_is_seen_though_fork_has_its_pipe() -> None:
    pipe = ReportPipe()
    with forked():
        assert not pipe.read()
        pipe.close_writing()
        assert pipe.read()
    pipe.close()


def test_store_is_free_at_once_though_fork_lives(tmp_path: Path) -> None:
    folder = open_for_a_job(tmp_path / "store")
    with forked(folder.close_folder) as said:
        assert said == "None"
        folder.close_folder()
        open_for_a_job(tmp_path / "store").close_folder()


@pytest.mark.parametrize("mode", ["new", "overwrite", "append", "resume"])
def test_fork_neither_unlocks_output_nor_repeats_lines(tmp_path: Path, mode: Mode) -> None:
    path = tmp_path / "out.jsonl"
    writer = open_writer(f"jsonl:{path}", mode=mode)
    writer.hold()
    writer.write(1, ["a line in the buffer"])
    assert path.read_text() == ""
    with forked(writer.close) as said:
        assert said == "None" and path.read_text() == ""
        assert not locks(path)
        writer.close()
        assert locks(path)
    assert path.read_text() == "a line in the buffer\n"
