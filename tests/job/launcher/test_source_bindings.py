"""The values that names of a module have according to its file."""

from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.launcher.program.source_bindings import Definition, Imported, Literal, is_same, meaning, read_source

atoms = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary())
keys = st.one_of(st.integers(), st.text(), st.tuples(st.integers(), st.text()))
literals = st.recursive(
    atoms, lambda inner: st.one_of(st.lists(inner), st.tuples(inner, inner), st.dictionaries(keys, inner)), max_leaves=8
)


def meaning_in(folder: Path, text: str, name: str) -> Any:
    file = folder / "module.py"
    file.write_bytes(text.encode(errors="surrogatepass"))
    return meaning(read_source(str(file), "package"), name)


@given(value=literals)
def test_a_literal_stands_for_its_value(tmp_path_factory: pytest.TempPathFactory, value: Any) -> None:
    text = ascii(value)
    found = meaning_in(tmp_path_factory.getbasetemp(), f"x = {text}", "x")
    if "nan" in text or "inf" in text:  # which are names in Python's source
        assert found is None
    else:
        assert isinstance(found, Literal) and is_same(found.value, value)


@pytest.mark.parametrize(
    "text, found",
    [
        ("x = 24 * 60 ** 2 - 1", Literal(86399)),
        ("x: int = -5", Literal(-5)),
        ("x = {1, 2}", Literal({1, 2})),
        ("x = dict()", Literal({})),
        ("x = 9 ** 9 ** 9", None),
        ("x = [1, y]", None),
        ("x = {**y}", None),
        ("x = float('1')", None),
        ("x = 1\nx = 2", None),
        ("x = 1\nif y: x = 2", None),
        ("x = 1\nx += 1", None),
        ("x = y = 1", None),
        ("x, y = 1, 2", None),
        ("x = 1\nfrom y import *", None),
        ("from y import *\nx = 1", Literal(1)),
        ("x = 1\ndel x", None),
        ("x = 1\nglobals()['x'] = 2", None),
        ("x = 1\nif __name__ == '__main__':\n    x = 2", Literal(1)),
        ("def x(): pass", Definition(FunctionType, "x")),
        ("x = lambda: 1", Definition(FunctionType, "<lambda>")),
        ("class x: pass", Definition(type, "x")),
        ("@y\ndef x(): pass", None),
        ("from y import z as x", Imported("y", "z")),
        ("from . import x", Imported("package", "x")),
        ("from .y import x", Imported("package.y", "x")),
        ("import x", None),
    ],
)
def test_only_a_plain_and_single_binding_tells(tmp_path: Path, text: str, found: object) -> None:
    assert meaning_in(tmp_path, text, "x") == found
