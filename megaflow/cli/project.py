"""`megaflow new`: a folder with a program, its test, some data and the commands to run them, from a template; and
`megaflow skill`, for the coding agents that go on from there.

The templates are the folders of `megaflow/cli/templates`, whose files are copied. In them the word NAME is the project.
The first command of a template's README runs its program, and `megaflow new` prints it.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from importlib import resources
from typing import Any

import click

from megaflow.cli.help import Command
from megaflow.cli.options import answer, option
from megaflow.errors import MegaflowError, UsageError, naming, similar

TEMPLATES = ("wordcount", "events", "table", "spark", "engine")  # in the order in which the help describes them
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")  # of a project in a pyproject.toml
FIRST_COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)


class TemplateName(click.Choice[str]):
    """The name of a template."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Raises UsageError, with the nearest one, for others."""
        if value in self.choices:
            return str(value)
        near = similar(str(value), self.choices)
        hint = f"Did you mean {near!r}?" if near else f"There are: {', '.join(self.choices)}."
        raise UsageError(f"There is no template {value!r}. {hint}")


def files_of(template: str) -> dict[str, str]:
    """Return the text of each file of a template, by name."""
    folder = resources.files("megaflow.cli") / "templates" / template
    return {each.name: each.read_text(encoding="utf-8") for each in folder.iterdir() if each.is_file()}


@contextlib.contextmanager
def made_folder(path: str) -> Iterator[list[str]]:
    """Make a folder, if it is not there and empty. An error in the block removes it with the files in the list."""
    is_new = not os.path.lexists(path)
    if is_new:
        os.mkdir(path)
    elif not os.path.isdir(path):
        raise UsageError(f"{path!r} is a file. Choose another name.")
    elif os.listdir(path):
        raise UsageError(f"The folder {path!r} exists and is not empty. Choose another name, or empty it.")
    made: list[str] = []
    try:
        yield made
    except BaseException:
        for file in made:
            os.remove(file)
        if is_new:
            os.rmdir(path)
        raise


def create_project(path: str, template: str) -> list[str]:
    """Fill a new or empty folder from a template; return the names of its files. An error changes nothing."""
    name = os.path.basename(os.path.abspath(path)) if path else ""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name or path!r} cannot be the name of a project. Use letters, digits, '-', '_' and '.', at most 64, "
            "with a letter or a digit at both ends."
        )
    texts = files_of(template)
    with naming(MegaflowError, f"Cannot create the project {path!r}"), made_folder(path) as made:
        for file, text in texts.items():
            with open(os.path.join(path, file), "x", encoding="utf-8") as opened:
                made.append(opened.name)
                opened.write(text.replace("NAME", name))
    return sorted(texts)


@click.command(cls=Command)
@click.argument("name", metavar="NAME")
@option("--template", type=TemplateName(TEMPLATES), default=TEMPLATES[0], help="What the program does.")
def new(name: str, template: str) -> None:
    """Create a project: a program with its test and some data.

    \b
      megaflow new shop
      megaflow new shop --template table

    NAME is a new or empty folder. Its program and its test run at once. Templates:

    \b
      wordcount  counts of words: a fold per key
      events     visits of users: JSON lines out of order, windows by event time, late records
      table      orders to tables of SQLite or PostgreSQL, each row exactly once
      spark      totals between two DataFrames of Spark
      engine     fewest stops between stations: a loop in the dataflow
    """
    files = create_project(name, template)
    command = FIRST_COMMAND.findall(files_of(template)["README.md"])[0]
    answer(f"Created {os.path.join(name, '')} with {', '.join(files)}. Try it:\n")
    answer(f"  cd {name}\n  {command}\n  python -m pytest -q{' ' * max(1, len(command) - 18)}  # pip install pytest")


@click.command(cls=Command)
def skill() -> None:
    """Print the path of the skill file for coding agents.

    \b
      megaflow skill
      mkdir -p .agents/skills && ln -s "$(dirname "$(megaflow skill)")" .agents/skills/

    The file describes how to write, test and run programs, and is that of the installed version. Tools that look for
    skills in installed packages find it by themselves.
    """
    answer(str(resources.files("megaflow") / ".agents" / "skills" / "megaflow" / "SKILL.md"))


COMMANDS = [new, skill]
