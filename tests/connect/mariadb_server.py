"""A MariaDB server for one test module, from the system's packages: started, and removed.

It listens only on a socket in its folder, and requires a password. If the tests run as root, it runs as the user
`mysql`.
"""

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

START_SECONDS = 180.0
USER = "ann"


def binary() -> str | None:
    """Return the installed server, or None if there is none that can run."""
    if os.geteuid() == 0 and _unprivileged() is None:
        return None
    return shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def _unprivileged() -> pwd.struct_passwd | None:
    with suppress(KeyError):
        return pwd.getpwnam("mysql")
    return None


class MariadbServer:
    """A server with the empty database `shop`."""

    def __init__(self) -> None:
        """Make the database and start the server."""
        found = binary()
        assert found is not None
        self.password = secrets.token_hex(12)
        self.folder = Path(mkdtemp(prefix="mf-my-", dir="/tmp"))  # short, for the socket; its user may open it
        self.socket = self.folder / "socket"
        words: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = _unprivileged()
            assert user is not None
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            words = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        first = self.folder / "first.sql"
        first.write_text(  # a statement on each line
            "CREATE DATABASE shop CHARACTER SET utf8mb4;\n"
            f"CREATE USER {USER}@localhost IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {USER}@localhost;\n"
        )
        first.chmod(0o644)  # its folder is private
        # A server that starts removes the temporary tables of all others in its tmpdir.
        common = ["--no-defaults", f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        install = shutil.which("mariadb-install-db")
        assert install is not None
        done = subprocess.run(
            [install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"],
            cwd=self.folder, capture_output=True, text=True, check=False, **words,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [found, *common, f"--socket={self.socket}", "--skip-networking", f"--init-file={first}",
                 "--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=16M", "--pid-file=pid"],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **words,
            )  # fmt: skip
        until = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert self._process.poll() is None and time.monotonic() < until, (self.folder / "log").read_text()
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        """Return whether the server accepts connections. It creates the socket a little earlier."""
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def remove(self) -> None:
        """Stop the server, and remove its files."""
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
