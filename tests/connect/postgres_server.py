"""A PostgreSQL server for one test module, from the system's packages: started, killed, started again, removed.

It listens only on a socket in its folder, and requires a password. If the tests run as root, it runs as the user
`postgres`, because PostgreSQL refuses to run as root. It does not wait for the disk, because the tests only kill
processes. Its shared memory is in its folder, since a killed server would leave it in /dev/shm, which may be small.
"""

import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

START_SECONDS = 180.0
USER = "ann"


def binaries() -> Path | None:
    """Return the folder of the newest installed server, or None if there is none that can run."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"), key=lambda path: float(path.split("/")[4]))
    path = found[-1] if found else shutil.which("postgres")
    if path is None or (os.geteuid() == 0 and _unprivileged() is None):
        return None
    return Path(path).resolve().parent


def _unprivileged() -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None


class PostgresServer:
    """A server with an empty database; `url` has its password."""

    def __init__(self) -> None:
        """Make the database and start the server."""
        folder = binaries()
        assert folder is not None
        self._binaries = folder
        self.password = secrets.token_hex(12)
        self.folder = Path(mkdtemp(prefix="mf-pg-", dir="/tmp"))  # short, for the socket; its user may open it
        self.url = f"postgresql://{USER}:{self.password}@/postgres?host={self.folder}"
        self._as: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            user = _unprivileged()
            assert user is not None
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        password = self.folder / "password"
        password.write_text(self.password)
        password.chmod(0o644)  # its folder is private
        self._run("initdb", "-D", "data", "-U", USER, "--auth=scram-sha-256", "--pwfile=password", "--no-sync")
        password.unlink()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it accepts connections; after a kill also until its memory is free."""
        until = time.monotonic() + START_SECONDS
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [self._binaries / "postgres", "-D", "data", "-k", self.folder, "-F",
                     "-c", "listen_addresses=", "-c", "dynamic_shared_memory_type=mmap"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **self._as,
                )  # fmt: skip
            while self._process.poll() is None:
                ready = [self._binaries / "pg_isready", "-q", "-h", self.folder]
                if subprocess.run(ready, check=False).returncode == 0:
                    return
                assert time.monotonic() < until, (self.folder / "log").read_text()
                time.sleep(0.05)
            assert time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the server and all its processes at once."""
        assert self._process is not None
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def suspend(self) -> None:
        """Suspend the server and all its processes until `resume`. Connections stay open, but get no answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the server."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def remove(self) -> None:
        """Stop the server, and remove its files."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, command: str, *words: str) -> None:
        words = (str(self._binaries / command), *words)
        done = subprocess.run(words, capture_output=True, text=True, check=False, **self._as)
        assert done.returncode == 0, done.stderr


def _children(pid: int) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def query(server: PostgresServer, *statements: str) -> list[tuple[Any, ...]]:
    """Run statements; return the rows of the last one."""
    import psycopg  # only for tests that query a server

    with psycopg.connect(server.url) as connection:
        for statement in statements:
            cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []
