"""The prints of one worker process as whole lines with the worker's name, and their last 64 kB.

Prints are everything that the process and the programs that it starts write to standard output and standard error. No
input or output happens here; `print_reader` reads and shows.

1. A line begins with the name of its worker, as "worker 3: ". If a process has several workers, it marks each line that
   one of them prints by MARK, the worker's number and MARK. Other lines get the name of the process's first worker.
2. The only worker of a job has no name, and its bytes are shown as they come. So a progress bar works, as does a line
   that is printed in parts.
3. An incomplete line waits for its end, up to LINE_BYTES_MAX. It is shown with a line end when the process ends.
4. If the job logs JSON, each line becomes an object, and is read as one if a worker has made it one. Such a record
   waits for its end up to RECORD_BYTES_MAX.
5. A progress bar writes one line again and again, after carriage returns. Only its last state is shown. A terminal
   would overwrite the name of the worker, and a file would have hundreds of states on one line.
6. The last TAIL_BYTES stay here, whether they were shown or left out.
"""

import logging
from collections.abc import Callable
from typing import Final

from megaflow.job.dropped_tail import TAIL_BYTES
from megaflow.job.log_records import RECORD_BYTES_MAX, LogPlace, last_state, line_of, record_of

MARK: Final = b"\x1e"  # the record separator of ASCII; see rule 1
LINE_BYTES_MAX: Final = 16 * 1024
OWN: Final = "megaflow.job.launcher"  # the logger of records about prints
SHOWN_LINES: Final = 20  # of a process that has died, in its error
SHOWN_CHARACTERS: Final = 500  # of each of them


class PrintedLines:
    """The prints of one process."""

    def __init__(
        self, label: Callable[[int | None], str], place: Callable[[int | None], LogPlace] | None = None
    ) -> None:
        """`label` returns the beginning of a line of a worker. None stands for the process.

        `place` returns the place of a line that is to be shown as JSON: see `megaflow.job.log_records`.
        """
        self.label = label  # the launcher's thread may replace both
        self.place = place
        self._rest = b""  # the beginning of a line
        self._tail = bytearray()

    def take(self, data: bytes, is_alone: bool = False) -> bytes:
        """Return the text to show after the process has printed these bytes. `is_alone`: see rule 2."""
        self.keep(data)
        if is_alone and self.place is None:
            shown, self._rest = self._rest + data, b""
            return shown
        if not data:
            return b""
        *lines, rest = (self._rest + data).split(b"\n")
        is_record = self.place is not None and rest.startswith(MARK)
        if len(rest) > (RECORD_BYTES_MAX if is_record else LINE_BYTES_MAX):
            lines.append(rest)
            rest = b""
        self._rest = rest
        return b"".join(map(self._shown, lines))

    def finish(self) -> bytes:
        """Return the text to show when the process has ended."""
        rest, self._rest = self._rest, b""
        return self._shown(rest) if rest else b""

    def keep(self, data: bytes) -> None:
        """Add bytes to the last ones."""
        self._tail += data
        if len(self._tail) > 2 * TAIL_BYTES:
            del self._tail[:-TAIL_BYTES]

    def gap(self, lines: int) -> bytes:
        """Return the line that counts lines that were left out."""
        text = "1 line was left out" if lines == 1 else f"{lines:,} lines were left out"
        if self.place is not None:
            return f"{line_of(text, self.place(None), logging.WARNING, OWN)}\n".encode()
        return f"{self.label(None)}{text}\n".encode(errors="replace")

    def last(self, dropped: bytes = b"") -> str:
        """Return the last lines, "" if there are none. `dropped` comes after the bytes taken."""
        data = bytes(self._tail + dropped)[-TAIL_BYTES:]
        texts = "\n".join(map(text_of, data.split(b"\n"))).split("\n")
        texts = [last_state(text).rstrip() for text in texts]
        while texts and not texts[-1]:
            texts.pop()
        return "\n".join(text[:SHOWN_CHARACTERS] for text in texts[-SHOWN_LINES:])

    def _shown(self, line: bytes) -> bytes:
        worker, text = unmarked(line)
        if self.place is not None:
            shown = text[1:] if record_of(text) else line_of(last_state(text_of(text)), self.place(worker)).encode()
            return shown + b"\n"
        return self.label(worker).encode(errors="replace") + last_state(text) + b"\n"


def text_of(line: bytes) -> str:
    """Return the text of a line, or the message of a record."""
    record = record_of(line)
    if record is not None:
        return "\n".join(str(record[name]) for name in ("message", "exception") if record.get(name))
    return unmarked(line)[1].decode(errors="backslashreplace")


def unmarked(line: bytes) -> tuple[int | None, bytes]:
    r"""Return the worker and the text of a line; None if the process has not marked it.

    >>> unmarked(b"\x1e12\x1esaw a"), unmarked(b"saw a")
    ((12, b'saw a'), (None, b'saw a'))
    """
    match line.split(MARK, 2):
        case [b"", number, text] if number.isdigit() and len(number) < 10:
            return int(number), text
    return None, line
