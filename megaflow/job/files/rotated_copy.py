"""Compressed copy of a log, which has the rest of a log that was removed before it was read.

Programs that rotate logs compress them and remove the originals. If that happens while no job runs, only the copy has
the rest of a file.

1. A copy is a compressed file in the folder of the original, or in that of a link's target. Its text begins with the
   bytes that were seen: the first SAMPLE_BYTES match, and so do the last SAMPLE_BYTES before the place up to which the
   original was read.
2. Of several such copies, the first one whose name begins with that of the original is taken, or else the first of all.
3. A copy is read to its end. A last line without an end is whole, because compressed files do not grow.
4. A compressed file may be the copy of a log that the job never saw, begun and rotated while no job ran. Programs that
   compress a log keep its modification time. So such a file is younger than the last look for files before the last
   checkpoint, and its text is not that of any file in the checkpoint.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence

from megaflow.errors import SourceError
from megaflow.job.files.file_position import SAMPLE_BYTES, FilePosition, digest, matching, targets
from megaflow.job.formats.compression import CompressedText
from megaflow.job.formats.file_formats import compression_of
from megaflow.job.formats.raw_file import read_head


class RotatedCopy:
    """Text of a compressed file from a place on. The caller must close it."""

    def __init__(self, path: str, compression: str) -> None:
        """Open the file. Raises OSError; SourceError if this Python cannot read the format."""
        self.path = path
        self.has_ended = False  # everything was read
        self._compression = compression
        self._beginning: RotatedCopy | None = None  # second reader, for `bytes_at`
        self._passed = 0  # bytes of the text that `bytes_at` has dropped
        self._held = b""  # bytes that follow them
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pieces = CompressedText(path, self._file, os.fstat(self._file).st_size, compression)
        except SourceError:
            os.close(self._file)
            raise
        self._rest = b""  # decompressed, but not yet read

    def matches(self, position: FilePosition) -> bool:
        """Return whether the text begins with the bytes that were seen. If so, `read` continues after the bytes read.

        Raises SourceError.
        """
        head, tail, passed = b"", b"", 0
        wanted = min(position.size or 0, SAMPLE_BYTES)
        while passed < position.offset or len(head) < wanted:
            piece = self._pieces.next_piece()
            if not piece:
                return False
            head = (head + piece)[:wanted]
            if len(head) == wanted and digest(head) != position.head:
                return False
            self._rest += piece[max(0, position.offset - passed) :]
            if passed < position.offset:
                tail = (tail + piece[: position.offset - passed])[-SAMPLE_BYTES:]
            passed += len(piece)
        return position.offset == 0 or digest(tail) == position.tail

    def read(self) -> bytes:
        """Return more text, b"" at its end. Raises SourceError."""
        data, self._rest = self._rest, b""
        data = data or self._pieces.next_piece()
        self.has_ended = not data
        return data

    def bytes_at(self, start: int, size: int) -> bytes:
        """Return some bytes of the text, independently of `read`. Costs reading up to them, unless calls go forward."""
        if self._beginning is None or start < self._beginning._passed:
            if self._beginning is not None:
                self._beginning.close()
            self._beginning = RotatedCopy(self.path, self._compression)
        reader = self._beginning
        while reader._passed + len(reader._held) < start + size and (piece := reader.read()):
            held = reader._held + piece
            dropped = min(len(held), max(0, start - reader._passed))
            reader._passed, reader._held = reader._passed + dropped, held[dropped:]
        return reader._held[max(0, start - reader._passed) :][:size]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
        if self._beginning is not None:
            self._beginning.close()


def find_copy(position: FilePosition) -> RotatedCopy | None:
    """Return the copy of a missing file, ready to be read from the position on. None if there is none.

    Raises SourceError if this Python cannot read the format of a namesake, which is probably the copy. Costs reading
    the beginning of each file in the folder, and decompressing the text before the position.
    """
    if not position.size:
        return None  # none of its text is known
    for path, compression in compressed_beside(position.path, position.target):
        try:
            copy = RotatedCopy(path, compression)
        except OSError:
            continue
        except SourceError:
            names = map(os.path.basename, targets(position.path, position.target))
            if any(os.path.basename(path).startswith(name) for name in names):
                raise
            continue
        with contextlib.suppress(SourceError):  # it is damaged, or being written
            if copy.matches(position):
                return copy
        copy.close()
    return None


def unseen_copies(pattern: str, seen: Sequence[FilePosition], since: float) -> list[str]:
    """Return the compressed files of a pattern that are younger than `since` and not copies of a file that was seen.

    `since` is in wall-clock seconds. Costs decompressing each younger file up to the positions that were seen.
    """
    known = [position for position in seen if position.size or position.offset]
    unseen = []
    for path in matching(pattern, compressed=True):
        try:
            if os.stat(path).st_mtime <= since:
                continue
            compression = compression_of(read_head(path))
        except OSError:  # it was removed
            continue
        if compression and not any(_may_copy(path, compression, position) for position in (FilePosition(), *known)):
            unseen.append(path)
    return unseen


def _may_copy(path: str, compression: str, position: FilePosition) -> bool:
    """Return whether a file may be a copy of another, seen up to a position. True if it cannot be read."""
    try:
        copy = RotatedCopy(path, compression)
    except (OSError, SourceError):
        return True
    try:
        return copy.matches(position) if position.path else not copy.read()  # an empty log has no lines
    except SourceError:
        return True
    finally:
        copy.close()


def compressed_beside(path: str, before: str) -> Iterator[tuple[str, str]]:
    """Yield the compressed files in the folder of a path, with their compression: namesakes first, sorted by name.

    If the path is a link, those in the folder of the link's target follow, now and `before`: see `targets`.
    """
    others: list[str] = []
    for target in targets(path, before):
        folder, name = os.path.split(target)
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(folder))
            for is_namesake in (True, False):
                others += (os.path.join(folder, each) for each in names if each.startswith(name) == is_namesake)
    for other in others:
        try:
            if not os.path.isfile(other):
                continue
            compression = compression_of(read_head(other))
        except OSError:
            continue
        if compression:
            yield other, compression
