"""A PostgreSQL server of a test's own, from the system's packages: started, killed, started again, removed.

It listens on a socket in its folder only, asks for a password, and runs as the user `postgres` where the tests run as
root, as it refuses to be that. It does not wait for the disk: what is killed here are processes.
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

START_SECONDS = 60.0
USER = "ann"


def binaries() -> Path | None:
    """Return the folder of the newest server that is installed; None: there is none that can be run."""
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
        self._password = secrets.token_hex(12)
        self.folder = Path(mkdtemp(prefix="mf-pg-", dir="/tmp"))  # short, for the socket, and open to its user
        self.url = f"postgresql://{USER}:{self._password}@/postgres?host={self.folder}"
        self._as: dict[str, Any] = {"cwd": self.folder}
        if os.geteuid() == 0:
            user = _unprivileged()
            assert user is not None
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        password = self.folder / "password"
        password.write_text(self._password)
        password.chmod(0o644)  # its folder is closed
        self._run("initdb", "-D", "data", "-U", USER, "--auth=scram-sha-256", "--pwfile=password", "--no-sync")
        password.unlink()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it takes connections; after a kill also until nobody has its memory."""
        until = time.monotonic() + START_SECONDS
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [self._binaries / "postgres", "-D", "data", "-k", self.folder, "-c", "listen_addresses=", "-F"],
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
        """Kill it and all of its processes at once."""
        assert self._process is not None
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def remove(self) -> None:
        """End it, and leave nothing."""
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
