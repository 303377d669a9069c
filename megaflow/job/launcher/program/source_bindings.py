"""A module's file as it is now: its compiled code and the meanings of its names, without running it.

`megaflow.job.launcher.program.changed_modules` compares this with the module in memory.

1. A name has a meaning here only if exactly one statement binds it, at the top level of the module or of a class. A
   name bound in an `if`, in a loop or twice has none: only running the module would show its value.
2. Literals are constants and their arithmetic, and tuples, lists, sets and dicts of them. The compiler folds the
   arithmetic, within its own limits, so `9 ** 9 ** 9` costs nothing.
3. If a module mentions `globals` or `exec`, none of its names has a meaning here.
4. The block under `if __name__ == "__main__":` does not run in an imported module, and is left out.
"""

import ast
import dis
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from megaflow.job.app import top_level_names
from megaflow.job.program_code import digest
from megaflow.quick_dataclass import dataclass
from megaflow.timely.order import grouped

MODULE: Final = "<module>"  # name of the code that an import runs
READERS: Final = {"get", "keys", "values", "items", "copy", "index", "count", "union", "issubset", "issuperset"}
READING_CALLS: Final = {"len", "sorted", "set", "list", "dict", "tuple", "sum", "min", "max", "any", "all", "zip"}
_LOADS: Final = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
_CONSTANTS: Final = ("LOAD_CONST", "RETURN_CONST", "LOAD_SMALL_INT")
_STORES: Final = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR")


@dataclass(frozen=True, slots=True)
class Literal:
    """Meaning of a name bound to a literal."""

    value: Any


@dataclass(frozen=True, slots=True)
class Definition:
    """Meaning of a name bound to a function or a class without a decorator."""

    kind: type  # FunctionType or type
    qualname: str


@dataclass(frozen=True, slots=True)
class Imported:
    """Meaning of a name bound by `from module import name`."""

    module: str
    name: str


Meaning = Literal | Definition | Imported | None


@dataclass(frozen=True, slots=True)
class ModuleSource:
    """Content of a module's file."""

    digest: str  # of the file's bytes
    package: str
    codes: Mapping[str, list[CodeType]]  # by qualified name; MODULE: what an import runs
    names: Mapping[str, list[ast.stmt | None]]  # by qualified name: binding statements; None: another kind
    changers: Mapping[str, set[str]]  # by name: functions that may change a container of that name in place


def read_source(file: str, package: str) -> ModuleSource:
    """Read and compile a module's file. Raises OSError; SyntaxError or ValueError if it cannot be compiled."""
    data = Path(file).read_bytes()
    tree = ast.parse(data, file)
    codes = grouped((code.co_qualname, code) for code in codes_in(compile(tree, file, "exec", dont_inherit=True)))
    tree.body = [each for each in tree.body if not _is_for_main(each)]
    codes[MODULE] = [compile(tree, file, "exec", dont_inherit=True)]
    names: dict[str, list[ast.stmt | None]] = defaultdict(list)
    for name, statement in _bindings("", tree.body):
        if name == "*":
            for several in names.values():
                several.append(None)
        names[name].append(statement)
    if any({"globals", "exec"} & loaded_names(code) for each in codes.values() for code in each):
        names.clear()
    changers: dict[str, set[str]] = defaultdict(set)
    for name, function in _changes(tree, MODULE):
        changers[name].add(function)
    return ModuleSource(digest(data), package, codes, names, changers)


def meaning(source: ModuleSource, qualname: str) -> Meaning:
    """Return the meaning of a name; None if only running the module would show it."""
    match source.names.get(qualname):
        case [ast.Assign(value=ast.Lambda()) | ast.AnnAssign(value=ast.Lambda())]:
            return Definition(FunctionType, ".".join([*qualname.split(".")[:-1], "<lambda>"]))
        case [ast.Assign(value=value)] | [ast.AnnAssign(value=ast.expr() as value)]:
            return _literal(value)
        case [ast.FunctionDef(decorator_list=[]) | ast.AsyncFunctionDef(decorator_list=[])]:
            return Definition(FunctionType, qualname)
        case [ast.ClassDef(decorator_list=[])]:
            return Definition(type, qualname)
        case [ast.ImportFrom(module=module, names=names, level=level)]:
            parts = source.package.split(".")[: 1 - level or None] if level else []
            original = next((each.name for each in names if (each.asname or each.name) == qualname), qualname)
            return Imported(".".join([*parts, *([module] if module else [])]), original)
    return None


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and all code objects in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


def run_with(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object and those that may run with it: not the functions that a module or class defines."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            is_defined = each.co_flags & CO_OPTIMIZED and not each.co_name.startswith("<")
            if code.co_flags & CO_OPTIMIZED or not is_defined:
                yield from run_with(each)


def globals_of(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function and its inner functions read."""
    for each in codes_in(code):
        yield from (step.argval for step in dis.get_instructions(each) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


def loaded_names(code: CodeType) -> set[str]:
    """Return the names of variables and attributes that code reads, without its inner functions."""
    return {step.argval for step in dis.get_instructions(code) if step.opname in _LOADS}


def stored_names(code: CodeType) -> set[str]:
    """Return the globals and attributes that code sets or deletes, without its inner functions.

    For names that a module's own code binds, see `ModuleSource.names`.
    """
    stores = _STORES if code.co_flags & CO_OPTIMIZED else _STORES[2:]
    return {step.argval for step in dis.get_instructions(code) if step.opname in stores}


def is_same_code(one: CodeType, other: CodeType) -> bool:
    """Return whether two code objects do the same: lines, comments and docstrings may differ.

    >>> first, second = (compile("\\n" * n + "def f(x): return x + 1", "f.py", "exec") for n in (0, 9))
    >>> is_same_code(first, second), is_same_code(first, compile("def f(x): return x + 1.0", "f.py", "exec"))
    (True, False)
    """
    return _traits(one) == _traits(other) and all(
        is_same_code(mine, its) if isinstance(mine, CodeType) and isinstance(its, CodeType) else is_same(mine, its)
        for mine, its in zip(_constants(one), _constants(other), strict=True)
    )


def is_same(one: Any, other: Any) -> bool:
    """Return whether two literals are the same: 1, 1.0 and True are not.

    >>> is_same([1, (float("nan"),)], [1, (float("nan"),)]), is_same({"a": 1}, {"a": True})
    (True, False)
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return is_same([*one.items()], [*other.items()])
    if isinstance(one, set | frozenset):
        return {(type(each), each) for each in one} == {(type(each), each) for each in other}
    return repr(one) == repr(other) if isinstance(one, float | complex) else bool(one == other)


def _traits(code: CodeType) -> tuple[Any, ...]:
    return (
        code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags,
        code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_exceptiontable, len(code.co_consts),
    )  # fmt: skip


def _constants(code: CodeType) -> list[Any]:
    """Return the constants, without a docstring."""
    constants = [*code.co_consts]
    if constants and isinstance(constants[0], str) and code.co_flags & CO_OPTIMIZED and not _reads_first(code):
        constants[0] = None
    return constants


def _reads_first(code: CodeType) -> bool:
    return any(step.opname == "LOAD_CONST" and step.arg == 0 for step in dis.get_instructions(code))


def _is_for_main(statement: ast.stmt) -> bool:
    match statement:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), orelse=[]):
            return True
    return False


def _bindings(prefix: str, body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt | None]]:
    """Yield each name that the statements bind, with the statement if the binding is plain."""
    for statement in body:
        names = [name for name in top_level_names([statement]) if not isinstance(statement, ast.ClassDef)]
        match statement:
            case ast.ClassDef(name=name, body=inner):
                yield prefix + name, statement
                yield from _bindings(f"{prefix}{name}.", inner)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ImportFrom():
                yield from ((name if name == "*" else prefix + name, statement) for name in names)
            case ast.Assign(targets=[ast.Name()]) | ast.AnnAssign(target=ast.Name(), value=ast.expr()):
                yield from ((prefix + name, statement if len(names) == 1 else None) for name in names)
            case ast.AnnAssign(value=None):
                pass
            case ast.Delete(targets=targets):
                yield from ((prefix + each.id, None) for each in targets if isinstance(each, ast.Name))
            case _:
                yield from ((name if name == "*" else prefix + name, None) for name in names)


def _literal(node: ast.expr) -> Literal | None:
    try:
        return Literal(_value(node))
    except (ValueError, TypeError):  # for instance, a list as a dict key
        return None


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=parts):
            return tuple(map(_value, parts))
        case ast.List(elts=parts):
            return [*map(_value, parts)]
        case ast.Set(elts=parts):
            return {*map(_value, parts)}
        case ast.Call(func=ast.Name(id="set" | "dict" | "list" as kind), args=[], keywords=[]):
            return {"set": set, "dict": dict, "list": list}[kind]()
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.UnaryOp() | ast.BinOp():
            steps = [*dis.get_instructions(compile(ast.Expression(node), "", "eval", dont_inherit=True))]
            constants = [each.argval for each in steps if each.opname in _CONSTANTS]
            if len(constants) == 1 and len(steps) <= 3:
                return constants[0]
    raise ValueError("not a literal")


def _changes(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
    """Yield (name, outermost function) for each use of a variable or attribute in it that may do more than read."""
    for child in ast.iter_child_nodes(node):
        if not _only_reads(node, child):
            match child:
                case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                    yield name, function
        if function == MODULE and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _changes(child, child.name)
        else:
            yield from _changes(child, function)


def _only_reads(node: ast.AST, part: ast.AST) -> bool:
    """Return whether an expression or statement can only read from a container that is one of its parts."""
    match node:
        case ast.Subscript(value=value, ctx=ast.Load()):
            return value is part
        case ast.Attribute(attr=attribute):
            return attribute in READERS
        case ast.Call(func=ast.Name(id=name)):
            return name in READING_CALLS
        case ast.For(iter=used) | ast.If(test=used) | ast.While(test=used) | ast.IfExp(test=used):
            return used is part
    return isinstance(node, ast.Compare | ast.BinOp | ast.UnaryOp | ast.FormattedValue | ast.comprehension | ast.Expr)
