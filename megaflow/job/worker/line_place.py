"""Where lines come from, for what says a file and a line: nothing is counted before it is asked for.

A batch knows at which byte its block begins and how many lines of that were handed out before; the lines before that
byte are counted in the file when an error names one. Of what the launcher reads, lines are counted where they are read
from the first one on; whoever reads on in another process does not know.
"""

from dataclasses import dataclass
from typing import Self

from megaflow.errors import SourceError
from megaflow.job.followed_files import FollowedFile
from megaflow.job.splits import SplitReader


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a batch of lines begins: so many lines behind a byte."""

    reader: SplitReader | None = None  # of the file; None: of no file
    position: int = 0
    lines: int | None = None  # None: that is not known
    first: str | None = None  # the first line of what the launcher reads

    def __repr__(self) -> str:
        return f"<from byte {self.position} of {self.path!r} on>" if self.path else "<of no file>"

    @property
    def is_first(self) -> bool:
        """Whether the batch has the first line of its file, or of what the launcher reads."""
        return self.position == 0 and self.lines == 0

    @property
    def path(self) -> str:
        """The file's; "" if there is none."""
        return "" if self.reader is None else self.reader.split.path

    def line(self, index: int) -> str:
        """Return the name of the batch's line at an index, for an error. Costs reading the file up to there.

        >>> LinePlace(lines=30).line(2), LinePlace().line(2)
        ('line 33 of what the launcher reads', 'a line that came from no file')
        """
        if self.lines is None:
            return "a line that came from no file"
        if self.reader is None:
            return f"line {self.lines + index + 1} of what the launcher reads"
        return f"line {self.reader.lines_before(self.position) + self.lines + index + 1} of {self.path!r}"

    def first_line(self) -> str:
        """Return the first line of the file, or of what the launcher reads. Raises SourceError if it is not known.

        Costs opening the file. It is asked for once a file by who reads CSV, also in the midst of one.
        """
        if self.reader is not None:
            return self.reader.first_line()
        if self.first is None:
            raise SourceError(
                "flow.csv(): the line that names the columns was read by another worker, or by Spark: name them by "
                "header=[…], or read Spark's CSV by --rows NAME=spark:csv:FOLDER"
            )
        return self.first


@dataclass(frozen=True, slots=True)
class FollowedPlace(LinePlace):
    """Where lines begin in a file that is followed; `lines` is 0."""

    file: FollowedFile | None = None

    @classmethod
    def of(cls, file: FollowedFile, position: int) -> Self:
        """Return the place of lines that begin at a byte of a file."""
        return cls(position=position, lines=0, file=file)

    @property
    def path(self) -> str:
        """What tells the file from others that have had its name."""
        assert self.file is not None, "it is of a file"
        return f"{self.file.path} (inode {self.file.inode}{f', anew {self.file.lives}' if self.file.lives else ''})"

    def line(self, index: int) -> str:
        """Return the name of the batch's line at an index, for an error."""
        assert self.file is not None, "it is of a file"
        return f"line {self.file.lines_before(self.position) + index + 1} of {self.file.path!r}"

    def first_line(self) -> str:
        """Return the first line of the file."""
        assert self.file is not None, "it is of a file"
        return self.file.first_line()
