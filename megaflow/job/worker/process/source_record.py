"""Record of the source that a process has loaded: the exact bytes of the app's file and of the modules beside it.

1. The record notes what was compiled, at the moment of the import. A later edit of a file changes nothing here. Cached
   bytecode may be older than its source, so it is not used for these modules. Each process compiles them anew, which
   takes some 10 ms per thousand lines.
2. A module is beside the app if its file is in the app's folder or below, and it is not part of a library: not of an
   environment within the folder, of Python itself, or of megaflow.
3. Python's own finder finds the modules; the record only notes them. For a module without source (an extension), it
   notes the file's bytes when the module is found. Code that a program loads in other ways is not noted, such as by
   `exec` or from data files.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from megaflow.job.program_code import digest

LIBRARIES = (os.path.dirname(os.__file__), str(Path(__file__).parents[3]))
INSTALLED = {"site-packages", "dist-packages"}  # folders of libraries, in any environment


class SourceRecord:
    """The loaded source of one app, and a finder for `sys.meta_path`. Any thread that imports writes it."""

    def __init__(self, folder: str) -> None:
        """`folder` is the absolute path of the app's folder."""
        self.digests: dict[str, str] = {}  # file, relative to the folder -> digest of the bytes that were loaded
        self._folder = os.path.join(folder, "")
        libraries = (os.path.join(path, "") for path in LIBRARIES)
        self._libraries = tuple(path for path in libraries if not self._folder.startswith(path))

    def install(self) -> None:
        """Note all imports of this process from now on."""
        finders = sys.meta_path
        paths = [finder is PathFinder or isinstance(finder, SourceRecord) for finder in finders]
        finders.insert(paths.index(True) if True in paths else len(finders), self)  # built-in ones come first

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as Python does; see `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            self.note_loads(spec)
        return spec

    def note_loads(self, spec: ModuleSpec) -> None:
        """Arrange that the load of a module is noted, if the module is beside the app."""
        file = spec.origin
        if file is None or not spec.has_location or not self._is_beside(file):
            return
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _NotingLoader(spec.loader.name, file, self)
        else:
            self.note(file, Path(file).read_bytes())

    def note(self, file: str, data: bytes) -> None:
        """Record the digest of the bytes of a file that were loaded."""
        self.digests[file.removeprefix(self._folder)] = digest(data)

    def _is_beside(self, file: str) -> bool:
        if not file.startswith(self._folder) or file.startswith(self._libraries):
            return False
        return INSTALLED.isdisjoint(file.removeprefix(self._folder).split(os.sep))


class _NotingLoader(SourceFileLoader):
    """Loader of a source file that notes the bytes it loads."""

    def __init__(self, name: str, file: str, record: SourceRecord) -> None:
        super().__init__(name, file)
        self._record = record

    def path_stats(self, path: Any) -> Any:
        """Raise OSError, so that the source is compiled: bytecode is neither read nor written."""
        raise OSError(f"the bytecode of {path} is not used")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        """Compile the source that was read, and note it."""
        self._record.note(self.path, bytes(data))
        code: CodeType = super().source_to_code(data, path, _optimize=_optimize)
        return code
