"""Files for executors that run worker processes, as one zip file: megaflow, its imports, the app and its neighbours.

    lib/    megaflow, all of it
    deps/   the packages that megaflow imports in a worker process, for executors with a bare Python
    app/    the app's file, the modules and packages beside it, and the files that --ship names
"""

import importlib.util
import os
import shutil
import threading
import zipfile
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from megaflow.errors import MegaflowError, UsageError, naming

DEPENDENCIES: Final = ("msgpack", "cloudpickle", "sortedcontainers")
INSTALLED: Final = frozenset(("site-packages", "dist-packages"))  # folders of installed packages
LEFT_OUT: Final = ("__pycache__", "node_modules", *INSTALLED)
BYTES_MAX: Final = 64 << 20  # of the files beside an app; more is probably a mistake
PACKAGE: Final = "__init__.py"
SERVING: Final = threading.Lock()  # jobs of one session may start at once, and Spark cannot unpack a file twice


def ship(folder: Path, app: str | None, more: Sequence[str]) -> tuple[str, str]:
    """Write the file into `folder`. Return its name for executors, and its path. Raises MegaflowError."""
    files = dict(_files("lib/megaflow", Path(__file__).parents[1]))
    for name in DEPENDENCIES:
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None, "megaflow has imported it"
        files.update(_files(f"deps/{name}", Path(spec.origin).parent))
    neighbours = {} if app is None else dict(_beside(Path(app)))
    for given in more:
        path = Path(given)
        if not path.exists():
            raise UsageError(f"--ship {given}: There is no such file or folder.")
        found = _files(f"app/{path.resolve().name}", path) if path.is_dir() else [(f"app/{path.name}", path)]
        neighbours.update(found)
    size = sum(path.stat().st_size for path in neighbours.values())
    if size > BYTES_MAX:
        raise UsageError(
            f"The modules beside the app and the files of --ship have {size >> 20} MiB, more than "
            f"{BYTES_MAX >> 20}. Put the app into its own folder, and put data where executors can read it."
        )
    files.update(neighbours)
    digest = blake2b(digest_size=8)
    with naming(MegaflowError, "Cannot pack the files for executors"):
        for name, path in sorted(files.items()):
            digest.update(name.encode() + b"\0" + path.read_bytes())
        archive = folder / f"megaflow-{digest.hexdigest()}.zip"
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
            for name, path in files.items():
                target.write(path, name)
    return archive.stem, str(archive)


def serve(context: Any, archive: str, path: str) -> None:
    """Make the file available to executors, also to later ones: Spark reads it whenever an executor asks.

    So it is copied to a place where it stays as long as the session lives, which may then have other jobs.
    """
    kept = Path(context._temp_dir, Path(path).name)
    with SERVING:
        if not kept.exists():
            shutil.copyfile(path, kept)
            context.addArchive(f"{kept}#{archive}")


def _beside(app: Path) -> Iterator[tuple[str, Path]]:
    """Yield the app's file, and the modules and packages beside it. For a package, yield its files."""
    if app.is_dir():
        yield from _files(f"app/{app.name}", app)
        return
    yield f"app/{app.name}", app
    for path in app.parent.iterdir():
        if path.suffix == ".py" and path.is_file():
            yield f"app/{path.name}", path
        elif path.is_dir() and (path / PACKAGE).is_file() and path.name not in LEFT_OUT:
            yield from _files(f"app/{path.name}", path)


def _files(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder, at any depth, with names below `name`."""
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in LEFT_OUT and not each.startswith(".")]
        for each in files:
            path = Path(place, each)
            if path.suffix != ".pyc":
                yield f"{name}/{path.relative_to(folder).as_posix()}", path
