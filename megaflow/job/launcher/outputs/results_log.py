"""Log of packed rows on their way to Spark; a streaming query reads it. `ResultsFiles` has its files.

A place in the log is a number of rows: the rows before it since the job first began. Places serve as the query's
offsets, and as the length of the output in a commit of the store. Epochs cannot serve: after a loss, the job assigns
other numbers to the epochs that it repeats.

    released  <=  shown  <=  rows        Spark is done with  <=  Spark may read  <=  exist

 1. Without a store all rows are `shown`: the log receives only closed epochs, and none is taken back. With a store the
    shown rows are those of a commit known to be durable (`show`), or of the commit from which the job resumes
    (`cut_back`). So rows that Spark has seen stay. A rollback ends at a commit, never before one that was shown, and
    removes only rows that no query could read. Later rows follow that commit, perhaps cut into other epochs.
 2. `sync` makes all rows durable before the commit that names their number. So after any crash, the files have at least
    the rows of the newest commit. `cut_back` removes the rows beyond it.
 3. `read` changes nothing. A place always means the same rows. So Spark may retry a task or run it twice. If it has
    recorded a batch but not finished it, it reads the same rows again, also from the next launcher.
 4. If Spark asks what comes after a place (`latest`), the log releases the rows before that place. Spark plans a batch
    only when the previous one is finished and recorded as finished. After a crash of Spark it asks again: with the end
    of the batch if that was finished, else with the end of the one before. So no released row is read again.
 5. A store need not record what is released. Spark keeps that in its own checkpoint, and its first request tells the
    next launcher. The log removes only whole files whose rows are all released. It removes each durably before the next
    one, so the files that remain after a crash follow each other. A gap can only come from files that were not synced,
    and no commit names rows behind these.
 6. One query reads the log, because each row goes to one query. Another query, without the first one's checkpoint,
    would miss released rows. The log refuses it. It also refuses a checkpoint that has read more rows than exist: that
    belongs to another store or job.
 7. A log with more than ROOM_BYTES shown but not released `is_full`. Rows that are not shown do not count. Spark cannot
    read them before the next commit, and that commit comes behind the writer that would wait for room.

A frame has a place, an epoch, a number of rows, a length, a crc32 of all these and the bytes, and then the bytes.
"""

import os
import struct
import zlib
from bisect import bisect_right
from pathlib import Path
from typing import Final

from megaflow.durable.local_folder import sync_path
from megaflow.errors import CommandRefused, StoreDamaged
from megaflow.quick_dataclass import dataclass

FILE_BYTES: Final = 16 << 20  # from this size on, the next pack begins another file
BATCH_BYTES: Final = 32 << 20  # in one batch of Spark, at most some seconds of its work
ROOM_BYTES: Final = 1 << 30
PREFIX: Final = "rows-"

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_FRAME: Final = struct.Struct("<QQIII")  # start, epoch, rows, length, crc32
_CHECKED: Final = struct.Struct("<QQII")


class ResultsFiles:
    """Files of one folder, which only grow or are truncated. They stay open. Each method raises OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}  # name -> descriptor

    def sizes(self) -> dict[str, int]:
        """Return the files and their lengths in bytes."""
        return {entry.name: entry.stat().st_size for entry in os.scandir(self._folder) if entry.is_file()}

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file, which is created if missing."""
        left = memoryview(data)
        while left:
            left = left[os.write(self._file(name), left) :]

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return these bytes of a file; fewer at its end."""
        return os.pread(self._file(name), length, offset)

    def cut(self, name: str, length: int) -> None:
        """Shorten a file."""
        os.ftruncate(self._file(name), length)

    def remove(self, name: str) -> None:
        """Remove a file, durably."""
        if (file := self._open.pop(name, None)) is not None:
            os.close(file)
        (self._folder / name).unlink()
        sync_path(self._folder)

    def sync(self, names: set[str]) -> None:
        """Make the content and the names of these files survive a loss of power."""
        for name in names:
            os.fsync(self._file(name))
        sync_path(self._folder)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _file(self, name: str) -> int:
        if name not in self._open:
            self._open[name] = os.open(self._folder / name, _FLAGS, 0o600)
        return self._open[name]


@dataclass(frozen=True, slots=True)
class Pack:
    """Position of rows that were appended together."""

    start: int  # place of its first row
    rows: int
    epoch: int
    file: str
    offset: int  # of the packed bytes in the file
    length: int  # of these bytes
    bytes_before: int  # in all packs since this log was opened

    @property
    def end(self) -> int:
        """Place behind its last row."""
        return self.start + self.rows


class ResultsLog:
    """One log. Not thread-safe."""

    def __init__(self, folder: ResultsFiles, is_kept: bool, file_bytes: int = FILE_BYTES) -> None:
        """Read the existing files. `is_kept`: the log belongs to a store. Raises OSError."""
        self._folder = folder
        self._is_kept = is_kept
        self._file_bytes = file_bytes
        self._packs: list[Pack] = []  # with rows that are not released, by place
        self._files: list[tuple[int, str]] = []  # (place of its first row, name), by place
        self._file = ""  # the last file, to which the log appends
        self._size = 0  # bytes of that file
        self._bytes = 0  # of all packs in total
        self._dirty = set[str]()  # files that are not synced
        self._unsafe = self._dirty if is_kept else frozenset[str]()  # files that a loss of power may remove
        self._is_found = is_kept  # files were found, but `cut_back` has not yet decided how much of them counts
        self.rows = 0
        self._scan()
        self.released = self.shown = self._packs[0].start if self._packs else self.rows
        self._check()

    @property
    def is_full(self) -> bool:
        """Whether the writer should wait until Spark has read more."""
        return self._bytes_at(self.shown) - self._bytes_at(self.released) > ROOM_BYTES

    @property
    def is_read(self) -> bool:
        """Whether Spark is done with all rows."""
        return self.released == self.rows

    @property
    def waiting_since(self) -> int | None:
        """Epoch of the first row that Spark may read and is not done with; None if there is none."""
        return None if self.released == self.shown else self._packs[self._index(self.released)].epoch

    def append(self, epoch: int, rows: int, data: bytes) -> None:
        """Add rows, at least one. Raises OSError; then nothing more can be appended before `cut_back`."""
        if not self._file or self._size >= self._file_bytes:
            self._begin_file(self.rows, f"{PREFIX}{self.rows:015}")
        head = _CHECKED.pack(self.rows, epoch, rows, len(data))
        self._dirty.add(self._file)
        self._folder.append(self._file, head + zlib.crc32(data, zlib.crc32(head)).to_bytes(4, "little") + data)
        self._add(Pack(self.rows, rows, epoch, self._file, self._size + _FRAME.size, len(data), self._bytes))
        if not self._is_kept:
            self.shown = self.rows

    def sync(self) -> int:
        """Make all rows durable; return the place behind them. Raises OSError."""
        if self._dirty and self._is_kept:
            self._folder.sync(self._dirty)
        self._dirty.clear()
        return self.rows

    def show(self, place: int) -> None:
        """Let Spark read up to a place that a durable commit includes."""
        assert place <= self.rows, "only what is there is committed"
        self.shown = max(self.shown, place)

    def cut_back(self, place: int) -> None:
        """Remove the rows behind a place, that of the commit from which the job resumes.

        Raises StoreDamaged if the log has fewer rows, and OSError.
        """
        if self._is_found and place == 0 and self._files and self._files[0][0] > 0:  # files of no commit: see rule 5
            self._packs, self._files, self._file, self._size = [], [], "", 0
            self.rows = self.released = self.shown = 0
        self._is_found = False
        if not self.shown <= place <= self.rows:
            raise StoreDamaged(
                f"The results have {self.rows} rows, but had {place} at the last checkpoint. Restore the store "
                "and its folder spark from the same backup."
            )
        while self._packs and self._packs[-1].start >= place:
            pack = self._packs.pop()
            self._file, self._size, self._bytes = pack.file, pack.offset - _FRAME.size, pack.bytes_before
        assert not self._packs or self._packs[-1].end == place, "a commit is between packs"
        self.rows = self.shown = place
        self._files = [(start, name) for start, name in self._files if name <= self._file]
        for name in sorted(self._folder.sizes()):
            if name.startswith(PREFIX) and name > self._file:
                self._dirty.discard(name)
                self._folder.remove(name)
        if self._file:  # the file stays even if empty: its name has the place
            self._folder.cut(self._file, self._size)
        self._check()

    def latest(self, after: int | None) -> int:
        """Return how far Spark may read next. It is done with all rows before `after`; None: it does not say.

        Raises CommandRefused if `after` cannot be a place of the query that reads this log.
        """
        if after is not None:
            if after < self.released:
                raise CommandRefused(
                    f"A query has already read the results up to row {self.released}, and this query wants the "
                    f"rows from {after} on. Each row goes to one query: resume with the first query's "
                    "checkpointLocation."
                )
            self._check_shown(after)
            self.released = after
            self._remove_released()
        start = self.released
        limit = self._bytes_at(start) + BATCH_BYTES
        most = bisect_right(self._packs, limit, key=lambda pack: pack.bytes_before + pack.length)
        index = max(most, self._index(start) + 1)
        end = self._packs[index - 1].end if self._packs and start < self.rows else start
        return min(self.shown, max(start, end))

    def read(self, place: int) -> tuple[Pack, bytes]:
        """Return the pack that has the row at a place. Raises CommandRefused if it cannot be read; StoreDamaged."""
        if place < self.released and (not self._packs or place < self._packs[0].start):
            raise CommandRefused(f"The results up to row {self.released} were already read and are deleted.")
        self._check_shown(place + 1)
        pack = self._packs[self._index(place)]
        data = self._folder.read(pack.file, pack.offset, pack.length)
        head = _CHECKED.pack(pack.start, pack.epoch, pack.rows, pack.length)
        crc = self._folder.read(pack.file, pack.offset - 4, 4)
        if len(data) != pack.length or zlib.crc32(data, zlib.crc32(head)).to_bytes(4, "little") != crc:
            raise StoreDamaged(f"{pack.file} is damaged at byte {pack.offset}. Restore it from a backup.")
        return pack, data

    def _check_shown(self, place: int) -> None:
        if place > self.shown:
            raise CommandRefused(
                f"Spark's checkpoint has read the results up to row {place}, but the job has only {self.shown}. "
                "It belongs to another store or another backup: give the query the checkpoint that belongs to "
                "this store."
            )

    def _scan(self) -> None:
        """Find the packs in the files; stop where they do not follow each other, or at an incomplete one."""
        sizes = self._folder.sizes()
        names = sorted(name for name in sizes if name.startswith(PREFIX))
        for number, name in enumerate(names):
            start = int(name.removeprefix(PREFIX))
            if number and start != self.rows:
                return
            self.rows = start
            self._begin_file(start, name)
            while self._size + _FRAME.size <= sizes[name]:
                begin, epoch, rows, length, _ = _FRAME.unpack(self._folder.read(name, self._size, _FRAME.size))
                if begin != self.rows or not rows or self._size + _FRAME.size + length > sizes[name]:
                    return
                self._add(Pack(begin, rows, epoch, name, self._size + _FRAME.size, length, self._bytes))

    def _add(self, pack: Pack) -> None:
        self._packs.append(pack)
        self.rows = pack.end
        self._size = pack.offset + pack.length
        self._bytes += pack.length

    def _begin_file(self, start: int, name: str) -> None:
        self._files.append((start, name))
        self._file, self._size = name, 0

    def _remove_released(self) -> None:
        """Forget packs that are released, and remove files with nothing else, but never the last synced one."""
        del self._packs[: self._index(self.released)]
        while len(self._files) > 1 and self._files[1][0] <= self.released and self._files[1][1] not in self._unsafe:
            self._folder.remove(self._files.pop(0)[1])

    def _index(self, place: int) -> int:
        """Return the index of the pack with the row at a place; the number of packs if it is behind the last one."""
        index = bisect_right(self._packs, place, key=lambda pack: pack.start) - 1
        return index if index >= 0 and place < self._packs[index].end else len(self._packs)

    def _bytes_at(self, place: int) -> int:
        index = self._index(place)
        return self._packs[index].bytes_before if index < len(self._packs) else self._bytes

    def _check(self) -> None:
        assert self.released <= self.shown <= self.rows
        assert all(one.end == other.start for one, other in zip(self._packs, self._packs[1:]))
        assert not self._packs or (self._packs[0].start <= self.released and self._packs[-1].end == self.rows)
