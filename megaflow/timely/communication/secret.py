"""The shared secret: from the environment, or from a file that only its user can read.

A process writes the file under a temporary name and then links it into place. So if several processes start at once,
all read the same complete secret. Ownership and mode are checked each time. A folder or file that other users could
have written or read is refused, not repaired.
"""

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from megaflow.errors import NoPrivateFolder, UsageError, naming

RUNTIME_DIR = "MEGAFLOW_RUNTIME_DIR"
BY = f"by --runtime-dir or {RUNTIME_DIR}"
SECRET_BYTES = 32  # as many as the digest that uses the secret


def private_folder() -> Path:
    """Return this user's megaflow folder; create it with mode 0700 if it is missing.

    It is the first of `places` that belongs to this user or can be created. Raises NoPrivateFolder if there is none,
    UsageError if other users can enter it.
    """
    reasons = [] if temporary_folder() else ["no temporary folder can be written to"]
    for folder in places():
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            pass  # created by an earlier process; the check below covers both cases
        except OSError as error:
            reasons.append(f"cannot make {folder}: {error.strerror}")
            continue
        status = folder.lstat()
        if status.st_uid != os.getuid():
            reasons.append(f"{folder} belongs to user {status.st_uid}, not to you")
        elif not stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{folder} is not a folder: remove it or set {RUNTIME_DIR}")
        elif not os.access(folder, os.W_OK | os.X_OK):
            reasons.append(f"cannot write to {folder}")
        else:
            _check_private(folder, status, "700")
            return folder
    why = "; ".join(reasons)
    raise NoPrivateFolder(f"there is no folder for files of running jobs ({why}). Name one {BY}")


def places() -> Iterator[Path]:
    """Yield the possible locations of this user's folder, the best one first.

    In the temporary directory another user may create the folder first, but not in this user's home.
    """
    if given := os.environ.get(RUNTIME_DIR):
        yield Path(given, "megaflow")
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime):
        yield Path(runtime, "megaflow")
    if temporary := temporary_folder():
        yield Path(temporary, f"megaflow-{os.getuid()}")
    home = os.path.expanduser("~")
    if os.path.isdir(home):
        yield Path(home, ".cache", "megaflow")


def temporary_folder() -> str:
    """Return the folder for temporary files. "" if none can be written to."""
    with contextlib.suppress(FileNotFoundError):
        return tempfile.gettempdir()
    return ""


def folders_to_read() -> tuple[Path | None, list[Path]]:
    """Return the folders that may have files of running jobs: this user's, and for root those of other users.

    If root names a folder of another user, such as that of a service, it is the only one. Raises UsageError in the same
    cases as `private_folder`.
    """
    if os.getuid():
        return private_folder(), []
    if given := os.environ.get(RUNTIME_DIR):
        folder = Path(given, "megaflow")
        return (None, [folder]) if _is_of_another(folder) else (private_folder(), [])
    others = [*Path("/run/user").glob("*/megaflow"), *Path(temporary_folder() or "/tmp").glob("megaflow-*")]
    return private_folder(), [*filter(_is_of_another, sorted(others))]


def _is_of_another(folder: Path) -> bool:
    """Return whether the folder belongs to another user, and only that user and root can enter it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return status.st_uid != 0 and stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077


def given_secret() -> str | None:
    """Return the value of $MEGAFLOW_SECRET, None if it is not set. Raises UsageError if it is not text."""
    given = os.environ.get("MEGAFLOW_SECRET")
    if given is None:
        return None
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise UsageError("MEGAFLOW_SECRET is not UTF-8: give it a long random text, the same everywhere") from error
    return given.strip()


def load_secret() -> bytes:
    """Return the bytes of $MEGAFLOW_SECRET, otherwise of the per-user file, which the first process creates.

    Raises UsageError for an empty secret, and for a file that other users can read.
    """
    given = given_secret()
    if given is not None:
        if not given:
            raise UsageError("MEGAFLOW_SECRET is empty: unset it or give it a long random text")
        return given.encode()
    try:
        path = private_folder() / "secret"
    except NoPrivateFolder as error:
        raise UsageError(f"{error}, or give all processes the same secret in MEGAFLOW_SECRET") from error
    if not path.exists():
        with naming(UsageError, f"cannot write the secret {path}", "; make room there, or set MEGAFLOW_SECRET"):
            _make(path)
    with naming(UsageError, f"cannot read the secret {path}", "; remove it or set MEGAFLOW_SECRET"):
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(file, "rb") as opened:
        _check_private(path, os.fstat(opened.fileno()), "600")
        secret = opened.read().strip()
    if not secret:
        raise UsageError(f"the secret {path} is empty: remove the file; the next process creates a new one")
    return secret


def _make(path: Path) -> None:
    """Put a new secret at `path`, unless another process is faster. Raises OSError."""
    handle, draft = tempfile.mkstemp(dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(secrets.token_hex(SECRET_BYTES).encode())
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was faster: its secret is used
    finally:
        os.unlink(draft)


def _check_private(path: Path, status: os.stat_result, mode: str) -> None:
    """Raise UsageError unless only this user can reach `path`."""
    if status.st_uid != os.getuid():
        raise UsageError(f"{path} belongs to user {status.st_uid}, not to you: remove it or set MEGAFLOW_SECRET")
    if status.st_mode & 0o077:
        shown = oct(stat.S_IMODE(status.st_mode))[2:]
        raise UsageError(f"{path} has mode {shown}, so others can reach it: chmod {mode} {path}, or remove it")
