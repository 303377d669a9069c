"""Inputs of the crash test's programs, and checks of their committed output, line by line.

The text alone decides the expected outputs of each key. They do not depend on the epochs or on the order between
files:
 words      The counts of a word are 1, 2, … up to its number of uses, in this order.
 sessions   The sessions of a word in a document are those of a plain loop, in order. The reports of its uses so far
 are 1 to a, a + 1 to b, … up to its number of uses.
"""

import json
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

from apps.bench.workload import ROOT
from apps.sessions import GAP

DOCUMENTS = 5  # files; each is read by one worker
SHOWN = 5  # wrong lines to keep

Key = tuple[str, ...]


class Program(Protocol):
    """A program, its input and its expected output."""

    app: str  # path of the program

    def line(self, document: int, number: int, text: str) -> str:
        """Return the line of the input for a line of text."""

    def wanted(self, documents: Iterable[Path]) -> Mapping[Key, Sequence[Any]]:
        """Return the expected outputs of each key, in order."""

    def found(self, record: Any) -> list[tuple[Key, Any]]:
        """Return the keys and values that a record of the output reports."""


class Words:
    """Running counts of words."""

    app = str(ROOT / "apps" / "wordcount.py")

    def line(self, document: int, number: int, text: str) -> str:
        return text

    def wanted(self, documents: Iterable[Path]) -> Mapping[Key, Sequence[Any]]:
        totals = Counter(word for line in lines_of(documents) for word in line.split())
        return {(word,): range(1, total + 1) for word, total in totals.items()}

    def found(self, record: Any) -> list[tuple[Key, Any]]:
        word, total = record
        return [((word,), total)]


class Sessions:
    """Sessions of words in each document."""

    app = str(ROOT / "apps" / "sessions.py")

    def line(self, document: int, number: int, text: str) -> str:
        return f"document{document} {number} {text}"

    def wanted(self, documents: Iterable[Path]) -> Mapping[Key, Sequence[Any]]:
        wanted: dict[Key, list[Any]] = defaultdict(list)
        for line in lines_of(documents):
            document, text, *words = line.split()
            number = int(text)
            for word in words:
                sessions, so_far = wanted["session", document, word], wanted["so far", document, word]
                so_far.append(len(so_far) + 1)
                if sessions and number - sessions[-1][1] <= GAP:
                    sessions[-1][1:] = [number, sessions[-1][2] + 1]
                else:
                    sessions.append([number, number, 1])
        return wanted

    def found(self, record: Any) -> list[tuple[Key, Any]]:
        kind, document, word, *values = record
        key = (kind, document, word)
        if kind == "session":
            return [(key, values)]
        return [(key, number) for number in range(values[0] + 1, values[1] + 1)]


PROGRAMS: dict[str, Callable[[], Program]] = {"words": Words, "sessions": Sessions}


def default_text() -> list[Path]:
    """Return the paths of real text that every Python installation has."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))


def lines_of(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the lines of files, without their ends."""
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as lines:
            yield from (line.rstrip("\n") for line in lines)


def write_documents(program: Program, text: Sequence[Path], folder: Path, lines: int) -> list[Path]:
    """Write `count` lines, repeating the text as often as necessary, into files; return their paths."""
    folder.mkdir()
    usable = [line for path in text for line in path.read_text(encoding="utf-8").splitlines() if line.split()]
    drawn = cycle(usable)
    paths = [folder / f"document{number}.txt" for number in range(DOCUMENTS)]
    for document, path in enumerate(paths):
        some = islice(drawn, lines // DOCUMENTS)
        path.write_text("".join(f"{program.line(document, *each)}\n" for each in enumerate(some)), encoding="utf-8")
    return paths


class Checker:
    """Comparison of the committed output with the expected output."""

    def __init__(self, program: Program, documents: Sequence[Path], output: Path) -> None:
        self.lines = 0  # of output, checked so far
        self.wrong: list[str] = []  # the first wrong lines
        self.wrong_count = 0
        self._program = program
        self._output = output
        self._wanted = program.wanted(documents)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Check the output from its first line again."""
        self._came: Counter[Key] = Counter()  # key -> number of its expected outputs that have come
        self._at = 0  # bytes checked so far
        self._time = -1  # of the last line

    def look(self, length: int) -> None:
        """Check the committed lines of the output, up to this length."""
        is_whole = length >= self._at
        if length > self._at:
            with self._output.open("rb") as file:
                file.seek(self._at)
                while is_whole and self._at < length:
                    line = file.readline(length - self._at)
                    self._at += len(line)
                    is_whole = line.endswith(b"\n")
                    self.lines += 1
                    self._take(line.decode())
        if not is_whole:
            self._note(f"the output has not the {length} bytes, and whole lines, that are committed")
        self._at = length

    def finish(self) -> None:
        """Check the rest of the output, and that nothing is missing."""
        self.look(self._output.stat().st_size)
        for key, values in self._wanted.items():
            if (missing := len(values) - self._came[key]) > 0:
                self._note(f"{key}: {missing} of {len(values)} are missing, from {values[self._came[key]]} on")

    def _take(self, line: str) -> None:
        try:
            told = json.loads(line)
            said = self._program.found(told["record"])
        except (ValueError, KeyError, TypeError):
            self._note(f"{line!r:.200} is no line of the output")
            return
        if told["time"] < self._time:
            self._note(f"{line} comes after a line of epoch {self._time}")
        self._time = told["time"]
        for key, value in said:
            wanted, at = self._wanted.get(key, ()), self._came[key]
            self._came[key] += 1
            if at >= len(wanted) or wanted[at] != value:
                self._note(f"{line}: {key} has {value}, where {wanted[at : at + 1]} is wanted")

    def _note(self, what: str) -> None:
        self.wrong_count += 1
        if len(self.wrong) < SHOWN:
            self.wrong.append(what)
