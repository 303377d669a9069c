"""Pictures of dataflows as text: Mermaid and DOT.

Operators are boxes with their name and the line that declared them. Scopes are frames around them. Arrows show the
pact of their channel, and the numbers of output and input if an operator has several. Dashed arrows carry no records.
An arrow labelled "fused" is not a channel: the operators that it connects run as one.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Graph, ScopeRef
from megaflow.timely.dataflow.pact import Silent
from megaflow.timely.dataflow.scopes import around
from megaflow.timely.dataflow.signature import places


@dataclass(frozen=True, slots=True)
class Notation:
    """Differences between the two languages. Lines are patterns, without indentation."""

    opening: str
    closing: tuple[str, ...]
    frame: tuple[str, ...]  # name, title
    frame_end: str
    box: str  # of an operator: name, title, where
    arrow: str  # of a channel: source, target, label
    dashed: str  # of a channel without records: source, target, label
    escapes: dict[str, str]  # letter -> its replacement in a text

    def fill(self, pattern: str, **texts: str) -> str:
        """Return the pattern with the escaped texts filled in."""
        table = str.maketrans(self.escapes)
        return pattern.format(**{key: text.translate(table) for key, text in texts.items()})

    def draw_frame(self, name: str, title: str, inside: Iterable[str]) -> Iterator[str]:
        """Yield the lines of a frame."""
        for pattern in self.frame:
            yield self.fill(pattern, name=name, title=title)
        for line in inside:
            yield f"    {line}"
        yield self.frame_end


LANGUAGES = {
    # https://mermaid.js.org/syntax/flowchart.html
    "mermaid": Notation(
        opening="flowchart TD",
        closing=(),
        frame=('subgraph {name}["{title}"]',),
        frame_end="end",
        box='{name}["{title}<br>{where}"]',
        arrow='{source} -->|"{label}"| {target}',
        dashed='{source} -.->|"{label}"| {target}',
        escapes={'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;"},
    ),
    # https://graphviz.org/doc/info/lang.html
    "dot": Notation(
        opening="digraph {",
        closing=("}",),
        frame=("subgraph cluster_{name} {{", '    label="{title}"'),
        frame_end="}",
        box='{name} [shape=box label="{title}\\n{where}"]',
        arrow='{source} -> {target} [label="{label}"]',
        dashed='{source} -> {target} [label="{label}" style=dashed]',
        escapes={"\\": "\\\\", '"': '\\"'},
    ),
}


def draw(graphs: Iterable[Graph], language: str) -> str:
    """Return a picture of these dataflows, with a frame for each. `language` is a key of LANGUAGES."""
    notation = LANGUAGES[language]
    lines = [f"    {line}" for graph in graphs for line in _draw_graph(graph, notation)]
    return "\n".join([notation.opening, *lines, *notation.closing])


def _draw_graph(graph: Graph, notation: Notation) -> Iterator[str]:
    name = f"d{graph.number}"
    scopes: list[ScopeRef] = []  # ordered by their first operator; each scope follows its parent
    for node in graph.nodes:
        scopes += [scope for scope in (*around(node.scope), node.scope) if scope not in scopes]
    inside = [line for scope in scopes if scope.parent is None for line in _draw_scope(graph, scope, scopes, notation)]
    yield from notation.draw_frame(name, graph.name, inside)
    where = places(graph)
    for link in graph.edges:
        source, target = where[link.source], where[link.target]
        silent = link.pact == Silent.__name__
        label = "progress" if silent else link.pact if target.node.within is None else "fused"
        if len(source.node.sources) > 1 or len(target.node.targets) > 1:
            label = f"{label} {source.number}→{target.number}"
        ends = {"source": f"{name}n{source.node.index}", "target": f"{name}n{target.node.index}"}
        yield notation.fill(notation.dashed if silent else notation.arrow, label=label, **ends)


def _draw_scope(graph: Graph, scope: ScopeRef, scopes: list[ScopeRef], notation: Notation) -> Iterator[str]:
    for node in graph.nodes:
        if node.scope is scope:
            name = f"d{graph.number}n{node.index}"
            yield notation.fill(notation.box, name=name, title=node.name, where=Path(node.where).name)
    for number, child in enumerate(scopes):
        if child.parent is scope:
            inside = _draw_scope(graph, child, scopes, notation)
            yield from notation.draw_frame(f"d{graph.number}s{number}", child.name, inside)
