"""FILE[:FUNCTION] or MODULE[:FUNCTION] on the command line: finds the function that it names, without running code.

A module is looked up in the current directory first, like `python -m`, and then on Python's path.
"""

import ast
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from megaflow.errors import UsageError, naming, similar
from megaflow.job.spec import AppFile

FUNCTION = "dataflow"  # the default
PROGRAM = "app.py"  # of a project


def find_app(text: str) -> AppFile:
    """Return the function that FILE[:FUNCTION] or MODULE[:FUNCTION] names, without running it. Raises UsageError."""
    name, _, function = text.rpartition(":")
    if not name or not function.isidentifier():
        name, function = text, FUNCTION
    path, module = Path(name), ""
    failing = naming(UsageError, f"Cannot read the program {name!r}")
    with failing:
        is_file, is_folder = path.is_file(), path.is_dir()
    if not is_file:
        if is_folder and not is_module_name(name):
            hint = f", as in {str(path / PROGRAM)!r}" if (path / PROGRAM).is_file() else ""
            raise UsageError(f"{name!r} is a folder: name a file in it{hint}.")
        if not is_module_name(name):
            near = similar(path.with_suffix(".py").name, [other.name for other in path.parent.glob("*.py")])
            hint = f"; did you mean {str(path.with_name(near))!r}?" if near else ""
            raise UsageError(f"there is no file {name!r}{hint}")
        path, module = find_module(name), name
    with failing:
        source = path.read_bytes()
    try:
        tree = ast.parse(source, filename=name)
    except (SyntaxError, ValueError):
        return AppFile(str(path.resolve()), function, module)  # running it shows the error best
    names = list(top_level_names(tree.body))
    if function not in names and "*" not in names:
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        raise UsageError(f"{name} has no function {function!r}{hint_among(function, functions)}")
    check_is_function(tree, name, function)
    check_takes_flow(tree, name, function)
    return AppFile(str(path.resolve()), function, module)


def is_module_name(name: str) -> bool:
    """Return whether the text may name a module: dotted words, not a file.

    >>> is_module_name("pkg.app"), is_module_name("app.py"), is_module_name("apps/app")
    (True, False, False)
    """
    return all(part.isidentifier() for part in name.split(".")) and not name.endswith(".py")


def find_module(name: str) -> Path:
    """Return the source file of a module without importing it or its packages. Raises UsageError."""
    places: Sequence[str] = [os.getcwd(), *filter(None, sys.path)]
    package, origin = "", None
    for part in name.split("."):
        whole = f"{package}.{part}" if package else part
        rest = name.removeprefix(whole)
        found = find_part(whole, places)
        if found is None:
            where = f"the package {package!r}" if package else f"{os.getcwd()}, or where Python looks,"
            there = [f"{package}.{each.name}" if package else each.name for each in pkgutil.iter_modules(places[:1])]
            near = similar(whole, there)
            hint = f"; did you mean {near + rest!r}?" if near else ""
            raise UsageError(f"there is no file {name!r}, and {where} has no module {whole!r}{hint}")
        origin, below = found
        if rest and not below:
            hint = f"did you mean {whole}:{rest[1:]}?"
            raise UsageError(f"{whole!r} is a module, not a package, so {name!r} is not in it; {hint}")
        package, places = whole, below
    if origin is None or not origin.endswith(".py"):
        raise UsageError(f"the module {name!r} has no Python source")
    return Path(origin)


def find_part(name: str, places: Iterable[str]) -> tuple[str | None, list[str]] | None:
    """Return a module's file, if any, and the folders of a package's modules. None if no place has it."""
    below: list[str] = []  # folders of a package without a file; there may be several
    for place in places:
        importer = pkgutil.get_importer(place)
        spec = None if importer is None else importer.find_spec(name, None)
        if spec is not None and spec.loader is not None:
            return spec.origin, [*(spec.submodule_search_locations or ())]
        if spec is not None:
            below += spec.submodule_search_locations or ()
    return (None, below) if below else None


def check_is_function(tree: ast.Module, name: str, function: str) -> None:
    """Raise UsageError if the last top-level statement that binds the name clearly makes it something else."""
    node = next((node for node in reversed(tree.body) if function in top_level_names([node])), None)
    match node:
        case ast.Assign(targets=[ast.Name(id=bound)], value=value) | ast.AnnAssign(
            target=ast.Name(id=bound), value=value
        ):
            kinds = (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict)
            is_value = bound == function and isinstance(value, kinds)
        case _:
            is_value = isinstance(node, ast.AsyncFunctionDef)
    if node is not None and is_value:
        raise UsageError(
            f"{name}:{function} in line {node.lineno} is not a function. Name a function that builds the "
            "dataflow, as in def dataflow(flow)."
        )


def check_takes_flow(tree: ast.Module, name: str, function: str) -> None:
    """Raise UsageError if the function cannot be called with a flow alone. The error names functions that can."""
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    chosen = defined.get(function)
    if chosen is None or takes_one(chosen):
        return
    fitting = [each for each in defined.values() if takes_one(each)]
    meant = [each for each in fitting if each.name == FUNCTION or places_of(each)[:1] == ["flow"]]
    names = " or ".join(f"{name}:{each.name}" for each in meant or fitting)
    hint = f"; did you mean {names}?" if names else f", and {name} defines none"
    raise UsageError(
        f"{name}:{function} takes ({ast.unparse(chosen.args)}), not only the flow; name a function that builds "
        f"the dataflow, as in dataflow(flow){hint}"
    )


def takes_one(function: ast.FunctionDef) -> bool:
    """Return whether the function can be called with one argument. True if a decorator may have changed that."""
    given, places = function.args, len(places_of(function))
    has_room = places > 0 or given.vararg is not None
    needs_more = places - len(given.defaults) > 1 or None in given.kw_defaults
    return bool(function.decorator_list) or (has_room and not needs_more)


def places_of(function: ast.FunctionDef) -> list[str]:
    """Return the names of the positional arguments."""
    return [place.arg for place in (*function.args.posonlyargs, *function.args.args)]


def hint_among(wrong: str, names: list[str]) -> str:
    """Return the end of a sentence: a name that was perhaps meant, and all available names.

    >>> hint_among("dataflw", ["count", "dataflow"])
    "; did you mean 'dataflow'? There are: count, dataflow"
    """
    near = similar(wrong, names)
    question = f"; did you mean {near!r}?" if near else "."
    return f"{question} There are: {', '.join(names) or 'none'}"


def top_level_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that a module's statements bind, also inside if, try and with; "*" for a star import."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass  # these bind names in a scope of their own
            case _:
                yield from top_level_names(ast.iter_child_nodes(node))
