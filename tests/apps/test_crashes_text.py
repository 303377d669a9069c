"""The checker of the crash test accepts right outputs, and rejects lost, doubled and out-of-order ones."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps import sessions
from apps.bench.crashes_text import PROGRAMS, Checker, default_text, lines_of, write_documents
from apps.wordcount import dataflow as words
from megaflow.testing import SimulatedCluster

FLOWS: dict[str, Callable[[Any], Any]] = {"words": words, "sessions": sessions.dataflow}


class Outputs:
    """A program's output for a few lines, with a checker."""

    def __init__(self, name: str, folder: Path) -> None:
        program = PROGRAMS[name]()
        documents = write_documents(program, default_text()[:1], folder / "text", 60)
        lines = [list(lines_of([document])) for document in documents]
        records = SimulatedCluster(seed=5).run(FLOWS[name], lines=lines)
        self.lines = [json.dumps({"time": 1, "record": record}) for record in records]
        self._path = folder / "out.jsonl"
        self._make = lambda: Checker(program, documents, self._path)

    def judge(self, lines: list[str]) -> Checker:
        """Check `lines` lines in three steps, as if there were no others."""
        checker = self._make()
        ends = [0]
        with self._path.open("wb") as file:
            for line in lines:
                file.write(line.encode() + b"\n")
                ends.append(file.tell())
        for length in (ends[len(lines) // 3], ends[len(lines) // 2]):
            checker.look(length)
        checker.finish()
        return checker


@pytest.fixture(scope="module", params=PROGRAMS)
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outputs]:
    yield Outputs(request.param, tmp_path_factory.mktemp("crashes"))


def test_what_the_program_puts_out_is_right(outputs: Outputs) -> None:
    checker = outputs.judge(outputs.lines)
    assert checker.wrong == [] and checker.lines == len(outputs.lines) > 100


@pytest.mark.parametrize("at", [0, 100, -1])
def test_a_line_that_is_lost_or_doubled_or_of_another_epoch_is_noticed(outputs: Outputs, at: int) -> None:
    lines = outputs.lines
    at %= len(lines)
    assert outputs.judge(lines[:at] + lines[at + 1 :]).wrong_count
    assert outputs.judge(lines[: at + 1] + lines[at:]).wrong_count
    assert outputs.judge([*lines, lines[at].replace('"time": 1', '"time": 0')]).wrong_count
    assert outputs.judge([*lines[:at], lines[at][:-9], *lines[at + 1 :]]).wrong_count
