"""Faults planted in megaflow's code: a piece of syntax inside a named class or function is replaced.

1. A fault names a class or function by its qualified name (`Router._install`), in any module. So modules may move.
2. It gives the piece by its syntax. So layout and comments may change. `...` in the piece stands for any expression.
3. A name in the piece that the definition does not use stands for one of its local variables. So these may be renamed:
   the wrong code takes over their new names.
4. The piece must be there once. The wrong code may only use names that it can see, and attributes that megaflow has.
   Otherwise a fault that raises NameError would pass for one that a simulation finds.
5. A fault that breaks rule 4 raises LostFault, which says where to look and what to do.
6. No file is written. The import system compiles a module with a fault from its changed tree.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_INSIGNIFICANT = {"ctx", "kind", "type_comment"}  # fields of a syntax node
_BUILTINS = frozenset(vars(builtins))
_ATTRIBUTES_OF_BUILTINS = frozenset[str]().union(
    *(dir(each) for each in vars(builtins).values() if isinstance(each, type))
)
_WHAT_TO_DO = (
    "If the code only has new words, use them in the fault's `where`, `right` and `wrong`. If another definition does "
    "this now, name that one. If this mistake can no longer be made, delete the fault."
)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fault:
    """Piece of code to make wrong: an expression, or consecutive statements."""

    where: str  # qualified name of a class or function
    right: str
    wrong: str
    more: tuple[Fault, ...] = ()  # further changes, if one is not enough


class LostFault(AssertionError):
    """A fault whose place is not in the code, or is there several times, or lacks a name that the wrong code uses."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(f"The planted fault in '{fault.where}' does not fit the code: {why}\n{_WHAT_TO_DO}")


class Planter(MetaPathFinder):
    """Import hook that plants faults in the modules imported from now on."""

    def __init__(self, fault: Fault) -> None:
        self._trees = planted(fault)
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._trees:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None and spec.origin is not None, fullname
        spec.loader = _Loader(fullname, spec.origin, self._trees[fullname])
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, tree: ast.Module) -> None:
        super().__init__(fullname, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


class Code:
    """The modules below a folder: their text, and their syntax trees as they are."""

    def __init__(self, folder: Path) -> None:
        self._root = folder.parent
        self._texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}
        self._definitions = {
            path: set(re.findall(r"(?:class|def) (\w+)", text)) for path, text in self._texts.items()
        }
        self.tree = cache(self.parse)
        self.words = cache(lambda: set(re.findall(r"\w+", " ".join(self._texts.values()))))

    def parse(self, path: Path) -> ast.Module:
        return ast.parse(self._texts[path])

    def defining(self, where: str) -> list[Path]:
        """Return the modules that may define this qualified name."""
        return [path for path, names in self._definitions.items() if names.issuperset(where.split("."))]

    def similar(self, where: str) -> list[str]:
        """Return qualified names that are like this one."""
        names = {name for path in self._texts for name, *_ in _definitions(self.tree(path))}
        last = where.rpartition(".")[2]
        return get_close_matches(where, names) or sorted(name for name in names if name.endswith(f".{last}"))

    def module_name(self, path: Path) -> str:
        return ".".join(path.relative_to(self._root).with_suffix("").parts).removesuffix(".__init__")


MEGAFLOW = Code(ROOT / "megaflow")


@dataclass(frozen=True)
class _Place:
    path: Path  # of the module
    tree: ast.Module
    line: int
    holder: Any  # a list of nodes, or the parent of a single one
    at: Any  # index in the list, or name of the field
    names: _Names
    renamed: Mapping[str, str]  # names in the fault -> local variables in the code


def planted(fault: Fault, code: Code = MEGAFLOW) -> dict[str, ast.Module]:
    """Return the trees of the modules that this fault changes, by their full names. Raise LostFault if it is lost."""
    parse, trees = cache(code.parse), {}
    for each in (fault, *fault.more):
        place, right, wrong = _fit(each, code, parse)
        if isinstance(place.holder, list):
            place.holder[place.at : place.at + len(right)] = wrong
        else:
            setattr(place.holder, place.at, wrong[0])
        trees[code.module_name(place.path)] = ast.fix_missing_locations(place.tree)
    return trees


def check_fits(fault: Fault, code: Code = MEGAFLOW) -> None:
    """Raise LostFault if this fault is lost."""
    for each in (fault, *fault.more):
        _fit(each, code, code.tree)


def faulty_copy(fault: Fault) -> ModuleType:
    """Return a copy of the module that this fault changes, with the fault. The modules in use do not change."""
    ((name, tree),) = planted(fault).items()
    module = ModuleType(name)
    exec(compile(tree, name, "exec", dont_inherit=True), vars(module))
    return module


def _fit(fault: Fault, code: Code, parse: Callable[[Path], ast.Module]) -> tuple[_Place, list[Any], list[Any]]:
    """Return the place, the right piece, and the wrong one with the local variables of the code."""
    right, wrong = _pieces(fault)
    found, closest = [], _Closest(fault.right)
    for path in code.defining(fault.where):
        tree = parse(path)
        for definition, function in (each for name, *each in _definitions(tree) if name == fault.where):
            names = _Names(tree, definition, function)
            for holder, at, nodes in _rows(definition, len(right)):
                renamed: dict[str, str] = {}
                if _are_alike(right, nodes, names, renamed):
                    found.append(_Place(path, tree, nodes[0].lineno, holder, at, names, renamed))
                closest.seen.append((f"{code.module_name(path)}, line {nodes[0].lineno}", nodes))
    if not closest.seen:
        similar = ", ".join(code.similar(fault.where)) or "none"
        raise LostFault(fault, f"there is no class or function of this name. Similar names: {similar}.")
    if not found:
        raise LostFault(fault, f"this is not in it: {fault.right}\n{closest}")
    if len(found) > 1:
        lines = ", ".join(f"{code.module_name(place.path)}, line {place.line}" for place in found)
        raise LostFault(fault, f"this is in it {len(found)} times, add code around it: {fault.right}\nSee {lines}.")
    (place,) = found
    for node in (each for piece in wrong for each in ast.walk(piece)):
        if isinstance(node, ast.Name):
            node.id = place.renamed.get(node.id, node.id)
    if unknown := _used_in(wrong) - place.names.all | _attributes_in(wrong) - code.words():
        raise LostFault(fault, f"the wrong code uses what is not there: {', '.join(sorted(unknown))}")
    return place, right, wrong


class _Names:
    """The names that a definition uses, and those of its module, which are no local variables."""

    def __init__(self, module: ast.Module, definition: ast.AST, function: ast.AST) -> None:
        """`function`: the outermost function that has the definition, or the definition itself."""
        self._used = _used(definition)
        self._global = _BUILTINS.union(*map(_bound, _outside_definitions(module)))
        self.all = self._global | _used(function)

    def are_alike(self, piece: str, found: str, renamed: dict[str, str]) -> bool:
        """Return whether a name of the code is that of the piece. Note it if it is a renamed local variable."""
        if piece in self._used:
            return piece == found
        others = {new for old, new in renamed.items() if old != piece}
        return found not in self._global | others and renamed.setdefault(piece, found) == found


@dataclass
class _Closest:
    """The code that is most like a piece."""

    right: str
    seen: list[tuple[str, Sequence[Any]]] = field(default_factory=list)

    def __str__(self) -> str:
        matcher, codes = SequenceMatcher(b=" ".join(self.right.split())), {}
        for where, nodes in self.seen:
            code = "; ".join(map(ast.unparse, nodes))
            matcher.set_seq1(code)
            codes[f"{where}: {code}"] = matcher.ratio()
        return f"Most like it is {max(codes, key=codes.__getitem__)}"


def _pieces(fault: Fault) -> tuple[list[Any], list[Any]]:
    """Parse both as lists of expressions if each is a single expression, else as statements."""
    parsed = ast.parse(fault.right).body, ast.parse(fault.wrong).body
    if all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in parsed):
        before, after = ([each.value for each in body if isinstance(each, ast.Expr)] for body in parsed)
        return before, after
    return parsed


def _definitions(
    node: ast.AST, prefix: str = "", function: ast.AST | None = None
) -> Iterator[tuple[str, Definition, ast.AST]]:
    """Yield each definition: its qualified name, the definition, and the outermost function around it, or itself."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child, function or child
            outermost = function or (None if isinstance(child, ast.ClassDef) else child)
            yield from _definitions(child, f"{prefix}{child.name}.", outermost)
        elif not isinstance(child, ast.expr):
            yield from _definitions(child, prefix, function)


def _rows(within: ast.AST, length: int) -> Iterator[tuple[Any, Any, list[Any]]]:
    """Yield all rows of so many nodes, with their places: (list, index of the first) or (parent, name of the field)."""
    for node in ast.walk(within):
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                rows = ((start, value[start : start + length]) for start in range(len(value) - length + 1))
                yield from ((value, start, row) for start, row in rows if hasattr(row[0], "lineno"))
            elif length == 1 and hasattr(value, "lineno"):
                yield node, name, [value]


def _are_alike(piece: Any, found: Any, names: _Names, renamed: dict[str, str]) -> bool:
    """Return whether code matches a piece, up to layout, comments, `...` and the names of local variables."""
    if isinstance(piece, ast.Constant) and piece.value is ...:
        return isinstance(found, ast.expr)
    if isinstance(piece, ast.Name) and isinstance(found, ast.Name):
        return names.are_alike(piece.id, found.id, renamed)
    if isinstance(piece, ast.AST):
        fields = [each for each in piece._fields if each not in _INSIGNIFICANT]
        return type(piece) is type(found) and all(
            _are_alike(getattr(piece, each, None), getattr(found, each, None), names, renamed) for each in fields
        )
    if isinstance(piece, list):
        return len(piece) == len(found or ()) and all(
            _are_alike(one, other, names, renamed) for one, other in zip(piece, found)
        )
    return bool(piece == found)


def _used(within: ast.AST) -> set[str]:
    """Return the names of variables and parameters."""
    nodes = list(ast.walk(within))
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    return parameters | {node.id for node in nodes if isinstance(node, ast.Name)}


def _used_in(pieces: Sequence[ast.AST]) -> set[str]:
    """Return the names that pieces of code use without binding them."""
    nodes = [node for piece in pieces for node in ast.walk(piece)]
    return set[str]().union(*map(_used, pieces)).difference(*map(_bound, nodes))


def _attributes_in(pieces: Sequence[ast.AST]) -> set[str]:
    nodes = (node for piece in pieces for node in ast.walk(piece))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} - _ATTRIBUTES_OF_BUILTINS


def _bound(node: ast.AST) -> set[str]:
    """Return the names that this node binds."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return {name}
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {each.asname or each.name.partition(".")[0] for each in aliases}
    return set()


def _outside_definitions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a module up to its definitions, without their bodies."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, Definition):
            yield from _outside_definitions(child)
