"""`megaflow new` creates projects whose programs, tests and READMEs work, or changes nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from megaflow.cli.main import cli
from megaflow.cli.project import TEMPLATES, files_of
from tests.test_docs import blocks, matches, shell, typed

SLOW = [pytest.mark.cluster, pytest.mark.slow]
MARKS: dict[str, list[Any]] = {"wordcount": [pytest.mark.cluster], "spark": [*SLOW, pytest.mark.spark]}


def new(*words: str, **environment: str) -> Result:
    return CliRunner().invoke(cli, ["new", *words], env=environment)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_default_is_a_word_count() -> None:
    done = new("shop")
    assert done.exit_code == 0, done.output
    names = ["README.md", "app.py", "pyproject.toml", "test_app.py", "text.txt"]
    assert sorted(os.listdir("shop")) == names
    assert done.stdout.splitlines()[:4] == [
        f"Created shop/ with {', '.join(names)}. Try it:", "", "  cd shop", "  megaflow run app.py --lines text.txt",
    ]  # fmt: skip
    assert Path("shop/README.md").read_text().startswith("# shop\n")
    assert 'name = "shop"' in Path("shop/pyproject.toml").read_text()


def test_the_package_has_exactly_the_templates_of_the_help() -> None:
    folder = Path(sys.modules["megaflow.cli.project"].__file__ or "").parent / "templates"
    assert {each.name for each in folder.iterdir() if each.is_dir()} == set(TEMPLATES)
    assert [name for name in TEMPLATES if f"\n    {name} " not in new("--help").output] == []


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_program_builds_and_passes_the_linters(template: str) -> None:
    assert new("shop", "--template", template).exit_code == 0
    drawn = CliRunner().invoke(cli, ["graph", "shop/app.py"])
    assert drawn.exit_code == 0 and "app.py:" in drawn.stdout, drawn.output
    ruff = [f"{sys.prefix}/bin/ruff", "check", "--isolated", "--quiet", "--line-length=120", "--select=E,F,W,I,B,UP"]
    subprocess.run([*ruff, "."], cwd="shop", check=True)


@pytest.mark.parametrize("template", [pytest.param(name, marks=MARKS.get(name, SLOW)) for name in TEMPLATES])
def test_a_readme_does_what_it_shows(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert new("shop", "--template", template).exit_code == 0
    with shell(tmp_path / "shop") as bash:
        for block in blocks(tmp_path / "shop" / "README.md"):
            for command, expected in typed(block.text):
                code, shown = bash.type(command)
                is_right = matches(expected, shown) if expected.strip() else code == 0
                assert is_right, f"$ {command} exits with {code}\n{shown}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["full"], "'full' exists and is not empty"),
        (["file"], "'file' is a file"),
        (["-shop"], "No such option"),
        (["a b"], "'a b' cannot be the name of a project"),
        ([""], "'' cannot be the name"),
        (["é"], "'é' cannot be the name"),
        (["x" * 65], "cannot be the name"),
        (["/"], "'/' cannot be the name"),
        (["shop", "--template", "evnts"], "no template 'evnts'. Did you mean 'events'?"),
        (["shop", "--template", "zzz"], "no template 'zzz'. There are: wordcount, events, table, spark, engine."),
    ],
)
def test_a_refused_command_changes_nothing(words: list[str], message: str, tmp_path: Path) -> None:
    Path("full").mkdir()
    Path("full/kept.txt").write_text("kept")
    Path("file").write_text("kept")
    done = new(*words)
    assert done.exit_code == 2 and message in done.output, done.output
    assert sorted(str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*")) == ["file", "full", "full/kept.txt"]


def test_an_empty_folder_and_the_current_one_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("shop").mkdir()
    monkeypatch.chdir("shop")
    assert new(".").exit_code == 0
    assert Path("README.md").read_text().startswith("# shop\n")
    assert new(".").exit_code == 2


def test_a_folder_that_cannot_be_made_is_an_error() -> None:
    done = new("nowhere/shop")
    assert done.exit_code == 1 and "Cannot create the project 'nowhere/shop': No such file" in done.output


def test_a_project_that_could_not_be_written_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit on the size of files is below that of one of the files, which is not the first."""
    Path("mine").mkdir()
    program = (
        "import resource, signal\n"
        "from megaflow.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))\n"
        "main()\n"
    )
    assert min(map(len, files_of("wordcount").values())) < 700
    for folder in ("shop", "mine"):
        done = subprocess.run([sys.executable, "-B", "-c", program, "new", folder], capture_output=True, text=True)
        assert done.returncode == 1 and f"Cannot create the project '{folder}': File too large" in done.stderr
    assert os.listdir() == ["mine"] and os.listdir("mine") == []


def test_the_skill_file_is_where_coding_agents_look() -> None:
    done = CliRunner().invoke(cli, ["skill"])
    path = Path(done.stdout.strip())
    assert path.parts[-5:] == ("megaflow", ".agents", "skills", "megaflow", "SKILL.md")
    [header] = re.findall(r"\A---\n(.*?)^---$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    fields = dict(line.split(": ", 1) for line in header.splitlines())
    assert list(fields) == ["name", "description"] and fields["name"] == path.parent.name
    assert 0 < len(fields["description"]) <= 1024 and ": " not in fields["description"], "it is plain YAML"
