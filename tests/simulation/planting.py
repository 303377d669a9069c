"""Faults planted in the code of megaflow: a piece of syntax, found by the name of what it is in, is replaced.

A fault names a class or function by its qualified name (`Router._install`), whichever module defines it, and the piece
by its syntax: layout and comments do not matter, and `...` in it stands for any expression. What is named must be there
exactly once. Nothing is written: a module with a fault is compiled from its changed tree as it is imported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_INSIGNIFICANT = {"ctx", "kind", "type_comment"}  # of a syntax node

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Fault:
    """A piece of code made wrong: an expression, or statements in a row."""

    where: str  # qualified name of a class or function
    right: str
    wrong: str
    more: tuple[Fault, ...] = ()  # where one change is not enough


class Planter(MetaPathFinder):
    """Puts faults into the modules that are imported from now on."""

    def __init__(self, fault: Fault) -> None:
        self._trees: dict[str, ast.Module] = {}  # full name of a module -> its tree with faults
        for each in (fault, *fault.more):
            self._trees |= planted(each, self._trees)
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


def planted(fault: Fault, trees: Mapping[str, ast.Module] | None = None) -> dict[str, ast.Module]:
    """Return the module, by its full name, that this fault changes. AssertionError unless what it names is there once.

    `trees`: those that other faults have changed already; they are used, and changed, instead of the source.
    """
    right, wrong = _parse(fault.right, fault.wrong)
    definition_of_it = re.compile(rf"(class|def) {fault.where.rpartition('.')[2]}\b")
    found = []
    for path in sorted((ROOT / "megaflow").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if definition_of_it.search(text) is None:
            continue
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree = (trees or {}).get(name) or ast.parse(text)
        for qualified_name, definition in _definitions(tree):
            if qualified_name == fault.where:
                found += [(name, tree, place) for place in _places(definition, right)]
    assert len(found) == 1, f"in {fault.where} of megaflow this must stand once, not {len(found)} times: {fault.right}"
    name, tree, (pieces, start) = found[0]
    if isinstance(pieces, list):
        pieces[start : start + len(right)] = wrong
    else:
        setattr(pieces, start, wrong[0])
    return {name: ast.fix_missing_locations(tree)}


def _parse(right: str, wrong: str) -> tuple[list[Any], list[Any]]:
    """Return expressions, if both are one, or else statements."""
    parsed = ast.parse(right).body, ast.parse(wrong).body
    if all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in parsed):
        before, after = ([each.value for each in body if isinstance(each, ast.Expr)] for body in parsed)
        return before, after
    return parsed


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)


def _places(within: ast.AST, pieces: Sequence[ast.AST]) -> Iterator[tuple[Any, Any]]:
    """Where these nodes stand in a row: (list, index of the first), or of a single one (parent, name of its field)."""
    for node in ast.walk(within):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                rows = (value[start : start + len(pieces)] for start in range(len(value)))
                yield from ((value, start) for start, row in enumerate(rows) if _are_alike(pieces, row))
            elif _are_alike(pieces, [value]):
                yield node, field


def _are_alike(piece: Any, found: Any) -> bool:
    """Tell whether code reads like a piece, up to layout, comments and what `...` stands for."""
    if isinstance(piece, ast.Constant) and piece.value is ...:
        return isinstance(found, ast.expr)
    if isinstance(piece, ast.AST):
        fields = (field for field in piece._fields if field not in _INSIGNIFICANT)
        return type(piece) is type(found) and all(
            _are_alike(getattr(piece, field, None), getattr(found, field, None)) for field in fields
        )
    if isinstance(piece, Sequence) and not isinstance(piece, str | bytes):
        return isinstance(found, list) and len(piece) == len(found) and all(map(_are_alike, piece, found))
    return bool(piece == found)
