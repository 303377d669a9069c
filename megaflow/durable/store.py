"""The store: five operations on named, immutable files in a folder.

A file exists whole or not at all, whenever a process or the power fails.
 1. A file is written under another name, synced, and then *linked* to its own name. Linking fails if the name is taken;
    renaming would replace the existing file. This is the fence between two launchers that both believe that they own
    the store: one of them finds its next commit already written.
 2. The folder is synced before an operation returns: until then a file's name may be lost, even if its content is not.
 3. A disk that fails to sync a file may forget the data, and still report success for the next attempt. So no file is
    synced again: a caller that tries once more writes a new file, under another name, from memory.
 4. After a failed link or sync of the folder, it is unknown whether the file exists. For a segment this does not
    matter: it counts only once a commit names it, so it is given up. A commit is then *in doubt*: see `incarnation`.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from megaflow.errors import CommitInDoubt

ATTEMPTS_MAX: Final = 1000
"""Limit for files set aside under one name. Each was left by a process that ended; a take-over removes them."""


class Folder(Protocol):
    """The operating system's operations on the files of one folder. Each method raises OSError."""

    def create(self, name: str) -> int:
        """Create a file, for its owner only, and return its descriptor. Raises FileExistsError."""

    def write(self, file: int, data: bytes) -> None:
        """Append bytes to an open file."""

    def sync(self, file: int) -> None:
        """Block until the written data of an open file is on the disk."""

    def close(self, file: int) -> None:
        """Close a file."""

    def link(self, name: str, new: str) -> None:
        """Give a file another name. Raises FileExistsError."""

    def remove(self, name: str) -> None:
        """Remove a name. Raises FileNotFoundError."""

    def sync_names(self) -> None:
        """Block until added and removed names are on the disk."""

    def lengths(self) -> dict[str, int]:
        """Return the names and lengths of the files."""

    def length(self, name: str) -> int | None:
        """Return the length of a file; None if there is none."""

    def read(self, name: str, start: int, length: int | None) -> bytes:
        """Return bytes of a file, fewer at its end."""

    def close_folder(self) -> None:
        """Close the folder."""


class Store:
    """A place for a job's segments and commits: a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def put(self, name: str, parts: Sequence[bytes]) -> None:
        """Write a new file; it is durable when this returns. After an OSError, write it under another name.

        Costs two syncs.
        """
        aside = self._set_aside(name, parts)
        try:
            self._folder.link(aside, name)
        finally:
            self._drop(aside)
        self._folder.sync_names()

    def commit(self, name: str, content: bytes) -> bool:
        """Write a new file unless one has that name; return whether it is written, and durable. Costs two syncs.

        Raises OSError: nothing is written. CommitInDoubt: the file may exist and may be durable.
        """
        aside = self._set_aside(name, [content])
        try:
            self._folder.link(aside, name)
            self._drop(aside)
            self._folder.sync_names()
        except FileExistsError:
            self._drop(aside)
            return False
        except OSError as error:
            self._drop(aside)
            raise CommitInDoubt(f"it is unknown whether {name} was written: {error}") from error
        return True

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file from `start` on, fewer than requested at its end. Raises OSError."""
        return self._folder.read(name, start, length)

    def length(self, name: str) -> int | None:
        """Return the length of a file; None if there is none. Raises OSError."""
        return self._folder.length(name)

    def probe(self, name: str) -> None:
        """Write, link and remove a file of a new name, as `put` does. Raises OSError if this process may not."""
        self.put(name, [b"probe"])
        self.delete([name])

    def list(self) -> dict[str, int]:
        """Return the files and their lengths, including those that are set aside. Cost: linear. Raises OSError."""
        return self._folder.lengths()

    def close(self) -> None:
        """Close the folder."""
        self._folder.close_folder()

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; names that do not exist are no error. Costs one sync for all. Raises OSError.

        The removal is durable when this returns.
        """
        failed: OSError | None = None
        for name in names:
            try:
                self._folder.remove(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                failed = error
        self._folder.sync_names()
        if failed is not None:
            raise failed

    def _set_aside(self, name: str, parts: Sequence[bytes]) -> str:
        """Write and sync a file under another name; return that name."""
        aside, file = self._create_aside(name)
        try:
            try:
                for part in parts:
                    self._folder.write(file, part)
                self._folder.sync(file)
            finally:
                self._folder.close(file)
        except OSError:
            self._drop(aside)  # the disk may be full
            raise
        return aside

    def _create_aside(self, name: str) -> tuple[str, int]:
        for attempt in range(ATTEMPTS_MAX):
            aside = f"{name}.{attempt}.tmp"
            with contextlib.suppress(FileExistsError):
                return aside, self._folder.create(aside)
        raise FileExistsError(f"{name}: {ATTEMPTS_MAX} files of that name have already been set aside")

    def _drop(self, aside: str) -> None:
        """Remove a file that was set aside; if that fails, it stays and does no harm."""
        with contextlib.suppress(OSError):
            self._folder.remove(aside)
