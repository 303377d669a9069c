"""`--output csv:PATH`: a file whose first line names the columns; every other line is a row.

1. The workers make the rows (see `megaflow.job.worker.writing.csv_rows`). If the user gave no columns, the workers name
   them as a tuple before the rows of a batch. The first tuple decides; a worker that names other columns ends the job.
2. The first line is written before the first row, and only into an empty file. Each time that writing begins, the
   writer looks in the file for it. So a file that was truncated, to nothing or to some rows, continues correctly.
3. When rows are appended to a file, its first line names the columns, no matter which program wrote it.
4. If another program empties the file, the next row comes after the first line again. Rows that are written at that
   moment may come before it. A job with a store then ends at the next checkpoint, because none could resume from that.
"""

import csv
import json
from collections.abc import Iterable
from typing import Any

from megaflow.errors import OutputError, ProgramError
from megaflow.job.launcher.outputs.opened_output import Mode
from megaflow.job.launcher.outputs.output_file import FileWriter, refusal
from megaflow.job.worker.writing.csv_rows import CsvRows


class CsvWriter(FileWriter):
    """Writer of the rows of one table."""

    kind = "csv"

    def __init__(self, path: str, mode: Mode, output: str, columns: tuple[str, ...]) -> None:
        """Open the file without changing it. Without `columns` the records name them."""
        self.form = f"csv:{json.dumps(columns)}" if columns else "csv"
        self._wanted = columns
        self._columns: tuple[str, ...] = ()  # of the first line, once it is written
        self._is_flushed = False  # no row waits in the buffer
        super().__init__(path, mode, output=output)

    def check(self, read: Iterable[str | int]) -> None:
        """Check the file like any output. Also raise UsageError if it has other columns than the user wants."""
        super().check(read)
        found = self._found() if self._mode in ("append", "resume") else ()
        if found and self._wanted and found != self._wanted:
            raise refusal(
                self._spec, f"the file has the columns {', '.join(found)}; name these columns or another file"
            )

    def write(self, epoch: int, records: list[Any]) -> None:
        """Write rows. Raises ProgramError if their columns differ from those of the file."""
        with self._failing():
            self._begin()
            if self._is_flushed and self.is_kept and self._columns and self._file.is_emptied:
                self._name_again()
            self._is_flushed = False
        lines = []
        for each in records:
            if isinstance(each, str):
                lines.append(each)
            elif each != self._columns:
                self._begin_table(each)
        with self._failing():
            self._stream.write("".join(lines))

    def _begin(self) -> None:
        if self._begun:
            return
        super()._begin()
        self._columns = self._found()
        if self._wanted and not self._columns:
            self._begin_table(self._wanted)

    def _begin_table(self, columns: tuple[str, ...]) -> None:
        """Write the first line, if there is none."""
        if self._columns:
            raise ProgramError(
                f"--output {self._spec}: A record has the columns {', '.join(columns)}, but the file has "
                f"{', '.join(self._columns)}. Give every record the same columns, or set their order for a new "
                f"file: --output csv:PATH?columns={','.join(columns)}"
            )
        self._columns = columns
        with self._failing():
            self._stream.write("".join(CsvRows(columns).render(0, [columns])))

    def flush(self) -> None:
        """Flush the file."""
        super().flush()
        self._is_flushed = True

    def _name_again(self) -> None:
        """Write the first line into a file that another program has emptied."""
        columns, self._columns = self._columns, ()
        self._begin_table(columns)

    def _go_on_after_loss(self) -> None:
        """Do what other files do. Raises OutputError if the file does not begin with its first line."""
        if self._columns and not self._file.size():
            self._name_again()
            self._stream.flush()
        if self._found() != self._columns:
            raise OutputError(
                f"--output {self._spec}: Another program truncated the file while the job ran, and its first line does "
                "not name the columns. Put back the file that this job wrote, or start over with a new --state folder."
            )
        super()._go_on_after_loss()

    def _found(self) -> tuple[str, ...]:
        """Return the columns that the file's first line names; none if it is empty or not a regular file."""
        if not self.is_kept or not self._file.size():
            return ()
        with self._failing(), open(self.path, encoding="utf-8", errors="replace", newline="") as file:
            return tuple(next(csv.reader(file), ()))
