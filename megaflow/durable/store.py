"""The store: five operations on named, immutable files, and how a folder carries them out.

A file is there whole or not at all, whenever a process or the power goes.
 1. It is written under another name, synced, and then *linked* to its own: linking fails if the name is taken, where
    renaming would replace what is there. This is the fence between two launchers that both believe that the store is
    theirs: one of them finds its next commit written.
 2. The folder is synced before an operation returns: until then a file's name may be lost though its content is not.
 3. A disk that fails to sync a file may forget what it was to write, and say yes to the next attempt. So nothing is
    synced again: whoever wants to try once more writes a new file, under another name, from memory.
 4. A failed link or sync of the folder leaves it open whether the file is there. For a segment that is no matter: it
    counts once a commit names it, so it is given up. A commit is then *in doubt*: see `incarnation`.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from megaflow.errors import CommitInDoubt

ATTEMPTS_MAX: Final = 1000
"""Files set aside under one name: each was left by a process that ended, and goes when the store is taken over."""


class Store(Protocol):
    """Where a job's segments and commits are: in a folder, say."""

    def put(self, name: str, parts: Sequence[bytes]) -> None:
        """Write a new file; durable when this returns. Raises OSError: it is not, put it under another name."""

    def commit(self, name: str, content: bytes) -> bool:
        """Write a new file unless there is one of that name; return whether it is written, and durable.

        Raises OSError: nothing is written. CommitInDoubt: it may be there and may be durable.
        """

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file from a place on; fewer than asked for at its end. Raises OSError."""

    def list(self) -> dict[str, int]:
        """Return the files and their lengths; those that are set aside, too. Raises OSError."""

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already are no error. Durable when this returns. Raises OSError."""

    def close(self) -> None:
        """Let go of what is open."""


class Folder(Protocol):
    """What the operating system does with the files of one folder. Each method raises OSError."""

    def create(self, name: str) -> int:
        """Make a new file, for its owner only, and return its descriptor; raises FileExistsError."""

    def write(self, file: int, data: bytes) -> None:
        """Add bytes to an open file."""

    def sync(self, file: int) -> None:
        """Wait until what was written to an open file is on the disk."""

    def close(self, file: int) -> None:
        """Close a file."""

    def link(self, name: str, new: str) -> None:
        """Give a file another name; raises FileExistsError."""

    def remove(self, name: str) -> None:
        """Take a name away; raises FileNotFoundError."""

    def sync_names(self) -> None:
        """Wait until the names that were given and taken are on the disk."""

    def lengths(self) -> dict[str, int]:
        """Return the names, and how long their files are."""

    def read(self, name: str, start: int, length: int | None) -> bytes:
        """Return bytes of a file; fewer at its end."""

    def close_folder(self) -> None:
        """Let go of the folder."""


class FolderStore:
    """A store in a folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def put(self, name: str, parts: Sequence[bytes]) -> None:
        """Write a new file. Costs two syncs."""
        aside = self._set_aside(name, parts)
        try:
            self._folder.link(aside, name)
        finally:
            self._drop(aside)
        self._folder.sync_names()

    def commit(self, name: str, content: bytes) -> bool:
        """Write a new file unless there is one of that name. Costs two syncs."""
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
        """Return bytes of a file."""
        return self._folder.read(name, start, length)

    def list(self) -> dict[str, int]:
        """Return the files and their lengths. Cost: linear in them."""
        return self._folder.lengths()

    def close(self) -> None:
        """Let go of the folder."""
        self._folder.close_folder()

    def delete(self, names: Iterable[str]) -> None:
        """Remove files. Costs one sync for all."""
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
        """Write and sync a file of another name, which is returned."""
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
        """Remove what was set aside; if that fails it stays, and no harm is done."""
        with contextlib.suppress(OSError):
            self._folder.remove(aside)
