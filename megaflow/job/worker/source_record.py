"""Which source a process has loaded: of the app's file and of the modules beside it, by the very bytes that were run.

1. What is noted is what was compiled, at the moment of the import: a file that is edited later changes nothing here,
   and a cached bytecode file, which may be older than its source, is not used for these modules. They are compiled
   anew in each process, which takes some 10 ms for each thousand lines.
2. Beside the app are modules whose file lies in its folder or below, but no libraries: not what was installed there, in
   an environment within the folder say, and neither Python itself nor megaflow.
3. Modules are found as Python finds them, only that those are noted. Of one that is no source (an extension) the file's
   bytes are noted when it is found. What a program loads by other means, `exec` or data files, nobody notes.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from megaflow.job.program_code import digest

LIBRARIES = (os.path.dirname(os.__file__), str(Path(__file__).parents[2]))
INSTALLED = {"site-packages", "dist-packages"}  # folders of libraries, in whatever environment


class SourceRecord:
    """What was loaded of one app; a finder for `sys.meta_path`. Any thread that imports writes it."""

    def __init__(self, folder: str) -> None:
        """`folder` is the app's, absolute."""
        self.digests: dict[str, str] = {}  # file, relative to the folder -> digest of its bytes as they were loaded
        self._folder = os.path.join(folder, "")
        libraries = (os.path.join(path, "") for path in LIBRARIES)
        self._libraries = tuple(path for path in libraries if not self._folder.startswith(path))

    def install(self) -> None:
        """Note from now on what this process imports."""
        finders = sys.meta_path
        paths = [finder is PathFinder or isinstance(finder, SourceRecord) for finder in finders]
        finders.insert(paths.index(True) if True in paths else len(finders), self)  # built-in modules are found before

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module as Python does; see `importlib.abc.MetaPathFinder`."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            self.note_loads(spec)
        return spec

    def note_loads(self, spec: ModuleSpec) -> None:
        """Have what a module is loaded from noted, if that is beside the app."""
        file = spec.origin
        if file is None or not spec.has_location or not self._is_beside(file):
            return
        if type(spec.loader) is SourceFileLoader:
            spec.loader = _NotingLoader(spec.loader.name, file, self)
        else:
            self.note(file, Path(file).read_bytes())

    def note(self, file: str, data: bytes) -> None:
        """Note that these bytes of a file are run."""
        self.digests[file.removeprefix(self._folder)] = digest(data)

    def _is_beside(self, file: str) -> bool:
        if not file.startswith(self._folder) or file.startswith(self._libraries):
            return False
        return INSTALLED.isdisjoint(file.removeprefix(self._folder).split(os.sep))


class _NotingLoader(SourceFileLoader):
    """Loads a source file, and notes of which bytes."""

    def __init__(self, name: str, file: str, record: SourceRecord) -> None:
        super().__init__(name, file)
        self._record = record

    def path_stats(self, path: Any) -> Any:
        """Refuse, which has the source compiled: bytecode is neither read nor written."""
        raise OSError(f"the bytecode of {path} is not used")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        """Compile what was read, and note it."""
        self._record.note(self.path, bytes(data))
        code: CodeType = super().source_to_code(data, path, _optimize=_optimize)
        return code
