"""Reads one split of a file, block by block.

1. If the job has a store, the reader compares the print of the part that was read with the file that it opens. For each
   position that it reports, it takes a new print from the open file: see `megaflow.job.formats.raw_file`.
2. The last line of a split may end after the split. It does so in the middle of a file, and also at the end of a file
   that grows between the plan and the opening. So the reader reports the end that it has reached (`stopped`). A later
   run continues there.
3. A reader reads no further than its file reached when it was opened. If the file ends in the middle of a record then,
   it does so for this run, even if more bytes follow meanwhile.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from megaflow.control.messages import Split, SplitEnd
from megaflow.errors import SourceError
from megaflow.job.files.splits import no_size
from megaflow.job.formats.raw_file import print_of_file, reading
from megaflow.job.formats.record_format import LINES, Fault, OpenedFile, RecordBlock, RecordFormat, RecordParser
from megaflow.job.formats.text_encoding import NotText, ReplacedBytes
from megaflow.job.formats.text_lines import (
    BLOCK_BYTES,
    LINE_END,
    Text,
    batches_of,
    line_start,
)


class SplitReader:
    """Reads one split, block by block (`read`) or batch by batch (`next_batch`).

    The first call of either opens the file; `close()` closes it. Invariant: once it is open, `position` is the start of
    a record, or the end.
    """

    can_leave_open = True
    """Whether a later run can read on in the middle of the file."""

    def __init__(
        self, split: Split, errors: str = "strict", block_bytes: int = BLOCK_BYTES, format: RecordFormat = LINES,
        replaced: ReplacedBytes | None = None,
    ) -> None:  # fmt: skip
        """`replaced` counts the bytes that are not text, if `errors` is "replace"."""
        self.split = split
        self.position = split.start
        self.end = split.end
        self.stopped: SplitEnd | None = None  # once everything is read; None: the job has no store
        self.open_from: int | None = None  # byte of a record in which the file ends, which is left to a later run
        self._size = 0  # of the file when it was opened
        self._open_fault: tuple[Fault, int] | None = None  # of that record, and the start of its block
        self._file = -1
        self._encoding = split.encoding
        self._text = Text(repr(split.path), errors, split.encoding)
        self._replaced = replaced
        self._counted = 0  # bytes of the block whose replaced bytes were counted
        self._block_bytes = block_bytes
        self._format = format
        self._parser: RecordParser
        self._block = RecordBlock([], b"")  # the block read last
        self._batches: Iterator[list[Any]] = iter(())  # of the block, not yet returned
        self._handed_out = 0  # number of the block's records that were returned
        self._noted = 0  # number of the block's faults that were counted
        self._lines_noted = 0  # how many more lines than records of the block were counted
        self._left_out = 0  # such lines that `take_left_out` has not returned yet

    def _open(self) -> None:
        split = self.split
        with reading(split.path):
            self._file = os.open(split.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(self._file)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(f"Cannot read {split.path!r}: it is not a regular file.")
            if self._print(split.start) != split.print:
                raise SourceError(
                    f"{split.path!r} is another file now, or has changed in its first {split.start} bytes, which were "
                    "already read. Put back the file that was read, then run the same command."
                )
            self._size = status.st_size
            self._begin()
            parser = self._format.open(self._text, OpenedFile(split.path, self.beginning, self.lines_before))
            assert parser is not None, "a file that does not grow has a beginning"
            self._parser = parser
            if self.position < parser.body:
                self.position, self._left_out = parser.body, parser.head_lines
            self.end = max(self.position, self.end)
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._file >= 0

    def _begin(self) -> None:
        """Find the lines of the split in the open file."""
        if not self._format.is_of_lines:
            return
        self.position = line_start(self._file, self.split.start)
        self.end = max(self.position, line_start(self._file, self.split.end))

    def beginning(self, size: int) -> tuple[bytes, bool]:
        """Return so many bytes from the beginning of the open file, and whether these are the whole file."""
        data = os.pread(self._file, size + 1, 0)
        return data[:size], len(data) <= size

    @property
    def done(self) -> bool:
        """Whether all records have been read."""
        return self.position >= self.end

    def read(self) -> list[Any]:
        """Return the next records, about one block of them; [] when all are read.

        Raises SourceError for a file that cannot be read or has become shorter, a line of absurd length, text that
        cannot be decoded, and a record that cannot be parsed.
        """
        try:
            return self._read()
        except NotText as error:
            line = self.line_name(error.position, 0)
            raise error.explained(line, self._encoding, self.split.path, self.split.input) from None

    def _read(self) -> list[Any]:
        if self._file < 0 and not self.done:
            self._open()
        size = self._block_bytes
        while not self.done:
            self.note(0)
            data = self._read_bytes(min(size, self.end - self.position))
            block = self._parser.cut(data, self.position, self.position + len(data) == self.end)
            if block is not None:
                block = self._format.settled(block, lambda line: self.line_name(self.position, line))
                self._block = self._left_open(block) if block.faults and block.faults[-1].is_open else block
                self._noted = self._lines_noted = self._counted = 0
                self._handed_out = len(self._block.records)
                self.position += len(self._block.data)
                if self.open_from is not None:
                    self.end = self.position
                self.end = self.position if self._block.is_last else self.end
                if self._block.records:
                    return self._block.records
                size = self._block_bytes
                continue
            self._lack(data)
            if size >= self._format.bytes_max:
                raise self._format.too_long(self._text.name, f"byte {self.position}")
            size = min(2 * size, self._format.bytes_max)
        self.note(0)
        return []

    def _left_open(self, block: RecordBlock) -> RecordBlock:
        """Return a block of the last bytes without a record in which the file ends, if a later run may read it."""
        fault = block.faults[-1]
        is_at_end = bool(self._format.uncut) or self._size <= self.end
        if not (self.can_leave_open and self.split.print and is_at_end):
            return block
        before = block.without_open()
        self.open_from = self.position + len(before.data)
        self._open_fault = replace(fault, ends_file=False), self.position
        return before

    def next_batch(self) -> list[Any]:
        """Return the next batch. At the end, close the file and return []. Raises SourceError like `read`."""
        while not (batch := next(self._batches, [])) and not self.done:
            self._batches = batches_of(self.read(), len(self._block.data))
            self._handed_out = 0
        self._handed_out += len(batch)
        if not batch:
            self.note(0)
            if self._open_fault is not None:  # only now, as another reader may get the records before it
                fault, start = self._open_fault
                self._format.leave(fault, lambda line: self.line_name(start, line))
                self._open_fault = None
            self.stopped = self._stop() if self.split.print else None
            self.close()
        return batch

    def _stop(self) -> SplitEnd:
        """Return where reading has stopped; see rule 2."""
        if self.open_from is not None:
            return SplitEnd(self._print(self.open_from), self.open_from)
        if not self.can_leave_open or self.end <= self.split.end:
            return SplitEnd(self._print(self.split.end), is_left_out=self._block.is_last)
        with reading(self.split.path):
            changed_ns = os.fstat(self._file).st_mtime_ns
        return SplitEnd(self._print(self.end), None, self.end, changed_ns, self._block.is_last)

    def note(self, untaken: int) -> None:
        """Count faults, lines without a record, and replaced bytes, before the last `untaken` records of batches."""
        taken = self._handed_out - untaken
        if self._text.has_replaced and self._replaced is not None and self._counted < len(self._block.data):
            end = self._block.bytes_before(taken)
            if count := self._replaced_in(self._block.data[self._counted : end]):
                self._replaced.note(self.split.input, count, self._text.name)
            self._counted = end
        if self._block.ends is not None:
            lines = self._block.lines_before(taken) - taken
            self._left_out += lines - self._lines_noted
            self._lines_noted = lines
        if self._noted < len(self._block.faults):
            passed = self._block.passed(taken)
            start = self.position - len(self._block.data)
            self._format.note(passed[self._noted :], lambda line: self.line_name(start, line))
            self._noted = len(passed)

    def take_left_out(self) -> int:
        """Return how many more lines than records were read since the last call, such as blank lines and a header."""
        left_out, self._left_out = self._left_out, 0
        return left_out

    def rest(self, untaken: int) -> Split | None:
        """Return what is left, including the last `untaken` records of batches. None if nothing is left."""
        start = self.position_after(self._handed_out - untaken)
        return self._rest_from(start) if start < self.end else None

    def _rest_from(self, start: int, skip: int = 0) -> Split:
        print = self.split.print if self._file < 0 else self._print(start)
        return replace(self.split, start=start, skip=skip, print=print)

    def _print(self, length: int) -> str:
        """Return the print of the first bytes of the open file, "" if the job has no store. Raises SourceError."""
        if not self.split.print:
            return ""
        with reading(self.split.path):
            return print_of_file(self._file, length)

    def position_after(self, records: int) -> int:
        """Return where reading continues after the first so many of the records that `read` returned last."""
        return self.position - len(self._block.data) + self._block.bytes_before(records)

    def anew(self) -> "SplitReader":
        """Return a reader of the file's lines from its beginning to the end of the split."""
        lines = RecordFormat(bytes_max=self._format.bytes_max)
        return type(self)(replace(self.split, start=0, skip=0, print=""), "replace", format=lines)

    def line_name(self, position: int, line: int) -> str:
        """Return the name of the line so many lines after one that starts at a position. Costs reading up to it."""
        return f"line {self.lines_before(position) + line + 1} of {self.split.path!r}"

    def lines_before(self, position: int) -> int:
        """Return the number of lines before the line that begins at `position`. Costs reading them."""
        lines = 0
        with closing(self.anew()) as reader:
            while reader.position < position and reader.read():
                begins = reader.position - len(reader._block.data)
                lines += len(LINE_END.findall(reader._block.data[: position - begins]))
        return lines

    def close(self) -> None:
        """Close the file. Harmless if it is already closed."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _replaced_in(self, data: bytes) -> int:
        return self._text.replaced_in(data)

    def _lack(self, data: bytes) -> None:
        """Raise SourceError if these bytes do not end a record and no bytes will follow."""

    def _read_bytes(self, size: int) -> bytes:
        path = self.split.path
        with reading(path):
            data = os.pread(self._file, size, self.position)
        if not data:
            raise SourceError(
                f"{path!r} shrank while it was read: it ends at byte {self.position}, but "
                f"{self.end - self.position} more bytes were expected. If the job has processes on several machines, "
                "this one may see another file under that path: mount the same folder on each. If the file was not "
                f"changed, {no_size(path)}"
            )
        return data
