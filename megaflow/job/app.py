"""FILE[:FUNCTION] or MODULE[:FUNCTION] on the command line: which function it names, found without running anything.

A module is looked for in the current directory first, as `python -m` does, and then where Python looks.
"""

import ast
import difflib
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from megaflow.errors import UsageError
from megaflow.job.spec import AppFile

FUNCTION = "dataflow"  # the default


def find_app(text: str) -> AppFile:
    """Return what FILE[:FUNCTION] or MODULE[:FUNCTION] names, without running it. Raises UsageError."""
    name, _, function = text.rpartition(":")
    if not name or not function.isidentifier():
        name, function = text, FUNCTION
    path, module = Path(name), ""
    if not path.is_file():
        if not is_module_name(name):
            near = difflib.get_close_matches(path.name, [other.name for other in path.parent.glob("*.py")], n=1)
            hint = f"; did you mean {str(path.with_name(near[0]))!r}?" if near else ""
            raise UsageError(f"there is no file {name!r}{hint}")
        path, module = find_module(name), name
    try:
        tree = ast.parse(path.read_bytes(), filename=name)
    except (SyntaxError, ValueError):
        return AppFile(str(path.resolve()), function, module)  # running it shows the error best
    names = list(top_level_names(tree.body))
    if function not in names and "*" not in names:
        raise UsageError(f"{name} has no function {function!r}{hint_among(function, functions_in(tree))}")
    check_is_function(tree, name, function)
    check_takes_flow(tree, name, function)
    return AppFile(str(path.resolve()), function, module)


def is_module_name(name: str) -> bool:
    """Tell whether a module can be meant: dotted words, and no file.

    >>> is_module_name("pkg.app"), is_module_name("app.py"), is_module_name("apps/app")
    (True, False, False)
    """
    return all(part.isidentifier() for part in name.split(".")) and not name.endswith(".py")


def find_module(name: str) -> Path:
    """Return the source file of a module, which is not imported, nor are its packages. Raises UsageError."""
    places: Sequence[str] = [os.getcwd(), *filter(None, sys.path)]
    package, origin = "", None
    for part in name.split("."):
        whole = f"{package}.{part}" if package else part
        rest = name.removeprefix(whole)
        found = find_part(whole, places)
        if found is None:
            where = f"the package {package!r}" if package else f"{os.getcwd()}, or where Python looks,"
            there = [f"{package}.{each.name}" if package else each.name for each in pkgutil.iter_modules(places[:1])]
            near = difflib.get_close_matches(whole, there, n=1)
            hint = f"; did you mean {near[0] + rest!r}?" if near else ""
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
    """Return a module's file, if it has one, and where the modules of a package are; None if no place has it."""
    below: list[str] = []  # of a package without a file, which may have several folders
    for place in places:
        importer = pkgutil.get_importer(place)
        spec = None if importer is None else importer.find_spec(name, None)
        if spec is not None and spec.loader is not None:
            return spec.origin, [*(spec.submodule_search_locations or ())]
        if spec is not None:
            below += spec.submodule_search_locations or ()
    return (None, below) if below else None


def check_is_function(tree: ast.Module, name: str, function: str) -> None:
    """Raise UsageError if the name is, by its last statement at the top level, plainly no function."""
    for node in reversed(tree.body):
        match node:
            case ast.Assign(targets=[ast.Name(id=bound)], value=value) | ast.AnnAssign(
                target=ast.Name(id=bound), value=value
            ) if bound == function:
                is_value = isinstance(value, (ast.Constant, ast.JoinedStr, ast.List, ast.Tuple, ast.Set, ast.Dict))
            case ast.AsyncFunctionDef(name=bound) if bound == function:
                is_value = True
            case _ if function in top_level_names([node]):
                return
            case _:
                continue
        if is_value:
            raise UsageError(
                f"{name}:{function} in line {node.lineno} is not a function. Name a function that builds the "
                "dataflow, as in def dataflow(flow)."
            )
        return


def check_takes_flow(tree: ast.Module, name: str, function: str) -> None:
    """Raise UsageError if the function cannot be called with a flow alone, with those of the file that can."""
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
    """Tell whether it can be called with one argument; True where a decorator may have changed that."""
    given, places = function.args, len(places_of(function))
    has_room = places > 0 or given.vararg is not None
    needs_more = places - len(given.defaults) > 1 or None in given.kw_defaults
    return bool(function.decorator_list) or (has_room and not needs_more)


def places_of(function: ast.FunctionDef) -> list[str]:
    """Return the names of the arguments that go by place."""
    return [place.arg for place in (*function.args.posonlyargs, *function.args.args)]


def hint_among(wrong: str, names: list[str]) -> str:
    """Return the end of a sentence: the name that was perhaps meant, and which there are.

    >>> hint_among("dataflw", ["count", "dataflow"])
    "; did you mean 'dataflow'? There are: count, dataflow"
    """
    near = difflib.get_close_matches(wrong, names, n=1)
    question = f"; did you mean {near[0]!r}?" if near else "."
    return f"{question} There are: {', '.join(names) or 'none'}"


def functions_in(tree: ast.Module) -> list[str]:
    """Return the names of the functions a module defines."""
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def top_level_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield each name that statements of a module bind, also inside if, try and with; "*" for an import of all."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                pass  # what they bind is their own
            case _:
                yield from top_level_names(ast.iter_child_nodes(node))
