"""The shared secret: from the environment, or from a file only its user can read.

The file is written under a name of its own and then linked into place, so that of several processes that start at
once all read the same complete secret. Ownership and mode are checked each time: a folder or file that others could
have written or read is refused, not repaired.
"""

import ipaddress
import os
import secrets
import stat
import tempfile
from pathlib import Path

from megaflow.errors import UsageError

SECRET_BYTES = 32  # as many as the digest that uses them


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach `host`.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def private_folder() -> Path:
    """Return this user's megaflow folder, made with mode 0700 if it is missing; raises UsageError if others can enter.

    It lies in $XDG_RUNTIME_DIR, else in the temporary directory.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime):
        folder = Path(runtime, "megaflow")
    else:
        folder = Path(tempfile.gettempdir(), f"megaflow-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass  # made by an earlier process; the check below is for both
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error}; set MEGAFLOW_SECRET") from error
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{folder} is not a folder: remove it or set MEGAFLOW_SECRET")
    _check_private(folder, status, "700")
    return folder


def given_secret() -> str | None:
    """Return what $MEGAFLOW_SECRET says, None if it is not set; raises UsageError if it is no text."""
    given = os.environ.get("MEGAFLOW_SECRET")
    if given is None:
        return None
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise UsageError("MEGAFLOW_SECRET is not UTF-8: give it a long random text, the same everywhere") from error
    return given.strip()


def load_secret() -> bytes:
    """Return the bytes of $MEGAFLOW_SECRET, else of the per-user file, which the first process makes.

    Raises UsageError for an empty secret and for a file that others can read.
    """
    given = given_secret()
    if given is not None:
        if not given:
            raise UsageError("MEGAFLOW_SECRET is empty: unset it or give it a long random text")
        return given.encode()
    path = private_folder() / "secret"
    if not path.exists():
        _make(path)
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise UsageError(f"cannot read the secret {path}: {error}; remove it or set MEGAFLOW_SECRET") from error
    with os.fdopen(file, "rb") as opened:
        _check_private(path, os.fstat(opened.fileno()), "600")
        secret = opened.read().strip()
    if not secret:
        raise UsageError(f"the secret {path} is empty: remove the file; the next process creates a new one")
    return secret


def _make(path: Path) -> None:
    """Put a fresh secret at `path`, unless another process is quicker."""
    handle, draft = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(secrets.token_hex(SECRET_BYTES).encode())
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was quicker: its secret counts
    finally:
        os.unlink(draft)


def _check_private(path: Path, status: os.stat_result, mode: str) -> None:
    """Raise UsageError unless only this user can reach `path`."""
    if status.st_uid != os.getuid():
        raise UsageError(f"{path} belongs to user {status.st_uid}, not to you: remove it or set MEGAFLOW_SECRET")
    if status.st_mode & 0o077:
        shown = oct(stat.S_IMODE(status.st_mode))[2:]
        raise UsageError(f"{path} has mode {shown}, so others can reach it: chmod {mode} {path}, or remove it")
