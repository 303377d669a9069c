"""`--follow`: growing and new files as a source. Its partitions are files, identified by their inodes.

1. A file is its inode: a renamed file stays the same partition. So the worker that has a rotated file open reads it to
   its end, and the new file with its name is another partition, read from its beginning. If a pattern has two names for
   one inode, as before and after a rotation, the file is read once.
2. A position is the beginning of a line, with a digest of the SAMPLE_BYTES before it. The reader compares the digest
   when it opens a file at a position, and before it reads new bytes. If the file has become shorter or has other bytes
   there, it was truncated, or it was removed and its inode belongs to a new file. Then the reader begins again and
   reads the whole file.
3. A line is read when its end is there. The last line of a removed file will get no end, so it is read as it is.
4. A file without any name is closed DELETED_SECONDS after its last byte was read, and its partition is `Gone`. So
   neither readers nor checkpoints have more to do, however many files were removed. That is safe: if an open file has
   no links, no name will ever lead to it again. Its inode may be reused. Discovery then names the inode of a new file,
   which is read from its beginning, even if it has the same bytes. A file that is merely not found keeps its position,
   because its folder may be away for a while, as with a mount. If the partition of a removed file changes hands before
   the file is let go, its position says that it was removed, so another reader does not look for it. If no process
   finds a file of which nothing is known, its partition is also `Gone`: a file that comes back is read from its
   beginning.
5. A file is opened by looking for its inode among the files of the pattern. If it was renamed while no worker had it
   open, it is found by rule 2 in the folder where it was, or in that of its links' target, now or when it was opened. A
   file that is rotated twice while no job runs, to names that the pattern does not match, is not found. So a pattern
   should match these names.
6. Nothing announces a change: each file is checked every POLL_SECONDS, the folders every FIND_SECONDS.
7. A program that goes on to write a truncated file at its old place leaves NULs before the next line, as many as the
   file had bytes. They are left out and reported once other bytes and the line's end follow. Until then, the reader
   waits before them. It does not keep them in memory. NULs elsewhere are text. But NULs at the end of a file are space
   that a program may have reserved, as programs do that map a file into memory, and fills from the front. They are not
   read, and do not count as part of the file (`WrittenPart`). A reader reads only bytes before one that it has seen,
   so it never reads a line that is half copied into the map.
8. A reader that has never found its file says `NotHere`, because another process may find it. Only if no process does
   are the file's unread bytes lost. A reader that finds its file but cannot open it also says `NotHere`. The right may
   be missing, or the handle stale, only in this process. Nothing is lost, because the reader keeps its position.
9. If descriptors are few, the file that has been quiet for longest is closed (`file_descriptors`). It is compared with
   its last state as often as an open file, by its path and inode, and opened again if it has changed. If it is renamed,
   rule 5 finds it. If it is not found for DELETED_SECONDS, it counts as removed by rule 4. So lines that are written to
   a closed file are lost if it is removed before they are seen. A file that gets its inode meanwhile and has the same
   bytes before the position is taken for it.
10. A position also has the size of the file when it was last looked at, without reserved space, and a digest of its
   first SAMPLE_BYTES, or of fewer if fewer are written. If the file is gone, truncated or another one when a reader
   opens it there, the rest is read from its compressed copy (`rotated_copy`). If there is no copy, the unread bytes are
   lost, and the loss is reported. If no process could open the file, the position has the path and the size, but no
   digest, so no copy can be recognized.
11. Two volumes may use the same inode numbers; tmpfs counts from 2 on. If another volume is mounted over the folder of
   an open file, a file there may have the number of the open one. So a reader that finds nothing new looks at the
   device of the folder every FIND_SECONDS. If that has changed, it looks for such a file. If there is one, it lets the
   old file go as by rule 4, and reports that. But it keeps the position, as it may be the same file, mounted again. If
   two files of a pattern have the same number at once, the job ends.
12. A process with file systems of its own may have another file under the same inode, even at the same path. So a
   reader compares the file that it finds first with the position. If nothing was read, it compares path, size and
   samples with those that the process that looks for files has seen when the file was new (`FirstSight`). An empty file
   has only its time of modification, so it must still be empty. If the file differs, the reader says `NotHere`, and
   another process reads it. The file may also have been renamed, truncated or written meanwhile. Only the process that
   looks for files can tell, so it compares nothing: its file is the right one. There is no sight of the first files of
   an attempt, nor of a file whose inode belonged to a known one: `inputs_check` compares known files at a join.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from megaflow.connect.source_protocol import Found, Gone, Idle, NotHere
from megaflow.control.wording import NULS_LEFT_OUT
from megaflow.errors import SourceError
from megaflow.job.files.file_descriptors import FileDescriptors
from megaflow.job.files.file_position import SAMPLE_BYTES, FilePosition, Names, Position, digest, text_of
from megaflow.job.files.growing_file import FIND_SECONDS, POLL_SECONDS, GrowingFile
from megaflow.job.formats.raw_file import HEAD_BYTES, NUL_BLOCK_BYTES, nuls_at_start, nuls_from, nuls_text, reading
from megaflow.job.formats.record_format import LINES, Count, OpenedFile, RecordBlock, RecordFormat, RecordParser
from megaflow.job.formats.text_encoding import NotText, ReplacedBytes
from megaflow.job.formats.text_lines import BLOCK_BYTES, LINE_END, Text, before_nuls, lines_before

ONLY_FOLLOWED: Final = "lines"
"""The source name of followed files, if they are the only lines."""


class FollowedFiles:
    """Present and future files of a pattern: a `megaflow.connect.Source`."""

    describe_position = staticmethod(text_of)  # for errors and `control status`

    def __init__(
        self, pattern: str, errors: str = "strict", format: RecordFormat = LINES, *, input: str = "",
        encoding: str = "", replaced: ReplacedBytes | None = None,
        tell: Callable[[str, str], None] = lambda about, text: None, lose: Callable[[str, int], None] | None = None,
        now: Callable[[], float] = time.monotonic, count: Count = lambda kind, count, text: None,
        descriptors: FileDescriptors | None = None, decides: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        """`pattern` is absolute. `encoding` is not one that is decoded as a stream. `tell` reports to the user.

        `lose` reports how many bytes of a path are gone and were not read. If it is None, `tell` does. `now` returns
        seconds of a monotonic clock. `count` counts the NULs that are left out. `descriptors` are shared by all
        followed files of the process. `decides` returns whether this process looks for files, see rule 12.
        """
        self.pattern = pattern
        self.input, self.format = input, format
        self.errors, self.encoding, self.replaced = errors, encoding, replaced
        self.tell, self.now, self.count = tell, now, count
        self.lose = self._tell_of_loss if lose is None else lose
        self.descriptors = FileDescriptors() if descriptors is None else descriptors
        self.names = Names(pattern, tell)
        self.describe_partition, self.first_sights, self.decides = self.names.last, self.names.first_sights, decides

    def discover(self) -> Found:
        """Return the inodes of the existing files, in the order of their paths."""
        return Found(self.names.present(), FIND_SECONDS, complete=True)

    def open(self, partition: int, position: Position | None) -> "FollowedFile":
        """Return the reader of a file. Its first read finds and opens the file."""
        return FollowedFile(self, partition, position)

    def _tell_of_loss(self, path: str, size: int) -> None:
        self.tell(f"loss of {size} bytes of {path}", f"{size} bytes of {path!r} disappeared before they were read.")


class FollowedFile(GrowingFile):
    """The reader of one file, on one worker."""

    def __init__(self, source: FollowedFiles, inode: int, position: Position | None) -> None:
        super().__init__(source, inode, position)
        self._source = source
        self._said = self._state if self._head else None  # reported, of a file that was open
        self._is_found = False  # this reader has found the file
        self._stays = False  # no process can open it
        self._buffer = b""  # bytes from `_offset + _nuls` on, read and not yet returned
        self._nuls = 0  # NULs at the beginning of a line whose end is not there yet
        self._start = 0  # NULs at the beginning of the file that were left out
        self._block: RecordBlock | None = None  # parsed from the first of these bytes
        self._text: Text | None = None  # None: the file is empty so far, or not open
        self._parser: RecordParser | None = None  # None: the file has no complete head yet, or is not open

    @property
    def _state(self) -> tuple[int, int | None, bool]:
        """The parts of the position that change."""
        return self._offset, self._size, self._is_removed

    def read(self, limit: int) -> tuple[list[Any], Position] | Idle | NotHere | Gone:
        """Return records. Raises SourceError if the file cannot be read or parsed."""
        try:
            return self._read(limit)
        except SourceError as error:
            if not self._held.refuse(self.path, error):
                raise
            self.close()
            if self._is_found:
                self._digest = digest(self._tail)
            self._moved, self._buffer, self._block = True, b"", None
            return self._not_here()

    def _read(self, limit: int) -> tuple[list[Any], Position] | Idle | NotHere | Gone:
        if not self._is_ready():
            if self._held.has_to_wait(self._source.pattern, self._source.now(), self._source.tell):
                return Idle(after_seconds=POLL_SECONDS, is_held=True)
            if self._held.refusal or not self._is_found:
                return self._not_here()
            if not self._held.is_quiet:
                self._lose()
            if self._is_let_go:
                return Gone()
            return self._news() or Idle(after_seconds=POLL_SECONDS if self._held.is_quiet else FIND_SECONDS)
        self._is_found = True
        if self._is_compressed:
            return self._end_of_compressed() or self._news() or self._rest()
        if self._said is None and self._held.file >= 0:  # a checkpoint must know the file before its first line is read
            return [], self._position()
        try:
            block = self._block or self._parsed(is_end=False) or self._parsed(self._refill())
        except NotText as error:
            line = self.line_name(error.position, 0)
            raise error.explained(line, self._source.encoding, self._source.pattern, self._source.input) from None
        if block is None:
            return Gone() if self._is_let_go else self._news() or self._rest()
        start = self._offset
        part, self._block = block.split(limit)
        if part.faults:  # an empty batch counts as taken, so a fault is counted once
            self._source.format.note(part.faults, lambda line: self.line_name(start, line))
        if self._text is not None and self._text.has_replaced and self._source.replaced is not None:
            if count := self._text.replaced_in(part.data):
                self._source.replaced.note(self._source.input, count, self._text.name)
        self._pass(len(part.data))
        return part.records, self._position()

    def _end_of_compressed(self) -> Gone | None:
        """Close a compressed file if it is removed; nothing of it is read."""
        with reading(self.path):
            if os.fstat(self._held.file).st_nlink:
                return None
        self.close()
        return Gone()

    def _not_here(self) -> tuple[list[Any], Position] | NotHere | Idle | Gone:
        """Return why the file is not open. If no process finds it, report that its bytes are lost; see rule 4."""
        is_refused = bool(self._held.refusal)
        size = self._held.refused_size if is_refused else self._size
        if is_refused and self._size is None and size is not None:  # a checkpoint must know the file, see rule 10
            self.path, self._size = self._held.refused_path, size
            return [], FilePosition(self.path, self._offset, self._digest, size, self._head).as_tuple()
        unread = None if size is None else max(0, size - self._offset)
        if self._stays and unread and not is_refused:
            self._gone += unread
            self._lose()
            return [], self._position()
        if is_refused and unread == 0:
            return Idle(after_seconds=FIND_SECONDS)
        is_unknown = self._stays and not (self._offset or self._head)
        if (self._is_removed or is_unknown) and not (is_refused or unread or self._gone or self._unlike):
            return Gone()
        why = self._held.refusal or self._unlike or self._source.names.absence(self.inode, self.path)
        differs = bool(self._unlike) and not is_refused
        return NotHere(FIND_SECONDS, why, None if unread is None else unread + self._gone, is_refused, differs)

    def _news(self) -> tuple[list[Any], Position] | None:
        """Return an empty batch if the position is new, or if more can be read at once."""
        if self._copy is not None:
            if self._copy.has_ended and not self._buffer:
                self._digest, self._size = digest(self._tail), self._offset
                self._text = self._parser = None
                self.close()
        elif self._said == self._state:
            return None
        return [], self._position()

    def _position(self) -> Position:
        self._said = self._state
        tail = digest(self._tail) if self._is_open else self._digest
        seen = self.path, self._offset, tail, self._size, self._head, self.target, self._is_removed
        return FilePosition(*seen).as_tuple()

    def _rest(self) -> Idle:
        """Wait for something new. If everything was read, the file may be closed meanwhile."""
        if not self._is_open:
            return Idle(after_seconds=FIND_SECONDS)
        if self._copy is None and self._let_go_at is None:
            has_unfinished = bool(self._buffer or self._nuls or self._written.has_space)
            self._held.rest(self._offset, has_unfinished, self._is_compressed, self._source.now())
        return Idle(after_seconds=POLL_SECONDS)

    def settled(self, position: Position | None) -> Position | None:
        """Return a position for another reader, with the note that the file is removed if it has no name now."""
        if position is None or not (self._held.file >= 0 or self._held.take()):
            return position
        with reading(self.path):
            is_removed = not os.fstat(self._held.file).st_nlink
        return replace(FilePosition.of(position), is_removed=True).as_tuple() if is_removed else position

    def stay(self) -> None:
        """Note that no process can open the file: it is waited for here. Report that unless its loss is reported."""
        self._stays = True
        if self._held.refusal or not self.path:
            why = self._held.refusal or self._unlike or self._source.names.absence(self.inode, self.path)
            what = f"{why}: no process of the job can read it"
            later = "this process can open it later" if self._held.refusal else "it comes back"
            self._source.tell(f"not read {self.inode}", f"{what}. It is read if {later}.")

    def lines_before(self, position: int) -> int:
        """Return the number of lines before the line that begins at `position`. Costs reading them."""
        return lines_before(self.bytes_at, position)

    def line_name(self, position: int, line: int) -> str:
        """Return the name of the line so many lines after one that starts at a position. Costs reading up to it."""
        return f"line {self.lines_before(position) + line + 1} of {self.path!r}"

    def _parsed(self, is_end: bool) -> RecordBlock | None:
        """Return the block of records at the beginning of the buffer. None if there is none.

        `is_end`: no bytes will follow. An incomplete head is then dropped.
        """
        source = self._source
        if self._buffer.startswith(b"\0") or self._nuls:
            self._leave_out_nuls(is_end)
        if self._nuls:
            return None
        if self._text is None and self._is_open and self._buffer:
            self._text = self._begin_text()
        if self._text is not None and self._parser is None and self._is_open:
            self._parser = self._opened(self._text, is_end)
        if self._parser is None:
            if is_end and self._buffer:
                source.lose(self.path, len(self._buffer))
                self._pass(len(self._buffer))
            return None
        if self._offset < self._start + self._parser.body:
            self._pass(self._start + self._parser.body - self._offset)
        before = before_nuls(self._buffer)
        block = None if before is None else self._parser.cut(before, self._offset, False)
        block = block or self._parser.cut(self._buffer, self._offset, is_end)
        return None if block is None else source.format.settled(block, lambda line: self.line_name(self._offset, line))

    def _leave_out_nuls(self, is_end: bool) -> None:
        """Leave out NULs at the beginning of the buffer, if its first line has its end; otherwise keep their number."""
        bare = self._buffer.lstrip(b"\0")
        self._nuls, self._buffer = self._nuls + len(self._buffer) - len(bare), bare
        if not (LINE_END.search(bare) or is_end):
            return
        nuls, self._nuls = self._nuls, 0
        self._offset += nuls
        self._tail = self._tail_at(self._offset)
        if bare:  # otherwise it is reserved space at the end of a copy
            self._source.count(NULS_LEFT_OUT, nuls, lambda: nuls_text(self.path, nuls, self._offset))

    def _begin_text(self) -> Text | None:
        """Return the decoder of the file. None if it is compressed. Raises SourceError if it is not text."""
        self._start = nuls_at_start(self.bytes_at, self._offset)
        head, source = self.written_at(self._start, HEAD_BYTES), self._source
        text = Text.growing(head, self.path, source.errors, source.encoding, source.tell)
        self._is_compressed = text is None
        return text

    def _opened(self, text: Text, is_end: bool) -> RecordParser | None:
        """Return the parser of the file. None if it needs more of the file, or if the file has ended without a head."""

        def beginning(size: int) -> tuple[bytes, bool]:
            data = self.written_at(self._start, size)
            return data, is_end and len(data) < size

        try:
            return self._source.format.open(text, OpenedFile(self.path, beginning, self.lines_before))
        except SourceError as error:
            if isinstance(error, NotText) or not is_end:
                raise
            return None

    def _pass(self, size: int) -> None:
        """Move the position so many bytes forward."""
        data = self._buffer[:size] if size <= len(self._buffer) else self.bytes_at(self._offset, size)
        self._buffer, self._offset = self._buffer[size:], self._offset + size
        self._tail = (self._tail + data)[-SAMPLE_BYTES:]

    def _refill(self) -> bool:
        """Read more. Return whether nothing will follow the bytes in the buffer."""
        if self._copy is not None:
            self._buffer += self._copy.read()
            return self._copy.has_ended
        with reading(self.path):
            status = os.fstat(self._held.file)
        before = self.bytes_at(self._offset - len(self._tail), len(self._tail))
        if status.st_size < self._offset + self._nuls + len(self._buffer) or before != self._tail:
            self._begin_anew()
        self._note_size(status.st_size)
        had, format = len(self._buffer), self._source.format
        if had >= format.bytes_max:
            raise format.too_long(repr(self.path), f"byte {self._offset}")
        size = min(max(BLOCK_BYTES, 2 * had), format.bytes_max)
        self._buffer = self.written_at(self._offset + self._nuls, size)
        if self._nuls and self.bytes_at(self._offset, 1) != b"\0":  # lines have taken their place
            self._nuls, self._buffer = 0, self.written_at(self._offset, size)
        if self._buffer and not self._buffer.strip(b"\0"):
            self._nuls += nuls_from(self.bytes_at, self._offset + self._nuls)
            self._buffer = self.written_at(self._offset + self._nuls, NUL_BLOCK_BYTES)
        if len(self._buffer) > had:
            self._held.goes_on()
        self._is_removed = not status.st_nlink
        if len(self._buffer) > had or not (self._is_removed or self._is_replaced(status.st_dev)):
            self._let_go_at = None
            return False
        return self._let_go(bool(self._buffer), self._is_removed)

    def _begin_anew(self) -> None:
        super()._begin_anew()
        self._buffer, self._nuls, self._start = b"", 0, 0
        self._block = self._parser = self._text = None
