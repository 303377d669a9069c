"""Builds the wheel and the sdist and tries the wheel as a new user would: `make dist`.

    .venv/bin/python -m tests.dist [FOLDER]

1. `uv build` makes both, with the exact versions of constraints.txt. The sdist must give the same wheel as the clone.
2. The wheel has the files of `megaflow/` that git knows, the licenses and the metadata, and nothing else.
3. On each version of Python that megaflow supports, the wheel is installed into a new environment and used in an empty
   folder: the first program of README, `megaflow new` with each template, `megaflow demo`. A Python that neither this
   machine nor uv has is named and left out.

PySpark is linked from the running environment, as in `tests/other_pythons.py`, because a download takes minutes. All
other packages are those that the wheel asks for.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from megaflow.cli.project import TEMPLATES
from tests.other_pythons import OLDEST, ROOT, candidates, runs
from tests.test_docs import Block, blocks, matches, shell, typed

NEWEST = 14  # minor version of Python 3
UV = Path(sys.executable).with_name("uv")
LINKED = ("pyspark", "py4j")
OWN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTEST_CURRENT_TEST")  # of the running environment
NEEDED = (
    "megaflow/py.typed",
    "megaflow/__init__.pyi",
    "megaflow/.agents/skills/megaflow/SKILL.md",
    "megaflow/web/static/index.html",
    "megaflow/web/static/main.js",
    "megaflow/web/static/uplot/LICENSE",
    "megaflow/web/static/uplot/uPlot.iife.min.js",
    *(f"megaflow/cli/templates/{name}/{file}" for name in TEMPLATES for file in ("app.py", "README.md")),
)


class Built(NamedTuple):
    """The files of a release."""

    wheel: Path
    sdist: Path


def check(holds: bool, text: str) -> None:
    """End the program, or fail the test, unless this holds. Unlike `assert`, also with python -O."""
    if not holds:
        raise AssertionError(text)


def call(*words: str | Path, cwd: Path = ROOT) -> str:
    """Return what a command prints; fail with its errors."""
    settings = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(words, cwd=cwd, env=settings, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> Built:
    """Build the sdist, from it the wheel, and the same wheel from the clone."""
    words = ("build", "--quiet", "--build-constraints", ROOT / "constraints.txt", "--out-dir")
    call(UV, *words, folder, ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as other:
        call(UV, *words, other, "--wheel", ROOT)
        [direct] = Path(other).glob("*.whl")
        check(direct.name == wheel.name, f"the sdist builds {wheel.name}, the clone {direct.name}")
        check(direct.read_bytes() == wheel.read_bytes(), "the sdist and the clone build different wheels")
    return Built(wheel, sdist)


def check_files(built: Built) -> None:
    """Compare the files of the wheel with those of the sdist, and with those that git knows."""
    with zipfile.ZipFile(built.wheel) as opened:
        found = set(opened.namelist())
    about = {name.partition("/")[2] for name in found if not name.startswith("megaflow/")}
    licenses = {"licenses/LICENSE", "licenses/megaflow/web/static/uplot/LICENSE"}
    check(about == {"METADATA", "WHEEL", "entry_points.txt", "RECORD", *licenses}, f"of the wheel's metadata: {about}")
    found = {name for name in found if name.startswith("megaflow/")}
    check(found.issuperset(NEEDED), f"the wheel lacks {sorted(set(NEEDED) - found)}")
    with tarfile.open(built.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    there = {name for name in packed if name.startswith("megaflow/")}
    check(found == there, f"in the wheel or the sdist alone: {sorted(found ^ there)}")
    if (ROOT / ".git").exists():
        known = set(call("git", "ls-files", "--cached", "megaflow").splitlines())
        check(found == known, f"in the wheel or in git alone: {sorted(found ^ known)}")


def make_environment(python: str, environment: Path) -> Path:
    """Make an environment of a Python that is here or that uv downloads, and return it."""
    call(UV, "venv", "--quiet", "--python", python, environment)
    return environment


def install(built: Built, environment: Path) -> Path:
    """Install the wheel into an environment, and return its folder of programs."""
    [site] = environment.glob("lib/python3.*/site-packages")
    for distribution in map(metadata.distribution, LINKED):
        for name in {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}:
            original = Path(str(distribution.locate_file(name)))
            if name.endswith(".dist-info"):
                shutil.copytree(original, site / name)  # uv follows no link to it
            else:
                (site / name).symlink_to(original)
    words = ("pip", "install", "--quiet", "--python", environment / "bin" / "python")
    call(UV, *words, "--constraints", ROOT / "constraints.txt", built.wheel, "pytest")
    return environment / "bin"


def first_program() -> list[Block]:
    """Return the blocks of README that belong to its first program."""
    text = (ROOT / "README.md").read_text("utf-8")
    titles = "A program", "Four things to try"
    begin, end = (text.count("\n", 0, text.index(f"\n## {title}\n")) + 2 for title in titles)
    return [block for block in blocks(ROOT / "README.md") if begin < block.line < end]


def try_out(built: Built, programs: Path, folder: Path, demo: bool) -> None:
    """Use the installed wheel in a folder, with nothing of the clone in reach."""
    folder.mkdir()
    with shell(folder, programs) as bash:

        def type(command: str, expected: str = "") -> str:
            code, shown = bash.type(command)
            good = matches(expected, shown) if expected.strip() else code == 0
            check(good, f"$ {command}\n{shown}exit code {code}")
            return shown

        type(f"unset {' '.join(OWN)}")
        where = type("python -c 'import megaflow, sys; sys.stdout.write(megaflow.__file__)'")
        check(Path(where).is_relative_to(programs.parent), f"megaflow is imported from {where}")
        version = built.wheel.name.split("-")[1]
        type("megaflow --version", f"megaflow, version {version}")
        for block in first_program():
            if block.language == "python":
                (folder / "rides.py").write_text(block.text, encoding="utf-8")
            for command, expected in typed(block.text) if block.language == "console" else ():
                type(command, expected)
        for template in TEMPLATES:
            type(f"megaflow new my-{template} --template {template}")
        type("cd my-wordcount && python -m pytest -q && cd ..")
        if demo:
            shown = type("megaflow demo")
            check("moved" in shown, f"the demo moved nothing:\n{shown}")


def main(folder: str = "dist") -> int:
    out = Path(folder).resolve()
    for old in (*out.glob("megaflow-*.whl"), *out.glob("megaflow-*.tar.gz")):
        old.unlink()
    built = build(out)
    check_files(built)
    print(f"built {built.sdist.name} and {built.wheel.name} in {out}", flush=True)
    for version in (f"3.{minor}" for minor in range(OLDEST, NEWEST + 1)):
        python = next((each for each in candidates(version) if runs(each, version)), version)
        with tempfile.TemporaryDirectory() as made:
            try:
                environment = make_environment(python, Path(made) / "environment")
            except AssertionError as error:
                reason = str(error).splitlines()[-1].strip()
                print(f"not tried on Python {version}, which is not here: {reason}", file=sys.stderr, flush=True)
                continue
            try_out(built, install(built, environment), Path(made) / "work", demo=True)
        print(f"the wheel works on Python {version}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
