"""The table of environment variables is complete, compared with the code, the command line and docs/environment.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from megaflow.cli.main import cli
from megaflow.environment import KNOWN, OF_OPTIONS, PREFIX, UnknownVariable, complaints, warn_of_unknown
from tests.results import check_equal

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "environment.md"
WORD = re.compile(rf"(?<!_){PREFIX}[A-Z_]+")  # click has a variable of its own, with _ in front


def options(command: click.Command = cli, path: str = "") -> Iterator[tuple[str, click.Option]]:
    """Return each option of the command line with its environment variable."""
    if isinstance(command, click.Group):
        context = click.Context(command, **command.context_settings)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from options(found, f"{path} {name}".strip())
    for param in command.params:
        if isinstance(param, click.Option) and param.envvar is not None:
            yield f"{path} {param.opts[0]}", param


def read_in(path: Path) -> set[str]:
    """Return the variables that a module names in its strings and docstrings, and declares for options."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    declared = {
        PREFIX + word.value.value
        for word in ast.walk(tree)
        if isinstance(word, ast.keyword) and word.arg == "env" and isinstance(word.value, ast.Constant)
    }
    return {name for text in texts for name in WORD.findall(text)} | declared


def test_the_code_names_exactly_the_variables_of_the_table() -> None:
    found = {path: read_in(path) for path in (ROOT / "megaflow").rglob("*.py")}
    for path, names in found.items():
        assert path.name == "environment.py" or names <= KNOWN, (path, names - KNOWN)
    used = {str(option.envvar) for _, option in options()}.union(
        *(names for path, names in found.items() if path.name != "environment.py")
    )
    assert used >= KNOWN, KNOWN - used


def test_the_options_have_exactly_the_variables_of_the_table() -> None:
    assert {str(option.envvar) for _, option in options()} == {PREFIX + name for name in OF_OPTIONS.split()}


def test_the_page_lists_exactly_the_variables_of_the_table() -> None:
    rows = re.findall(rf"^\| `({PREFIX}\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows)) and set(rows) == KNOWN


def test_the_page_names_the_options_of_each_variable() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path, option in options():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{option.envvar}` |"))
        assert any(path.endswith(name) for name in re.findall(r"`([\w -]*--[\w-]+)`", row)), (option.envvar, path)
        if option.default is not None and option.show_default:
            default = option.default[0] if isinstance(option.default, tuple) else option.default
            assert f"| {default:g} |" in row if isinstance(default, float) else f"| {default} |" in row, row


@pytest.mark.parametrize(
    ("name", "meant"),
    [("MEGAFLOW_LINE", "MEGAFLOW_LINES"), ("MEGAFLOW_CHECKPIONT_EVERY", "MEGAFLOW_CHECKPOINT_EVERY"),
     ("MEGAFLOW_SECRETS", "MEGAFLOW_SECRET"), ("MEGAFLOW_CHEK", "MEGAFLOW_CHECK")],
)  # fmt: skip
def test_a_mistyped_variable_is_reported_with_the_nearest_name(name: str, meant: str) -> None:
    assert [*complaints([name, "PATH"])] == [f"The environment variable {name} has no effect. Did you mean {meant}?"]
    done = CliRunner().invoke(cli, ["control", "status", "--connect", "h"], env={name: "1"})
    assert done.exit_code == 2 and f"Did you mean {meant}?" in done.stderr and done.stdout == ""


def test_known_variables_are_not_reported() -> None:
    assert [*complaints(KNOWN)] == []


def test_python_warns_at_the_line_that_called_megaflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_CHEK", "aliasing")
    with pytest.warns(UnknownVariable, match="Did you mean MEGAFLOW_CHECK") as caught:
        warn_of_unknown()
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.cluster
def test_a_job_started_from_python_warns(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import megaflow\n\ndef dataflow(flow):\n    return flow.lines()\n\n"
        "if __name__ == '__main__':\n    print(megaflow.run(dataflow, lines=['a']))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "MEGAFLOW_CHEK": "1", "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_equal(done.stdout, "['a']\n", done.stderr)
    assert "program.py:7: UnknownVariable" in done.stderr and done.stderr.count("Did you mean MEGAFLOW_CHECK?") == 1
