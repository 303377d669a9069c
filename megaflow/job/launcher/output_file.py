"""The writer of a file that `--output` names, and the checks that protect other files.

1. A regular file that is not empty is refused unless the user gives `--overwrite` or `--append`. Devices and pipes are
   written to.
2. A file that the job reads is always refused, under any name. So is a new file that the job's directory, glob or Spark
   folder would pick up as input.
3. The file is opened before the job starts, so it is known to be writable and cannot be exchanged after the checks. Its
   content changes only when the first epoch is written, or when the job ends without output. A job that fails
   earlier leaves the file as it was, and creates none.
4. Standard output belongs to the shell: /dev/stdout is written from its present position and never truncated. A job
   that reads the file to which the shell appends its output (`>> FILE`) is refused: it might never end.
5. A job locks each regular file before it starts. Otherwise two jobs would write over each other's records.

With a store of durable state
 6. The store records the absolute path of a regular file (`name`) and its length before the job writes. With length 0
    the old content is replaced; with `--append` it stays.
 7. A file that the store already names is opened to `resume`. It is neither refused nor replaced, but truncated to the
    recorded length and extended from there. A shorter file cannot be the same one, and is refused.
 8. Other outputs (standard output, a pipe, a device) cannot be truncated: `is_kept` is False.
 9. A job that takes over from one that does not answer continues in a copy of the file: see `output_copy`.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TextIO, TypeAlias

from megaflow.errors import OutputError, StoreError, UsageError
from megaflow.job.launcher.epoch_merge import Writer
from megaflow.job.launcher.launcher_input import STDIN
from megaflow.job.launcher.output_copy import OutputCopy
from megaflow.job.spec import Form

STDOUT = 1
STDOUT_NAMES = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")

Mode: TypeAlias = Literal["new", "overwrite", "append", "resume"]
"""How existing content is treated. `new`: it must be empty. `resume`: the store says how many bytes to keep."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
_APPEND = _CREATE | os.O_APPEND
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
FLAGS: dict[Mode, int] = {"new": _CREATE, "overwrite": _CREATE, "append": _APPEND, "resume": _APPEND}


class TextWriter(Writer):
    """`--output -`: one line a record."""

    form: Form = "text"
    name = "-"
    is_kept = False

    def __init__(self, stream: TextIO, name: str = "standard output") -> None:
        self._stream = stream
        self._name = name

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write one line a record. As `flush` and `close`, raises OutputError if that fails."""
        with self._failing():
            self._stream.write("\n".join(records) + "\n" if records else "")

    def flush(self) -> None:
        """Flush the stream."""
        with self._failing():
            self._stream.flush()

    def close(self) -> None:
        """Flush the stream, which its owner closes."""
        with self._failing():
            self._stream.flush()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Say in one sentence what cannot be written to; a reader that has closed its end of a pipe is no failure."""
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(
                f"Cannot write the job's output to {self._name}: {error.strerror}. All workers were stopped, and "
                "the output may end in the middle of a line."
            ) from error


class OutputFile:
    """An open file, or standard output under one of its names. Each method raises OSError."""

    def __init__(self, path: str, mode: Mode) -> None:
        self.path = path
        self.is_new = not os.path.exists(path)  # made by this
        self.number = os.dup(STDOUT) if path in STDOUT_NAMES else os.open(path, FLAGS[mode], 0o666)
        self.stream: TextIO = open(self.number, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        self.is_regular = path not in STDOUT_NAMES and stat.S_ISREG(os.fstat(self.number).st_mode)

    def hold(self) -> None:
        """Lock the file, until `let_go`. Raises BlockingIOError if another process has it, or had it and removed it.

        On a file system that knows no locks this does nothing: the store, if there is one, has checked its own.
        """
        try:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        if not self._has_its_name():
            raise BlockingIOError(errno.EWOULDBLOCK, "it was removed or replaced a moment ago")

    def let_go(self) -> None:
        """Unlock the file, also for processes that were forked meanwhile and have it open."""
        with contextlib.suppress(OSError):
            fcntl.flock(self.number, fcntl.LOCK_UN)

    def size(self) -> int:
        """Return how many bytes it has."""
        return os.fstat(self.number).st_size

    def cut(self, length: int) -> None:
        """Shorten it, and go on at its end."""
        os.ftruncate(self.number, length)
        self.stream.seek(0, os.SEEK_END)

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self.number)

    def sync_name(self) -> None:
        """Wait until its name is on the disk."""
        folder = os.open(os.path.dirname(os.path.realpath(self.path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def ends_line(self) -> bool:
        """Tell whether it ends where a line ends."""
        with open(self.path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read(1) in (b"", b"\n")

    def remove(self) -> None:
        """Take its name away, if it still has that."""
        if self._has_its_name():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.realpath(self.path))

    def _has_its_name(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.number))
        except FileNotFoundError:
            return False


class FileWriter(TextWriter):
    """`--output jsonl:PATH`: one object a line, with the record's epoch as its time."""

    form: Form = "jsonl"
    kind = "jsonl"

    def __init__(
        self, path: str, mode: Mode = "new", open_file: Callable[[str, Mode], OutputFile] = OutputFile, output: str = ""
    ) -> None:
        """Open the file, which does not change by that. Raises UsageError if it cannot be opened.

        `output` is the name of the output, if it has one.
        """
        self.path = path
        self._spec = f"{f'{output}=' if output else ''}{self.kind}:{path}"  # for errors
        self._mode = mode
        self._begun = False
        try:
            self._file = open_file(path, mode)
        except OSError as error:
            there = isinstance(error, FileNotFoundError)
            why = f"there is no folder {os.path.dirname(path)!r}" if there else f"cannot write there: {error.strerror}"
            raise refusal(self._spec, why) from error
        super().__init__(self._file.stream, path)
        self._made = self._file.is_new  # by this, and still empty
        self._is_named = False  # in its folder, whatever happens
        self._copy: OutputCopy | None = None  # until it has taken the file's name
        self.name = f"{self.kind}:{os.path.abspath(path)}"
        self.is_kept = self._file.is_regular

    def check(self, read: Iterable[str | int]) -> None:
        """Raise UsageError if the file is among those that the job reads, or has something that is to stay."""
        check_is_no_input(self._file.number, read, self._spec)
        self._check_is_empty()

    def _check_is_empty(self) -> None:
        if self.is_kept and self._mode == "new" and self._file.size():
            raise refusal(self._spec, "the file is not empty; --overwrite replaces its content, --append adds to it")

    def hold(self, take_over: bool = False) -> int:
        """Lock the file as long as it is open; return how long it is before this job writes.

        `take_over`: a file that the store names is taken from the job that has it, by `cut_back`. Raises OutputError if
        another job has it, UsageError if another job has written to a new file since `check`.
        """
        if not self.is_kept:
            return 0
        try:
            if take_over and self._mode == "resume":
                self._copy = OutputCopy(self.path)
            else:
                self._file.hold()
        except BlockingIOError as error:
            remedy = "name another file"
            if self._mode == "resume":  # the store names this one
                remedy = "if that job no longer responds, replace it by --take-over"
            raise OutputError(
                f"--output {self._spec}: Another job writes to this file. Wait until that job has ended, or {remedy}."
            ) from error
        except OSError as error:
            raise OutputError(
                f"--output {self._spec}: Cannot lock the file ({error.strerror}). Name a file on another file system."
            ) from error
        self._check_is_empty()
        return self._file.size() if self._mode in ("append", "resume") else 0

    def sync(self) -> int:
        """Make what was written durable, and return the file's length."""
        self.flush()
        if not self.is_kept:
            return 0
        with self._failing():
            self._file.sync()
            if not self._is_named:
                self._file.sync_name()
                self._is_named = True
            return self._file.size()

    def cut_back(self, length: int) -> None:
        """Shorten the file to what it had when it was so long, durably. Raises StoreError if it is shorter."""
        if not self.is_kept:
            return
        with self._failing():
            self._stream.flush()
            found = self._file.size()
            if found < length:
                raise StoreError(
                    f"--output {self._spec} has {found} bytes, but had {length} at the last checkpoint. Put back "
                    "the file that this job wrote, or start over with a new --state folder."
                )
            if self._copy is not None:
                self._copy.take_place(self._file.number, length)
                self._let_go_of_copy()
            self._file.cut(length)
            self._mode, self._begun, self._made = "resume", False, self._made and length == 0
            self._file.sync()

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write one line a record."""
        with self._failing():
            self._begin()
        super().write(epoch, records)

    def flush(self) -> None:
        """Flush the file; from now on it has what this job has written, and nothing that it is to replace."""
        with self._failing():
            self._begin()
        super().flush()

    def close(self) -> None:
        """Close the file; one that was made for nothing goes."""
        self._let_go_of_copy()
        if self._made and not self._begun:
            self._file.remove()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._failing())
            stack.callback(self._stream.close)
            stack.callback(self._file.let_go)
            self._stream.flush()

    def _let_go_of_copy(self) -> None:
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if self.is_kept and self._mode == "overwrite":
            self._file.cut(0)
        if self.is_kept and self._mode in ("append", "resume") and not self._file.ends_line():
            self._stream.write("\n")  # an earlier job was killed in a line


def check_is_no_input(file: int, read: Iterable[str | int], output: str) -> None:
    """Raise UsageError if an open file, that of `--output`, is one of those that the job reads."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return
    for other in read:
        with contextlib.suppress(FileNotFoundError):  # it has just been there
            if os.path.samestat(os.stat(other), os.fstat(file)):
                name = "standard input" if other == STDIN else repr(other)
                raise UsageError(
                    f"--output {output}: The job would read its own output as input ({name}). Name another file."
                )


def refusal(spec: str, why: str) -> UsageError:
    """Return the error for what --output says."""
    return UsageError(f"--output {spec}: {why}.")
