"""The parsers of lines that have no file, one for each input that one worker reads.

A parser may hold lines of a row that is open, and it knows the columns that the first line has named. When the
launcher's lines go to another process, the places of the parsers go there with the report of their end (`PushedEnded`),
and the next worker goes on with them.
"""

from collections.abc import Collection
from functools import partial
from typing import Any

from megaflow.control.messages import ParserPlace
from megaflow.job.record_format import LINES, LineStream, RecordFormat
from megaflow.job.text_lines import without_marks


class LineStreams:
    """Drained by the line queue of the worker."""

    def __init__(self) -> None:
        self.formats: dict[str, RecordFormat] = {}  # of inputs that are parsed; filled while the dataflow is built
        self.piped: Collection[str] = ()  # inputs whose lines are those of a file that the launcher reads
        self.places: dict[str, ParserPlace] = {}  # input -> where it is to be parsed from
        self._streams: dict[str, LineStream | None] = {}

    def begin(self, input: str, lines: list[Any], is_counted: bool) -> tuple[LineStream | None, list[Any]]:
        """Return what parses the next lines of an input, None if that is nothing, and these lines as it takes them.

        `is_counted`: this worker reads the input from its first line on, unless a place says otherwise.
        """
        if input not in self._streams:
            start = self.places.pop(input, ParserPlace(input, 0) if is_counted else None)
            name = partial(line_name, start is not None)
            format = self.formats.get(input, LINES)
            self._streams[input] = format.stream(name, start, is_piped=input in self.piped)
        stream = self._streams[input]
        if input in self.piped and not (stream is not None and stream.takes_marks):
            lines = without_marks(lines)
        return stream, lines

    def take_places(self, is_counted: bool) -> tuple[ParserPlace, ...]:
        """Return where another worker goes on; `is_counted` is as for `begin`. Nothing is parsed here any more."""
        if is_counted:
            for input in self.formats:
                if input not in self._streams:
                    self.places.setdefault(input, ParserPlace(input, 0))
        found = [stream.place(input) for input, stream in self._streams.items() if stream is not None]
        found += self.places.values()
        self._streams.clear()
        return tuple(found)

    def take_last(self) -> tuple[str, list[Any]] | None:
        """Return the records of an input that have waited for more lines; None: there are none. Raises SourceError."""
        for input in [*self.places]:  # another worker has left a row open, and no line has come since
            self.begin(input, [], False)
        for input, stream in self._streams.items():
            if stream is not None and (found := stream.end()):
                return input, found
        return None


def line_name(is_known: bool, line: int) -> str:
    """Return the name of a line for an error.

    >>> line_name(True, 2), line_name(False, 2)
    ("line 3 of the launcher's input", 'a line that is from no file')
    """
    return f"line {line + 1} of the launcher's input" if is_known else "a line that is from no file"
