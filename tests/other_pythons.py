"""Runs pytest with the given arguments on every other installed version of Python.

    .venv/bin/python tests/other_pythons.py [--newest] -q -m 'not slow'

With --newest it runs on the newest of these alone.

Each version gets a virtual environment of its own, such as `.venv-3.13`, with the versions of constraints.txt. It is
made once, and again when pyproject.toml or constraints.txt changes. PySpark is linked from the running environment,
because it is pure Python and takes minutes to build. If a version's packages are not available, the version is named
on standard error and left out. The exit code is 1 if a test fails.
"""

import glob
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = 11  # minor version of Python 3, as in requires-python
NEWEST = 19
COMPILED = "matplotlib,numpy,pandas,psycopg-binary,pyarrow"  # used only as wheels, because building them takes too long
LINKED = ("pyspark", "py4j")


def candidates(version: str) -> Iterator[str]:
    """Return the places where a version may be: on PATH, and where pyenv puts it."""
    found = shutil.which(f"python{version}")
    yield from [found] if found else []
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    yield from sorted(glob.glob(f"{pyenv}/versions/{version}*/bin/python{version}"))


def runs(python: str, version: str) -> bool:
    """Whether the program is that version and runs. A shim of pyenv may not."""
    code = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def requirements(project: Path) -> list[str]:
    """Return the packages that a developer installs, except megaflow itself and those that are linked."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    extras = table["optional-dependencies"]
    own = f"{table['name']}["  # in `dev`: the extras of users that developers install, too
    [named] = [each for each in extras["dev"] if each.startswith(own)]
    names = named.removeprefix(own).rstrip("]").split(",")
    return [
        each
        for each in chain(table["dependencies"], extras["dev"], *(extras[name] for name in names))
        if not each.startswith((*LINKED, table["name"]))
    ]


def link(environment: Path) -> None:
    """Make the packages that are the same for every version available in the environment."""
    [site] = environment.glob("lib/python3.*/site-packages")
    for name in LINKED:
        spec = find_spec(name)
        assert spec is not None and spec.origin is not None, name
        (site / name).symlink_to(Path(spec.origin).parent)


def provide(python: str, environment: Path) -> str:
    """Make the environment, unless it exists; return the error, if any."""
    stamp = environment / ".installed"
    project, constraints = ROOT / "pyproject.toml", ROOT / "constraints.txt"
    if stamp.exists() and stamp.stat().st_mtime >= max(each.stat().st_mtime for each in (project, constraints)):
        return ""
    print(f"installing into {environment.name} (once)", flush=True)
    pip = [environment / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [python, "-m", "venv", "--clear", environment],
        [*pip, "--no-compile", "--only-binary", COMPILED, "--constraint", constraints, *requirements(project)],
        [*pip, "--no-deps", "--editable", ROOT],
    ):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
    link(environment)
    stamp.touch()
    return ""


def main(*words: str) -> int:
    only_newest = words[:1] == ("--newest",)
    failed, tested = [], []
    for version in (f"3.{minor}" for minor in range(NEWEST, OLDEST - 1, -1) if minor != sys.version_info.minor):
        if only_newest and tested:
            break
        environment = ROOT / f".venv-{version}"
        problem = ""
        for python in (python for python in candidates(version) if runs(python, version)):
            problem = provide(python, environment)
            if not problem:
                print(f"on Python {version}:", flush=True)
                tested.append(version)
                command = [environment / "bin" / "python", "-m", "pytest", *words[only_newest:]]
                if subprocess.run(command, cwd=ROOT, check=False).returncode:
                    failed.append(version)
                break
        if problem:
            print(f"not tested on Python {version}, which is installed: {problem}", file=sys.stderr, flush=True)
    if failed:
        print(f"tests fail on Python {' and '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
