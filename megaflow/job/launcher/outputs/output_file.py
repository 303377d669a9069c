"""The writer of a file that `--output` names, and the checks that protect other files.

1. A regular file that is not empty is refused unless the user gives `--overwrite` or `--append`. Devices and pipes are
   written to.
2. A file that the job reads is always refused, under any name. So is a new file that the job's directory, glob or Spark
   folder would pick up as input.
3. The file is opened before the job starts, so it is known to be writable and cannot be exchanged after the checks. Its
   content changes only when the first epoch is written, or when the job ends without output. A job that fails
   earlier leaves an old file unchanged, and creates no new one.
4. Standard output belongs to the shell: /dev/stdout is written from its present position and never truncated. A job
   that reads the file to which the shell appends its output (`>> FILE`) is refused: it might never end.
5. A job locks each regular file before it starts. Otherwise two jobs would write over each other's records.

With a store of durable state
 6. The store records the path of a regular file, with symbolic links resolved (`name`), and its length before the job
    writes. With length 0 the job replaces the old content; with `--append` it keeps it.
 7. A file that the store already names is opened to `resume`. The job neither refuses nor replaces it, but truncates it
    to the recorded length and continues from there. A shorter file cannot be the same one, and is refused. So is a file
    whose bytes before that length (`opened_output`) do not have the recorded fingerprint. This check comes before
    anything is cut off, so the job keeps only bytes that it wrote.
 8. Other outputs (standard output, a pipe, a device) cannot be truncated: `is_kept` is False.
 9. A job that takes over from one that does not answer continues in a copy of the file: see `OutputCopy`.
10. If the file loses its name (`mv`, `sed -i`), records would go to a file that nothing names in a store, so the next
    checkpoint fails. Without a store, a file that was renamed is written on, and one without any name is an error.
11. If another program truncates the file (logrotate with `copytruncate`), later lines follow what is left. With a
    store, the next checkpoint reports it and records the new length. Until then the store names bytes that are gone, so
    no job resumes from it. A writer's lengths must grow (`several_outputs`, rule 2), so those of the shorter file begin
    at `_base`, after all earlier lengths.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from megaflow.durable.commits import OutputLength
from megaflow.errors import OutputError, StoreError, UsageError, naming
from megaflow.job.launcher.inputs.launcher_input import STDIN
from megaflow.job.launcher.outputs.opened_output import Mode, OutputCopy, OutputFile, WrittenEnds
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.job.spec import Form


class TextWriter(Writer):
    """`--output -`: one line per record."""

    form: Form = "text"
    name = "-"
    is_kept = False

    def __init__(self, stream: TextIO, name: str = "standard output") -> None:
        self._stream = stream
        self._name = name

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write one line per record. Like `flush` and `close`, raises OutputError on failure."""
        with self._failing():
            self._stream.write("\n".join(records) + "\n" if records else "")

    def flush(self) -> None:
        """Flush the stream."""
        with self._failing():
            self._stream.flush()

    def close(self) -> None:
        """Flush the stream, which its owner closes."""
        self.flush()

    def _failing(self) -> naming:
        """Turn OSError into an OutputError that names the output. A reader that closed its pipe is no such failure."""
        end = ". All workers were stopped, and the output may end in the middle of a line."
        return naming(OutputError, f"Cannot write the job's output to {self._name}", end)


class FileWriter(TextWriter):
    """`--output jsonl:PATH`: one object per line, with the record's epoch as its time."""

    form: Form = "jsonl"
    kind = "jsonl"

    def __init__(
        self, path: str, mode: Mode = "new", open_file: Callable[[str], OutputFile] = OutputFile, output: str = ""
    ) -> None:
        """Open the file without changing it. Raises UsageError if it cannot be opened.

        `output` is the name of the output, if it has one.
        """
        self.path = path
        self._spec = f"{f'{output}=' if output else ''}{self.kind}:{path}"  # for errors
        self._mode = mode
        self._begun = False
        try:
            self._file = open_file(path)
        except OSError as error:
            there = isinstance(error, FileNotFoundError)
            why = f"there is no folder {os.path.dirname(path)!r}" if there else f"cannot write there: {error.strerror}"
            raise refusal(self._spec, why) from error
        super().__init__(self._file.stream, path)
        self._made = self._file.is_new  # created by this job, and still empty
        self._is_named = False  # its name is on the disk
        self._copy: OutputCopy | None = None  # until it has taken the file's name
        self.is_kept = self._file.is_regular
        self.name = f"{self.kind}:{os.path.realpath(path) if self.is_kept else os.path.abspath(path)}"
        self._base = 0  # see rule 11
        self._noted = 0  # the last length
        self._ends = WrittenEnds(lambda length: self._file.tail(length - self._base))

    def check(self, read: Iterable[str | int]) -> None:
        """Raise UsageError if the job reads this file, or if the file has content that must stay."""
        check_is_no_input(self._file.number, read, self._spec)
        self._check_is_empty()

    def _check_is_empty(self) -> None:
        if self.is_kept and self._mode == "new" and self._file.size():
            raise refusal(self._spec, "the file is not empty; --overwrite replaces its content, --append adds to it")

    def hold(self, take_over: bool = False) -> int:
        """Lock the file while it is open; return its length before this job writes.

        With `take_over`, `cut_back` takes a file that the store names from the job that has it. Raises OutputError if
        another job has the file, UsageError if another job has written to a new file since `check`.
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
        if self._mode not in ("append", "resume"):
            return 0
        with self._failing():
            return self._note_length()

    def sync(self) -> int:
        """Make everything written durable, and return the file's length."""
        self.flush()
        if not self.is_kept:
            return 0
        with self._failing():
            self._file.sync()
            if not self._is_named:
                self._file.sync_name()
                self._is_named = True
            if not self._file.has_its_name() and not self._file.is_taken_over():  # then the commit fails: see rule 9
                raise OutputError(
                    f"--output {self._spec}: The file was renamed, removed or replaced while the job ran, so later "
                    "records would be missing in it. Put back the file that this job wrote, or start over with a new "
                    "--state folder."
                )
            if self._file.lost():
                self._go_on_after_loss()
            return self._note_length()

    def _go_on_after_loss(self) -> None:
        """Report that another program has truncated the file, and let lengths begin anew: see rule 11."""
        self._base = self._noted + 1
        self.report(
            f"--output {self._spec} was truncated by another program while the job ran, so lines may be lost; the "
            f"checkpoint records the new length, {self._file.size()} bytes"
        )

    def _note_length(self) -> int:
        self._noted = self._ends.note(self._base + self._file.size())
        return self._noted

    def lengths(self, length: int) -> tuple[OutputLength, ...]:
        """Return the entry that a store records for the file at this length."""
        return (OutputLength(self.name, max(0, length - self._base), self._ends.fingerprint(length)),)

    def check_content(self, said: Sequence[OutputLength]) -> None:
        """Raise StoreError if the bytes before a recorded length are not those that the job wrote."""
        for each in said:
            self._ends.learn(each.length, each.fingerprint)
            self._check_end(each.length)

    def committed(self, length: int) -> None:
        """Forget shorter lengths: the file will never be cut back to them."""
        self._ends.forget_before(length)

    def cut_back(self, length: int) -> None:
        """Truncate the file to this length, durably. Raises StoreError if it is shorter or has other bytes there."""
        if not self.is_kept:
            return
        with self._failing():
            self._stream.flush()
            if length < self._base:
                raise StoreError(
                    f"--output {self._spec} was truncated by another program after the last checkpoint. Put back the "
                    "file that this job wrote, or start over with a new --state folder."
                )
            found, wanted = self._file.size(), length - self._base
            if found < wanted:
                raise StoreError(
                    f"--output {self._spec} has {found} bytes, but had {wanted} at the last checkpoint. Put back "
                    "the file that this job wrote, or start over with a new --state folder."
                )
            self._check_end(length)
            if self._copy is not None:
                self._copy.take_place(self._file.number, wanted)
                self._let_go_of_copy()
            self._file.cut(wanted)
            self._noted = length
            self._mode, self._begun, self._made = "resume", False, self._made and length == 0
            self._file.sync()

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write one line per record."""
        with self._failing():
            self._begin()
        super().write(epoch, records)

    def flush(self) -> None:
        """Flush the file. From now on it has only what this job wrote, and what it was to keep."""
        with self._failing():
            self._begin()
        super().flush()
        has_store = self._is_named or self._mode == "resume"
        if self.is_kept and not has_store and not self._file.has_a_name():
            raise OutputError(
                f"--output {self._spec}: The file was removed or replaced while the job ran, so what the job has "
                "written to it is lost."
            )

    def close(self) -> None:
        """Close the file. Remove it if this job created it and wrote nothing."""
        self._let_go_of_copy()
        if self._made and not self._begun:
            with self._failing():
                self._file.remove()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._failing())
            stack.callback(self._file.close)
            self._stream.flush()

    def _check_end(self, length: int) -> None:
        """Raise StoreError if the bytes before this length do not have the noted fingerprint."""
        with self._failing():
            if not self._ends.is_as_noted(length):
                raise StoreError(
                    f"--output {self._spec} does not have the bytes that this job wrote: those before byte {length} "
                    "differ from the last checkpoint. The file was not changed. Put back the file that this job "
                    "wrote, or start over with a new --state folder."
                )

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
            self._stream.write("\n")  # an earlier job was killed in the middle of a line


def check_is_no_input(file: int, read: Iterable[str | int], output: str) -> None:
    """Raise UsageError if the job reads the open file of `--output`."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        return
    for other in read:
        with contextlib.suppress(FileNotFoundError):  # removed since the search
            if os.path.samestat(os.stat(other), os.fstat(file)):
                name = "standard input" if other == STDIN else repr(other)
                raise UsageError(
                    f"--output {output}: The job would read its own output as input ({name}). Name another file."
                )


def refusal(spec: str, why: str) -> UsageError:
    """Return the error for a specification of `--output`."""
    return UsageError(f"--output {spec}: {why}.")
