"""Pictures of dataflows as text: Mermaid and DOT.

Operators are boxes with their name and the line that declared them, scopes are frames around them. Arrows carry the
pact of their channel, and the numbers of output and input where an operator has several; dashed ones carry no records.
One that says "fused" is no channel: what it connects is run as one operator.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from megaflow.timely.dataflow.graph import Graph, Node, ScopeRef
from megaflow.timely.dataflow.pact import Silent
from megaflow.timely.dataflow.signature import Place, places


class Language(Protocol):
    """What the two notations differ in. Lines come without indentation."""

    opening: str
    closing: tuple[str, ...]

    def open_frame(self, name: str, title: str) -> list[str]:
        """Return the lines that begin a frame."""
        ...

    def close_frame(self) -> str:
        """Return the line that ends it."""
        ...

    def box(self, name: str, lines: tuple[str, str]) -> str:
        """Return an operator."""
        ...

    def arrow(self, source: str, target: str, label: str, dashed: bool) -> str:
        """Return a channel."""
        ...


class Mermaid:
    """https://mermaid.js.org/syntax/flowchart.html"""

    opening = "flowchart TD"
    closing: tuple[str, ...] = ()

    def open_frame(self, name: str, title: str) -> list[str]:
        return [f'subgraph {name}["{_mermaid(title)}"]']

    def close_frame(self) -> str:
        return "end"

    def box(self, name: str, lines: tuple[str, str]) -> str:
        return f'{name}["{"<br>".join(map(_mermaid, lines))}"]'

    def arrow(self, source: str, target: str, label: str, dashed: bool) -> str:
        return f'{source} {"-.->" if dashed else "-->"}|"{_mermaid(label)}"| {target}'


class Dot:
    """https://graphviz.org/doc/info/lang.html"""

    opening = "digraph {"
    closing: tuple[str, ...] = ("}",)

    def open_frame(self, name: str, title: str) -> list[str]:
        return [f"subgraph cluster_{name} {{", f"    label={_dot(title)}"]

    def close_frame(self) -> str:
        return "}"

    def box(self, name: str, lines: tuple[str, str]) -> str:
        return f"{name} [shape=box label={_dot(*lines)}]"

    def arrow(self, source: str, target: str, label: str, dashed: bool) -> str:
        return f"{source} -> {target} [label={_dot(label)}{' style=dashed' if dashed else ''}]"


LANGUAGES: Mapping[str, Language] = {"mermaid": Mermaid(), "dot": Dot()}


def draw(graphs: Iterable[Graph], language: str) -> str:
    """Return a picture of these dataflows, a frame for each; `language` is one of LANGUAGES."""
    tongue = LANGUAGES[language]
    lines = [tongue.opening]
    for graph in graphs:
        lines += [f"    {line}" for line in _draw_graph(graph, tongue)]
    return "\n".join([*lines, *tongue.closing])


def _draw_graph(graph: Graph, tongue: Language) -> Iterator[str]:
    name = f"d{graph.number}"
    scopes: list[ScopeRef] = []  # in the order of their first operator, each after the one around it
    for node in graph.nodes:
        scopes += [scope for scope in _inward(node.scope) if scope not in scopes]
    roots = [scope for scope in scopes if scope.parent is None]
    yield from tongue.open_frame(name, graph.name)
    for root in roots:
        yield from _indented(_draw_scope(graph, root, scopes, tongue))
    yield tongue.close_frame()
    where = places(graph)
    for link in graph.edges:
        source, target = where[link.source], where[link.target]
        ends = f"{name}n{source.node.index}", f"{name}n{target.node.index}"
        dashed = link.pact == Silent.name
        what = "progress" if dashed else link.pact if target.node.within is None else "fused"
        yield tongue.arrow(*ends, _label(what, source, target), dashed)


def _inward(scope: ScopeRef) -> list[ScopeRef]:
    return [scope] if scope.parent is None else [*_inward(scope.parent), scope]


def _draw_scope(graph: Graph, scope: ScopeRef, scopes: list[ScopeRef], tongue: Language) -> Iterator[str]:
    for node in graph.nodes:
        if node.scope is scope:
            yield tongue.box(f"d{graph.number}n{node.index}", (node.name, _short(node)))
    for child in scopes:
        if child.parent is scope:
            yield from tongue.open_frame(f"d{graph.number}s{scopes.index(child)}", child.name)
            yield from _indented(_draw_scope(graph, child, scopes, tongue))
            yield tongue.close_frame()


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def _short(node: Node) -> str:
    return Path(node.where).name


def _label(pact: str, source: Place, target: Place) -> str:
    several = len(source.node.sources) > 1 or len(target.node.targets) > 1
    return f"{pact} {source.number}→{target.number}" if several else pact


def _mermaid(text: str) -> str:
    special: dict[str, str] = {'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"}
    return "".join(special.get(letter, letter) for letter in text)


def _dot(*lines: str) -> str:
    escape: Callable[[str], str] = lambda line: line.replace("\\", "\\\\").replace('"', '\\"')  # noqa: E731
    return '"' + "\\n".join(map(escape, lines)) + '"'
