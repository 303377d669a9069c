"""The layers of pyproject.toml hold, and every module can be imported first."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Imports each module named on the command line while no other module of megaflow is loaded, except those that the
# package itself loads: Python imports the package first in any case. Libraries stay loaded between two attempts,
# because only cycles among our own modules matter.
IMPORT_EACH_FIRST = """
import importlib, json, sys, traceback
failures = {}
import megaflow
always = set(sys.modules)
for name in sys.argv[1:]:
    for loaded in [m for m in sys.modules if m.startswith("megaflow.") and m not in always]:
        del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except BaseException:
        failures[name] = traceback.format_exc()
sys.stdout.write(json.dumps(failures))
"""

# Imports each module by `import a.b.c as module`, which goes from attribute to attribute, after every name of the
# front doors is loaded: a function must not hide the module or package with its name.
IMPORT_EACH_BY_ATTRIBUTES = """
import json, sys
import megaflow, megaflow.timely
for door in megaflow, megaflow.timely:
    for name in door.__all__:
        getattr(door, name)
hidden = []
for name in sys.argv[1:]:
    try:
        exec(f"import {name} as module")
    except ImportError:
        module = None
    if module is not sys.modules.get(name):
        hidden.append(name)
sys.stdout.write(json.dumps(hidden))
"""

LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def run_python(code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `code` in a new interpreter, at the root of the project."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=840, check=False
    )


def module_names() -> list[str]:
    """Return every module of megaflow by its full name, except `__main__`, which runs the command line.

    The templates of `megaflow new` are programs of users, whose modules import each other by their bare names.
    """
    names = []
    for path in sorted((ROOT / "megaflow").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__" and "templates" not in parts:
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_imports_keep_every_contract_of_the_floor_plan() -> None:
    linted = run_python(LINT_IMPORTS, "--no-cache")
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.slow
def test_each_module_can_be_imported_first() -> None:
    imported = run_python(IMPORT_EACH_FIRST, *module_names())
    assert imported.returncode == 0, imported.stdout + imported.stderr
    failures = json.loads(imported.stdout)
    assert not failures, "\n".join(f"importing {name} first:\n{text}" for name, text in failures.items())


def test_no_module_is_hidden_by_something_else_of_its_name() -> None:
    imported = run_python(IMPORT_EACH_BY_ATTRIBUTES, *module_names())
    assert imported.returncode == 0, imported.stdout + imported.stderr
    assert json.loads(imported.stdout) == []


def test_importing_megaflow_and_its_command_line_loads_no_pyspark() -> None:
    names = [name for name in ("megaflow", "megaflow.cli.main") if name in module_names()]
    imports = "".join(f"import {name}\n" for name in names)
    loaded = run_python(f"{imports}import sys\nsys.exit('pyspark' in sys.modules or 'py4j' in sys.modules)")
    assert loaded.returncode == 0, loaded.stderr or f"importing {' and '.join(names)} loads pyspark"
