"""Code of a program, as a fingerprint: how two fingerprints differ, and whether files have changed since loading.

Processes exchange their fingerprints (see `megaflow.job.worker.process.fingerprint`). The commits of a durable job have
the coordinator's. Before a next attempt or a resume by hand, the launcher uses it to find out whether loaded files have
changed (`code_now`), without running them. A newly imported file needs no check: it can only be imported because
one of these files has changed.
"""

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

from megaflow.durable.commits import Fingerprint
from megaflow.job.spec import AppFile, JobSpec

NAMED_MAX = 10  # files named in a message
DIGEST_BYTES = 16


def digest(data: bytes) -> str:
    """Return a digest that distinguishes the bytes of a file from others."""
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def digest_of(file: Path) -> str:
    """Return the digest of a file's bytes. "" if it cannot be read, so that it differs from each file."""
    try:
        return digest(file.read_bytes())
    except OSError:
        return ""


def difference(here: Fingerprint | None, there: Fingerprint | None, common_only: bool = False) -> str | None:
    """Return how the code of a process ("here") differs from the job's. None if it does not, or if this is unknown.

    `common_only`: compare only files that both have loaded.

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
    """Return the fingerprint that a start now would have, as far as the files of `code` show it without running them.
    """
    if not isinstance(spec.app, AppFile):
        return code
    files = {name: digest_of(Path(spec.app.folder, name)) for name in code.files}
    return Fingerprint(spec.app.name, tuple(map(str, spec.args)), files)


def _named(files: Iterable[str], one: str, several: str) -> list[str]:
    names = sorted(files)
    if not names:
        return []
    more = [f"{len(names) - NAMED_MAX} more"] if len(names) > NAMED_MAX else []
    return [f"{', '.join([*names[:NAMED_MAX], *more])} {one if len(names) == 1 else several}"]
