"""Results on their way to Spark: a log of packed rows, in files, from which a streaming query reads. No I/O of its own.

A place in the log is a number of rows: so many have come before it, since the job first began. It is an offset of the
query's, and the length of the output in a commit of the store. Epochs would not do: after a loss the job gives what it
works off again other numbers.

    released  <=  shown  <=  rows        Spark has done with  <=  Spark may read  <=  there are

 1. Without a store all that is there is `shown`: closed epochs only come here, and none is taken back. With a store it
    is what a commit has that is known to be durable (`show`), or from which the job goes on (`cut_back`). So what Spark
    has once seen stays: a rollback ends at a commit, never before one that was shown, and takes away only what no query
    could read. What comes later, be it cut into other epochs, comes behind it.
 2. `sync` makes durable what is there, before the commit that names that length. So after a crash in between, or any
    crash, the files have at least what the newest commit says; what they have beyond that is cut off.
 3. `read` changes nothing. A place means the same rows whenever it is asked for, so a task may be tried again, or run
    twice, and a batch that Spark has written down but not done is read again as it was, also by the next launcher.
 4. What is before a place is released when Spark asks what there is after it (`latest`): it plans a batch only when the
    one before is done, and written down as done. It asks so again after a crash on its side, be it before the batch
    was done (then it asks with the end of the one before that), or after. So nothing is let go that is read again.
 5. A store needs not say what is released: who goes on hears it from Spark's own checkpoint, in its first question.
    Files are only removed whole, when all in them is released; each, durably, before the next one: so those that are
    there after a crash follow each other, and a gap can only come from what was not synced: no commit names what is
    behind it.
 6. One query reads: each row is for one. Another one, without the checkpoint of the first, would miss what is released
    already. It is refused, and so is a checkpoint that has read more than there is: it is of another store, or job.
 7. A log that has more than ROOM_BYTES shown and not released `is_full`. What is not shown does not count: it could
    not be read, so who waited with it for room would wait for ever for the commit that comes behind it.

A frame has a place, an epoch, a number of rows, a length, a crc32 of all that and of the bytes that follow.
"""

import struct
import zlib
from bisect import bisect_right
from typing import Final, Protocol

from megaflow.errors import CommandRefused, StoreDamaged
from megaflow.quick_dataclass import dataclass

FILE_BYTES: Final = 16 << 20  # from which on the next pack begins another file
BATCH_BYTES: Final = 32 << 20  # of one batch of Spark's, some seconds of its work at most
ROOM_BYTES: Final = 1 << 30
PREFIX: Final = "rows-"

_FRAME: Final = struct.Struct("<QQIII")  # start, epoch, rows, length, crc32
_CHECKED: Final = struct.Struct("<QQII")


class LogFolder(Protocol):
    """Files that only grow, or are cut. Each method raises OSError."""

    def sizes(self) -> dict[str, int]:
        """Return the files and their lengths in bytes."""

    def append(self, name: str, data: bytes) -> None:
        """Write at the end of a file, which is made if it is not there."""

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes of a file, fewer at its end."""

    def cut(self, name: str, length: int) -> None:
        """Shorten a file."""

    def remove(self, name: str) -> None:
        """Remove a file; durably so when this returns."""

    def sync(self, names: set[str]) -> None:
        """Have what these files have, and that they are there, survive a loss of power."""


@dataclass(frozen=True, slots=True)
class Pack:
    """Where rows are that came together."""

    start: int  # the place of its first row
    rows: int
    epoch: int
    file: str
    offset: int  # of the packed bytes in the file
    length: int  # of these
    bytes_before: int  # of all packs since this log was opened

    @property
    def end(self) -> int:
        """The place behind its last row."""
        return self.start + self.rows


class ResultsLog:
    """One log. Not for two threads at once."""

    def __init__(self, folder: LogFolder, is_kept: bool, file_bytes: int = FILE_BYTES) -> None:
        """Read what is there; `is_kept`: it is of a store. Raises OSError."""
        self._folder = folder
        self._is_kept = is_kept
        self._file_bytes = file_bytes
        self._packs: list[Pack] = []  # with rows that are not released, by place
        self._files: list[tuple[int, str]] = []  # (place that it begins with, name), by place
        self._file = ""  # the last of these, which is written to
        self._size = 0  # bytes of that
        self._bytes = 0  # of all packs, ever
        self._dirty = set[str]()  # files that are not synced
        self._unsafe = self._dirty if is_kept else frozenset[str]()  # that a loss of power may take away
        self._is_found = is_kept  # as files, before it is said how much of them counts
        self.rows = 0
        self._scan()
        self.released = self.shown = self._packs[0].start if self._packs else self.rows
        self._check()

    @property
    def is_full(self) -> bool:
        """Whether who wants to append should wait until Spark has read more."""
        return self._bytes_at(self.shown) - self._bytes_at(self.released) > ROOM_BYTES

    @property
    def is_read(self) -> bool:
        """Whether Spark has done with all that there is."""
        return self.released == self.rows

    @property
    def waiting_since(self) -> int | None:
        """The epoch of the first row that Spark may read and has not done with; None: there is none."""
        return None if self.released == self.shown else self._packs[self._index(self.released)].epoch

    def append(self, epoch: int, rows: int, data: bytes) -> None:
        """Add rows, at least one. Raises OSError; then nothing more can be appended until it is cut back."""
        if not self._file or self._size >= self._file_bytes:
            self._begin_file(self.rows, f"{PREFIX}{self.rows:015}")
        head = _CHECKED.pack(self.rows, epoch, rows, len(data))
        self._dirty.add(self._file)
        self._folder.append(self._file, head + zlib.crc32(data, zlib.crc32(head)).to_bytes(4, "little") + data)
        self._add(Pack(self.rows, rows, epoch, self._file, self._size + _FRAME.size, len(data), self._bytes))
        if not self._is_kept:
            self.shown = self.rows

    def sync(self) -> int:
        """Make all durable that there is; return the place behind it. Raises OSError."""
        if self._dirty and self._is_kept:
            self._folder.sync(self._dirty)
        self._dirty.clear()
        return self.rows

    def show(self, place: int) -> None:
        """Let Spark read up to a place: a commit that is durable has it."""
        assert place <= self.rows, "only what is there is committed"
        self.shown = max(self.shown, place)

    def cut_back(self, place: int) -> None:
        """Forget what is behind a place, that of the commit from which the job goes on.

        Raises StoreDamaged if there is less, and OSError.
        """
        if self._is_found and place == 0 and self._files and self._files[0][0] > 0:  # of no commit: see rule 5
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
        if self._file:  # it stays, be it empty: its name has the place
            self._folder.cut(self._file, self._size)
        self._check()

    def latest(self, after: int | None) -> int:
        """Return up to where Spark may read next, if it has done with all before a place; None: it does not say.

        Raises CommandRefused if that cannot be the place of the query that reads here.
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
        """Return the pack that has the row at a place. Raises CommandRefused if it is not to be read; StoreDamaged."""
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
        """Find the packs in the files; stop where they do not follow each other, or one is not whole."""
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
        """Forget the packs that are released, and the files with nothing else; never the last one that is synced."""
        del self._packs[: self._index(self.released)]
        while len(self._files) > 1 and self._files[1][0] <= self.released and self._files[1][1] not in self._unsafe:
            self._folder.remove(self._files.pop(0)[1])

    def _index(self, place: int) -> int:
        """Return which pack has the row at a place; the number of packs if that is behind the last one."""
        index = bisect_right(self._packs, place, key=lambda pack: pack.start) - 1
        return index if index >= 0 and place < self._packs[index].end else len(self._packs)

    def _bytes_at(self, place: int) -> int:
        index = self._index(place)
        return self._packs[index].bytes_before if index < len(self._packs) else self._bytes

    def _check(self) -> None:
        assert self.released <= self.shown <= self.rows
        assert all(one.end == other.start for one, other in zip(self._packs, self._packs[1:]))
        assert not self._packs or (self._packs[0].start <= self.released and self._packs[-1].end == self.rows)
