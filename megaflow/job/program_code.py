"""What code a program is, as a fingerprint says it: how two differ, and whether the files are what was loaded of them.

Processes show theirs to each other (see `megaflow.job.worker.fingerprint`). The commits of a durable job have the
coordinator's: by that the launcher tells, before a next life or a resume by hand, whether files that were loaded then
are others now (`code_now`), without running them. What those import anew they import because they are others.
"""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from megaflow.durable.commits import Fingerprint
from megaflow.job.spec import AppFile, JobSpec

NAMED_MAX = 10  # files in a message
DIGEST_BYTES = 16


def digest(data: bytes) -> str:
    """Return what tells the bytes of a file from others."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def difference(here: Fingerprint | None, there: Fingerprint | None, common_only: bool = False) -> str | None:
    """Say how what a process runs ("here") differs from what the job runs; None if it does not, or cannot be told.

    `common_only`: only by files that both have loaded.

    >>> mine = Fingerprint("app.py:dataflow", (), {"app.py": "1", "more.py": "5"})
    >>> difference(mine, Fingerprint("app.py:dataflow", ("x",), {"app.py": "2"}))
    "app.py differs; more.py is loaded only here; the arguments are [], the job's are ['x']"
    """
    if here is None or there is None:
        return None
    parts = []
    if here.app != there.app:
        parts.append(f"the program is {here.app}, the job's is {there.app}")
    common = here.files.keys() & there.files.keys()
    parts += _named((name for name in common if here.files[name] != there.files[name]), "differs", "differ")
    if not common_only:
        parts += _named(there.files.keys() - common, "is loaded only by the job", "are loaded only by the job")
        parts += _named(here.files.keys() - common, "is loaded only here", "are loaded only here")
    if here.args != there.args:
        parts.append(f"the arguments are {list(here.args)}, the job's are {list(there.args)}")
    return "; ".join(parts) or None


def code_now(code: Fingerprint, spec: JobSpec) -> Fingerprint:
    """Return what would be run by now, as far as it can be told without: of the files that `code` has."""
    if not isinstance(spec.app, AppFile):
        return code
    folder, files = spec.app.folder, {}
    for name in code.files:
        try:
            files[name] = digest(Path(folder, name).read_bytes())
        except OSError:
            files[name] = ""  # gone: it differs
    return Fingerprint(spec.app.name, tuple(map(str, spec.args)), files)


def _named(files: Iterable[str], one: str, several: str) -> list[str]:
    names = sorted(files)
    if not names:
        return []
    more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
    return [f"{', '.join([*names[:NAMED_MAX], *more])} {one if len(names) == 1 else several}"]
