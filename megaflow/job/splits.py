"""Files as splits, the byte ranges that workers read: a file is one, or several if order within it does not matter.

Several workers can then read the lines of a file without asking each other.

1. A line ends at `\\n`, `\\r\\n` or `\\r`, and nowhere else (not at form feeds or U+2028, unlike
   `str.splitlines`); the last line of a file may have no end. This is what `open(path)` and Spark do.
2. The reader of a split reads the lines that *start* in it. `line_start(file, x)` is the first start
   of a line at or after byte x, so the reader of [start, end) reads the bytes
   [line_start(start), line_start(end)): neighbours agree by construction, whatever lies on the border.
3. A reader's only state is its position, always the start of a line: a split read in part is again
   a split, from that position on.
4. Text is UTF-8, decoded once per block of whole lines. Neither `\\n` nor `\\r` is ever part of a
   longer character, so invalid bytes are replaced just as in the whole file. A byte order mark at the beginning of
   a file is not part of its text; elsewhere it is text like any other, as with `open(path, encoding="utf-8-sig")`.
"""

import glob
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from megaflow.control.messages import Split
from megaflow.errors import SourceError, UsageError
from megaflow.job.compression import format_of, is_compressed

T = TypeVar("T")

BLOCK_BYTES = 64 * 1024  # one read, one decode; larger ones gain nothing
BATCH_BYTES = 6144  # small: what a fold makes of one then stays in the processor's cache
LINE_BYTES_MAX = 64 * 1024 * 1024  # a "line" beyond this is a binary file; and a message must hold it
SPLIT_BYTES_MIN = 4 * 1024  # smaller ones cost more to open than to read
SPLIT_BYTES_MAX = 64 * 1024 * 1024  # so that work left over can still be given to others
SPLITS_PER_WORKER = 4  # a worker that is slow for a while delays the end by a quarter of its share
ENCODING_ERRORS = ("replace", "strict")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\n|\r")


def find_files(spec: str) -> list[str]:
    """Return the files that `spec` names, sorted: a file, a directory or a glob; `**` stands for any folders between.

    A directory stands for the files directly in it; files whose names begin with a dot are left out, as a shell's `*`
    does. `~` is a home folder, unless the path is there as it stands. Raises SourceError if there is none.
    """
    if not os.path.exists(spec):
        spec = os.path.expanduser(spec)
    if os.path.isdir(spec):
        entries = (os.path.join(spec, name) for name in os.listdir(spec) if not name.startswith("."))
        files = sorted(path for path in entries if os.path.isfile(path))
        if not files:
            raise SourceError(f"cannot read lines from {spec!r}: the directory holds no files")
        return files
    if os.path.exists(spec):  # also a name that looks like a glob
        if not os.path.isfile(spec):
            raise SourceError(f"cannot read lines from {spec!r}: not a regular file; pipe it in with --lines -")
        return [spec]
    if not glob.has_magic(spec):
        raise SourceError(f"cannot read lines from {spec!r}: no such file or directory (from {os.getcwd()!r})")
    files = sorted({path for path in glob.iglob(spec, recursive=True) if os.path.isfile(path)})
    if not files:
        raise SourceError(f"cannot read lines from {spec!r}: no file matches (from {os.getcwd()!r})")
    return files


def cut(sizes: Iterable[tuple[str, int]], workers: int | None = None) -> list[Split]:
    """Make numbered splits, none empty, of files given as (path, bytes): one of each, which keeps its lines in order.

    With a number of workers, files are cut into a few pieces for each of them, but for compressed ones.

    >>> [(s.path, s.start, s.end) for s in cut([("a", 40_000), ("b", 10)])]
    [('a', 0, 40000), ('b', 0, 10)]
    >>> [(s.path, s.start, s.end) for s in cut([("a", 40_000), ("b", 10)], workers=1)]
    [('a', 0, 10003), ('a', 10003, 20006), ('a', 20006, 30009), ('a', 30009, 40000), ('b', 0, 10)]
    """
    files = [(path, size) for path, size in sizes if size > 0]
    ranges = [(path, 0, size) for path, size in files]
    if workers is not None:
        piece = -(-sum(size for _, size in files) // (workers * SPLITS_PER_WORKER))
        piece = max(SPLIT_BYTES_MIN, min(SPLIT_BYTES_MAX, piece))
        steps = ((path, size, size if is_compressed(path) else piece) for path, size in files)
        ranges = [(path, at, min(at + step, size)) for path, size, step in steps for at in range(0, size, step)]
    return [Split(number, path, start, end) for number, (path, start, end) in enumerate(ranges)]


def plan_splits(files: Iterable[str], workers: int | None = None) -> list[Split]:
    """Make splits of files of this machine, as `cut` does.

    Raises SourceError if one cannot be examined, hides its size, or is compressed in a way that cannot be read here.
    """
    files = list(files)
    for path in filter(is_compressed, files):
        format_of(path)
    return cut([(os.path.abspath(path), size_of(path)) for path in files], workers)


def size_of(path: str) -> int:
    """Return a file's size in bytes. Raises SourceError if it cannot be had: files under /proc say 0."""
    try:
        size = os.stat(path).st_size
        if size == 0:
            with open(path, "rb", buffering=0) as file:
                if file.read(1):
                    raise SourceError(f"cannot read {path!r} as a file: {no_size(path)}")
    except OSError as error:
        raise SourceError(f"cannot read {path!r}: {error.strerror}") from error
    return size


def no_size(path: str) -> str:
    """Return the end of a sentence about a file of the system's own, whose size is not that of its content."""
    return f"the system does not say how long it is; pipe it in: cat {shlex.quote(path)} | megaflow run … --lines -"


def line_start(file: int, position: int) -> int:
    """Return the first byte >= position of an open file at which a line starts; the file's end if none does.

    Costs one small read, plus the length of the line that covers `position`.
    """
    if position == 0:
        return 0
    at = position - 1  # a line that starts at `position` shows by what ends just before it
    size = 256
    while True:
        data = os.pread(file, size, at)
        found = min((i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0), default=-1)
        if found < 0:
            if len(data) == 0:
                return at
            at += len(data)
            size = BLOCK_BYTES
            continue
        end = at + found + 1
        if data[found] == 13 and os.pread(file, 1, end) == b"\n":  # a \r\n is one end
            end += 1
        return end


def whole_lines(data: bytes, ends_line: bool) -> int:
    """Return how many of the first bytes of `data` are whole lines, `data` itself starting one.

    `ends_line` says that `data` ends where a line ends. Else a `\\r` in last place does not
    count yet: a `\\n` may follow it.

    >>> whole_lines(b"a\\nb\\r", ends_line=False), whole_lines(b"a\\nb\\r", ends_line=True)
    (2, 4)
    """
    if ends_line:
        return len(data)
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, len(data) - 1)) + 1


def lines_of(text: str) -> list[str]:
    """Split the text of whole lines, without their ends.

    >>> lines_of("a\\r\\nb\\x0bc\\rd\\n\\ne")
    ['a', 'b\\x0bc', 'd', '', 'e']
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    if not lines[-1]:  # what follows the last end is no line
        lines.pop()
    return lines


def bytes_of(data: bytes, lines: int) -> int:
    """Return how many bytes the first lines of `data` take, ends included; `data` starts one and ends where one ends.

    >>> bytes_of(b"a\\r\\nb\\nc", 2), bytes_of(b"a\\r\\nb\\nc", 3)
    (5, 6)
    """
    end = 0
    for _, found in zip(range(lines), LINE_END.finditer(data)):
        end = found.end()
        lines -= 1
    return len(data) if lines else end


def decode_lines(data: bytes, errors: str, name: str, position: int) -> list[str]:
    """Return the lines of `data`, which stands at `position` of the input called `name`.

    At its beginning a byte order mark is dropped. Raises SourceError for invalid UTF-8 if `errors` is "strict".

    >>> decode_lines(b"\\xef\\xbb\\xbfa\\n", "strict", "a file", 0)
    ['a']
    """
    if position == 0 and data.startswith(BYTE_ORDER_MARK):
        data, position = data[len(BYTE_ORDER_MARK) :], len(BYTE_ORDER_MARK)
    try:
        return lines_of(data.decode("utf-8", errors))
    except UnicodeDecodeError as error:
        raise SourceError(
            f"invalid UTF-8 in {name} at byte {position + error.start} "
            f"({data[error.start : error.end].hex(' ')}: {error.reason}); "
            f"--encoding-errors replace reads on with U+FFFD in its place"
        ) from None


def batches_of(lines: list[T], size: int) -> Iterator[list[T]]:
    """Slice lines of `size` bytes in all into batches of about 6 KB each.

    >>> [len(batch) for batch in batches_of(["a" * 40] * 250, 10_000)]
    [153, 97]
    """
    step = max(1, len(lines) * BATCH_BYTES // max(1, size))
    return (lines[start : start + step] for start in range(0, len(lines), step))


class SplitReader:
    """Reads one split, block by block (`read`) or batch by batch (`next_batch`).

    The first of these opens the file; `close()` closes it. Invariant: once it is open, `position` is the start of a
    line, or the end.
    """

    def __init__(self, split: Split, errors: str = "replace", block_bytes: int = BLOCK_BYTES) -> None:
        if errors not in ENCODING_ERRORS:
            raise UsageError(f"encoding errors are handled by {' or '.join(ENCODING_ERRORS)}, not by {errors!r}")
        self.split = split
        self.position = split.start
        self.end = split.end
        self._name = repr(split.path)
        self._file = -1
        self._errors = errors
        self._block_bytes = block_bytes
        self._block = b""  # what was read last
        self._batches: Iterator[list[str]] = iter(())  # of the block, not handed out
        self._handed_out = 0  # lines of the block

    def _open(self) -> None:
        split = self.split
        try:
            self._file = os.open(split.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"cannot read {split.path!r}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise SourceError(f"cannot read {split.path!r}: not a regular file")
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Find the lines of the split in the open file."""
        self.position = line_start(self._file, self.split.start)
        self.end = max(self.position, line_start(self._file, self.split.end))

    @property
    def done(self) -> bool:
        """Whether all lines have been read."""
        return self.position >= self.end

    def read(self) -> list[str]:
        """Return the next lines, about one block of them; none when done.

        Raises SourceError for a file that cannot be read or has become shorter, a line of absurd length and, if
        errors are "strict", for invalid UTF-8.
        """
        if self._file < 0 and not self.done:
            self._open()
        size = self._block_bytes
        while not self.done:
            data = self._read_bytes(min(size, self.end - self.position))
            length = whole_lines(data, self.position + len(data) == self.end)
            if length:
                self._block = data[:length]
                lines = decode_lines(self._block, self._errors, self._name, self.position)
                self.position += length
                return lines
            size *= 2
            if size > LINE_BYTES_MAX:
                raise SourceError(
                    f"{self._name} has a line of more than {LINE_BYTES_MAX >> 20} MiB "
                    f"at byte {self.position}: is it a text file?"
                )
        return []

    def next_batch(self) -> list[str]:
        """Return the next batch; none when all are read, and the file is closed. Raises SourceError like `read`."""
        while not (batch := next(self._batches, [])) and not self.done:
            lines = self.read()
            self._batches = batches_of(lines, len(self._block))
            self._handed_out = 0
        self._handed_out += len(batch)
        if not batch:
            self.close()
        return batch

    def rest(self, untaken: int) -> Split | None:
        """Return what is left with the last `untaken` lines of batches; None if that is nothing."""
        start = self.position_after(self._handed_out - untaken)
        return replace(self.split, start=start) if start < self.end else None

    def position_after(self, lines: int) -> int:
        """Return where the line begins that follows the first so many of those that `read` returned last."""
        return self.position - len(self._block) + bytes_of(self._block, lines)

    def place(self, untaken: int) -> tuple[int, int]:
        """Return where the last `untaken` lines of batches begin: a byte, and how many lines behind it."""
        return self.position - len(self._block), self._handed_out - untaken

    def anew(self) -> "SplitReader":
        """Return what reads the file from its beginning to the end of the split."""
        return type(self)(replace(self.split, start=0, skip=0))

    def first_line(self) -> str:
        """Return the first line of the file. Opens it for that."""
        with closing(self.anew()) as reader:
            return next(iter(reader.next_batch()), "")

    def lines_before(self, position: int) -> int:
        """Return how many lines the file has before one that begins at `position`. Costs reading them."""
        lines = 0
        with closing(self.anew()) as reader:
            while reader.position < position and reader.read():
                begins = reader.position - len(reader._block)
                lines += len(LINE_END.findall(reader._block[: position - begins]))
        return lines

    def close(self) -> None:
        """Close the file; harmless when closed already."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read_bytes(self, size: int) -> bytes:
        try:
            data = os.pread(self._file, size, self.position)
        except OSError as error:
            raise SourceError(f"cannot read {self.split.path!r}: {error.strerror}") from error
        if not data:
            path = self.split.path
            raise SourceError(
                f"{path!r} became shorter while it was read: nothing at byte {self.position}, "
                f"where {self.end - self.position} more were expected. If nobody has written to it, {no_size(path)}"
            )
        return data
