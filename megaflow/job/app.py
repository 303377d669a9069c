"""Which function is run: FILE[:FUNCTION] from the command line, or a Python function from a notebook."""

import ast
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from megaflow.errors import UsageError
from megaflow.job.spec import AppFile, PickledFunction

FUNCTION = "dataflow"  # the default


def find_app(text: str) -> AppFile:
    """Return what FILE[:FUNCTION] names, without running the file. Raises UsageError if there is no such thing."""
    name, _, function = text.rpartition(":")
    if not name or not function.isidentifier():
        name, function = text, FUNCTION
    path = Path(name)
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [other.name for other in path.parent.glob("*.py")], n=1)
        hint = f"; did you mean {str(path.with_name(near[0]))!r}?" if near else ""
        raise UsageError(f"there is no file {name!r}{hint}")
    try:
        tree = ast.parse(path.read_bytes(), filename=name)
    except (SyntaxError, ValueError):
        return AppFile(str(path.resolve()), function)  # running it shows the error best
    names = list(top_level_names(tree.body))
    if function not in names and "*" not in names:
        raise UsageError(f"{name} has no function {function!r}{hint_among(function, functions_in(tree))}")
    return AppFile(str(path.resolve()), function)


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


def pickle_app(function: Callable[..., Any]) -> PickledFunction:
    """Return a function as it travels to the worker processes.

    One that they can import goes by its name, any other (from a notebook, a script, a test) with all it refers to.
    """
    if not callable(function):
        raise UsageError(f"the dataflow must be a function of one argument, the flow, not {function!r:.80}")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or can_import(module):  # cloudpickle sees to __main__
        return PickledFunction(cloudpickle.dumps(function), tuple(sys.path))
    cloudpickle.register_pickle_by_value(module)
    try:
        return PickledFunction(cloudpickle.dumps(function), tuple(sys.path))
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def can_import(module: ModuleType) -> bool:
    """Return whether another process with this sys.path finds this very module under its name."""
    path = None
    names = module.__name__.split(".")
    for length in range(1, len(names) + 1):
        name = ".".join(names[:length])
        found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and (not spec.has_location or spec.origin == getattr(module, "__file__", None))
