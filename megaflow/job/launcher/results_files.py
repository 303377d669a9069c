"""The files of a log of results, in a folder of this machine."""

import os
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class ResultsFiles:
    """Files of one folder, which stay open while they are used. Each method raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}  # name -> descriptor

    def sizes(self) -> dict[str, int]:
        """Return the files and their lengths in bytes."""
        return {entry.name: entry.stat().st_size for entry in os.scandir(self._folder) if entry.is_file()}

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file, which is made if it is not there."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._file(name), left) :]

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes of a file, fewer at its end."""
        return os.pread(self._file(name), length, offset)

    def cut(self, name: str, length: int) -> None:
        """Shorten a file."""
        os.ftruncate(self._file(name), length)

    def remove(self, name: str) -> None:
        """Remove a file; durably so when this returns."""
        if (file := self._open.pop(name, None)) is not None:
            os.close(file)
        (self._folder / name).unlink()
        self._sync_names()

    def sync(self, names: set[str]) -> None:
        """Have what these files have, and that they are there, survive a loss of power."""
        for name in names:
            os.fsync(self._file(name))
        self._sync_names()

    def close(self) -> None:
        """Close all."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _file(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self._folder / name, _FLAGS, 0o600)
        return self._open[name]

    def _sync_names(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
