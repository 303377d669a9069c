"""A program that is built, as `megaflow check` prints it: a line for each operator, then its warnings.

Operators that a method of a stream builds for itself are not shown: those that route the records of a stateful operator
to its bins, and those that megaflow adds to each job. A line names the operators from which records come, and how, if
they may leave their worker.
"""

import os
from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any, Final

from megaflow.cli.built_program import Built
from megaflow.cli.findings import Fault, inputs_of
from megaflow.control.wording import quantity
from megaflow.job.spec import ENGINE
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Graph, Node, Port
from megaflow.timely.dataflow.pact import Pipeline, Silent
from megaflow.timely.dataflow.signature import places

PARTS: Final = ("route", "by_key", "stamps", "combine")  # operators in front of a stateful one, named after it
BY_KEY: Final = "key"
WIDTH: Final = 110  # columns of a warning
HOW: Final = {Pipeline.__name__: "", Silent.__name__: "time"}  # pact -> how records come; others by their names


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of a program."""

    number: int
    name: str  # with the scopes around it; behind it the name of the input that it reads
    where: str
    inputs: Sequence[dict[str, Any]]  # of each: the number of an operator, and how its records come
    is_stateful: bool
    bins: int | None  # None: it has none


def rows_of(built: Built) -> tuple[list[OperatorRow], dict[str, int]]:
    """Return the operators, and the number of the operator behind each output."""
    numbers: dict[tuple[int, int], int] = {}  # graph and node -> number
    for graph in built.graphs:
        cores = cores_of(graph)
        for node in graph.nodes:
            if not is_hidden(node, cores):
                numbers[id(graph), node.index] = len(numbers) + 1
    rows = [row for graph in built.graphs for row in _rows(graph, numbers)]
    return rows, {name: numbers[end_of(port)] for name, port in built.outputs.items()}


def end_of(port: Port[Any]) -> tuple[int, int]:
    """Return the graph and node of the operator that makes a stream, in front of one that takes timestamps away."""
    graph = port.scope.graph
    node = graph.nodes[port.node]
    if takes_stamps(node):
        [feed] = [edge.source for edge in graph.edges if edge.target == node.targets[0]]
        return id(graph), places(graph)[feed].node.index
    return id(graph), node.index


def takes_stamps(node: Node) -> bool:
    """Return whether an operator only takes the timestamps of records away."""
    return node.stage is not None and node.stage.kind == "plain"


def cores_of(graph: Graph) -> dict[str, Core]:
    """Return the operators with bins, by name."""
    return {view.name: view for view in graph.views if isinstance(view, Core)}


def is_hidden(node: Node, cores: dict[str, Core]) -> bool:
    """Return whether an operator is a part of another one, or megaflow's own."""
    owner, _, part = node.name.rpartition(".")
    return node.where == ENGINE or takes_stamps(node) or (part in PARTS and owner in cores)


def _rows(graph: Graph, numbers: dict[tuple[int, int], int]) -> Iterator[OperatorRow]:
    cores, where = cores_of(graph), places(graph)
    before: dict[int, list[tuple[Node, str]]] = {}  # node -> the nodes from which it receives, and how
    for edge in graph.edges:
        source, target = where[edge.source].node, where[edge.target].node
        before.setdefault(target.index, []).append((source, HOW.get(edge.pact, edge.pact.lower())))

    def senders(node: Node, met: set[int]) -> Iterator[tuple[int, str]]:
        for source, how in before.get(node.index, ()):
            if source.index in met or source.where == ENGINE:
                continue
            if not is_hidden(source, cores):
                yield source.index, how
                continue
            met.add(source.index)
            is_routed = source.name == f"{node.name}.route"
            for each, other in senders(source, {*met, node.index}):
                yield each, BY_KEY if is_routed else other or how

    for node in graph.nodes:
        if is_hidden(node, cores):
            continue
        core = cores.get(node.name) if node.stage is None else None
        inputs = [
            {"operator": numbers[id(graph), source], "by": how or None}
            for source, how in dict.fromkeys(senders(node, {node.index}))
        ]  # fmt: skip
        is_stateful = core is not None and core.barrier_actions is not None
        name = " ".join(filter(None, (node.title, inputs_of(graph).get((node.index, 0)))))
        number, bins = numbers[id(graph), node.index], None if core is None else core.bins
        yield OperatorRow(number, name, node.where, inputs, is_stateful, bins)


def record_of(built: Built) -> dict[str, Any]:
    """Return a program as `--json` prints it."""
    rows, outputs = rows_of(built)
    return {"app": built.app.name, "inputs": built.inputs, "operators": rows, "outputs": outputs}


def drawn(built: Built, found: Sequence[Fault]) -> str:
    """Return a program and its warnings as text."""
    rows, outputs = rows_of(built)
    table = [("", "operator", "from", "", "line"), *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]
    ends = [f"output {name!r}: {number}" if name else f"output: {number}" for name, number in outputs.items()]
    head = [f"{built.app.name}: {quantity(len(rows), 'operator')}"]
    reads = [f"reads: {', '.join(built.inputs)}"] if built.inputs else []
    count = quantity(len(found), "warning") if found else "no warnings"
    return "\n".join([*head, *lines, *reads, *ends, "", *map(warning, found), count])


def cells(row: OperatorRow) -> tuple[str, ...]:
    """Return the columns of an operator's line."""
    sources = ", ".join(f"{each['operator']}{' by ' * bool(each['by'])}{each['by'] or ''}" for each in row.inputs)
    state = f"state in {row.bins} bins" if row.is_stateful else f"{row.bins} bins" if row.bins else ""
    return f"{row.number}", row.name, sources, state, shown_place(row.where)


def warning(found: Fault) -> str:
    """Return a warning as text."""
    operator = f" {found.operator}:" if found.operator else ""
    more = (f"    {text}" for text in (found.why, found.fix) if text)
    lines = [f"{shown_place(found.where)}:{operator} {found.what}", *more]
    return "\n".join([*(wrapped(line) for line in lines), ""])


def wrapped(text: str) -> str:
    """Return a text in lines of WIDTH columns."""
    return fill(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


def shown_place(where: str) -> str:
    """Return file:line, relative to the current folder if the file is below it."""
    file, _, line = where.rpartition(":")
    if not os.path.isabs(file):
        return where
    near = os.path.relpath(file)
    return f"{file if near.startswith(os.pardir) else near}:{line}"
