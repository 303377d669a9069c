"""Programs of timely's book and repository as tests: `say` stands for `println!`, and the tests compare its lines.

With one worker, the order of the lines also counts. The programs are as literal as Python allows; a comment `in Rust`
marks a line that has to differ. Each program names its text.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from megaflow.timely import Config, example, execute

Say: TypeAlias = Callable[[str], None]
Program: TypeAlias = Callable[[Any, Say], Any]  # takes a worker or scope, and a function that prints a line
Decorator: TypeAlias = Callable[[Program], Program]


@dataclass(frozen=True, slots=True)
class Text:
    """The programs of a text by title, each with its workers (0: a program of `example`) and its expected lines."""

    programs: dict[str, tuple[Program, int, list[str]]] = field(default_factory=dict)

    def of_scope(self, title: str, *said: str) -> Decorator:
        """Add a program that `example` runs."""
        return self.of_worker(title, *said, workers=0)

    def of_worker(self, title: str, *said: str, workers: int = 1) -> Decorator:
        """Add a program that `execute` runs on `workers` workers."""

        def add(program: Program) -> Program:
            assert title not in self.programs
            self.programs[title] = program, workers, [*said]
            return program

        return add

    def check(self, title: str) -> None:
        """Run a program; it has to print the lines of its text."""
        program, workers, expected = self.programs[title]
        said: list[str] = []
        if workers:
            execute(Config.process(workers), lambda worker: program(worker, said.append))
        else:
            example(lambda scope: program(scope, said.append))
        if workers > 1:
            said, expected = sorted(said), sorted(expected)
        assert said == expected


def lines(pattern: str, values: Iterable[object]) -> list[str]:
    """Return a line for each value."""
    return [pattern.format(value) for value in values]
