"""Every `--help` has groups, one sentence for each option, and examples that parse."""

import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner

from megaflow.cli.help import UNGROUPED, GroupedOption, variable_of
from megaflow.cli.main import cli

SENTENCE_MAX = 85  # characters
NARROW = 80  # columns of a terminal


def commands(
    command: click.Command = cli, parent: click.Context | None = None, name: str = "megaflow"
) -> Iterator[click.Context]:
    """Yield the context of each command and group."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from commands(found, context, each)


CONTEXTS = {context.command_path: context for context in commands()}
each_command = pytest.mark.parametrize("path", CONTEXTS)


def options_of(path: str) -> list[click.Option]:
    return [param for param in CONTEXTS[path].command.params if isinstance(param, click.Option)]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("MEGAFLOW_")]:
        monkeypatch.delenv(name)


def help_of(path: str, columns: int = 100) -> str:
    words = [*path.split()[1:], "--help"]
    done = CliRunner().invoke(cli, words, prog_name="megaflow", terminal_width=columns)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_run_groups_its_options_and_leaves_out_none() -> None:
    headings = re.findall(r"^(\w[\w ]*):$", help_of("megaflow run"), re.MULTILINE)
    assert headings == ["Input", "Output", "Processes", "State", "Event time", "Spark", "Joining", "Watching",
                        "Diagnostics"]  # fmt: skip
    for option in options_of("megaflow run"):
        assert isinstance(option, GroupedOption) and option.group in headings and option.group != UNGROUPED


@each_command
def test_each_option_has_one_short_sentence(path: str) -> None:
    shown = help_of(path, 1000)
    for option in options_of(path):
        if not isinstance(option, GroupedOption):  # --version
            continue
        text = option.help or ""
        assert text.endswith(".") and ". " not in text and text[0].isupper(), (option.opts, text)
        assert len(text) <= SENTENCE_MAX, (option.opts, len(text))
        assert re.search(rf"^  {option.opts[0]}\b", shown, re.MULTILINE) and text in shown


@each_command
def test_an_option_has_a_variable_that_is_named_after_it_or_shown(path: str) -> None:
    shown = help_of(path, 1000)
    for option in options_of(path):
        if isinstance(option, GroupedOption):
            assert str(option.envvar).startswith("MEGAFLOW_")
            assert option.envvar == variable_of(option.opts[0]) or f"env var: {option.envvar}" in shown


@each_command
def test_a_summary_is_one_sentence_that_fits_its_list(path: str) -> None:
    context = CONTEXTS[path]
    summary = (context.command.help or "").split("\n")[0]
    assert summary.endswith(".") and ". " not in summary
    if context.parent is not None:
        assert f"  {summary}\n" in help_of(context.parent.command_path, NARROW)


@each_command
def test_help_fits_a_narrow_terminal(path: str) -> None:
    for line in help_of(path, NARROW).splitlines():
        assert len(line) <= NARROW or line.startswith("    "), line  # an example, or a long name


@each_command
def test_the_examples_of_a_help_parse(path: str) -> None:
    found = re.findall(r"^    (megaflow .*)$", help_of(path), re.MULTILINE)
    for line in found:
        words = re.split(r" [|>] ", line)[0]
        names = next(known for known in sorted(CONTEXTS, key=len, reverse=True) if f"{words} ".startswith(f"{known} "))
        context: Any = CONTEXTS[names]
        context.command.make_context(context.info_name, shlex.split(words.removeprefix(names)), parent=context.parent)


def test_options_that_may_be_repeated_say_that() -> None:
    shown = help_of("megaflow run", 1000)
    for option in options_of("megaflow run"):
        line = next(line for line in shown.splitlines() if line.startswith(f"  {option.opts[0]} "))
        assert ("repeatable]" in line) is option.multiple


@pytest.mark.parametrize(("name", "heading"), [("run", "Diagnostics:"), ("control status", "Options:")])
def test_help_itself_stands_in_a_group(name: str, heading: str) -> None:
    section = help_of(f"megaflow {name}").partition(f"\n{heading}\n")[2].split("\n\n")[0]
    assert section.splitlines()[-1].startswith("  -h, --help")
