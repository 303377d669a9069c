"""What `megaflow check` finds in a program that is built: faults that a job would meet later, or never report.

Each check takes the `Built` and yields findings. What a job refuses is asked of the function that refuses it there, so
a message here and its error there agree. What cannot be known without running the program is not guessed.
"""

import ast
import os
import site
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Final

from megaflow.cli.built_program import Built
from megaflow.cli.captured import Operator, captured, state_types
from megaflow.connect.sink_host import Writing
from megaflow.errors import BuildError
from megaflow.job.launcher.program.program_modules import is_imported, source_of
from megaflow.job.spec import ENGINE
from megaflow.job.worker.process.source_record import LIBRARIES
from megaflow.job.worker.snapshots.state_backend import objection_to
from megaflow.megaphone.base.durability import Durability
from megaflow.megaphone.base.event_inputs import EventTimes
from megaflow.megaphone.folds.stateful_core import Core
from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.graph import Graph, GraphEdge, Node
from megaflow.timely.dataflow.signature import Place, places

EFFECTS: Final = ("inspect", "inspect_time", "inspect_batch")  # kinds of stages that matter by what they do
LOOKS_AHEAD: Final = (ast.Try, ast.TryStar)  # an import in these may fail


@dataclass(frozen=True, slots=True)
class Fault:
    """One warning."""

    kind: str
    where: str  # file:line
    operator: str  # "": it concerns the program
    what: str
    why: str
    fix: str


def findings(built: Built) -> list[Fault]:
    """Return all warnings about a program, by file and line."""
    checks: tuple[Callable[[Built], Iterator[Fault]], ...] = (
        unnamed, refused_with_state, dead_ends, unfed, functions, foreign_imports, missing_imports,
    )  # fmt: skip
    found = dict.fromkeys(chain.from_iterable(check(built) for check in checks))
    return sorted(found, key=lambda each: place_key(each.where))


def place_key(where: str) -> tuple[str, int]:
    """Return a key that sorts by file and line.

    >>> place_key("app.py:12") < place_key("app.py:101")
    True
    """
    file, _, line = where.rpartition(":")
    return file, int(line) if line.isdecimal() else 0


def unnamed(built: Built) -> Iterator[Fault]:
    """Yield stateful operators whose name the program did not choose."""
    for descriptor, where in built.states:
        if not descriptor.terms.is_named:
            yield Fault(
                "unnamed", where, descriptor.name,
                "This operator keeps state and has no name of its own.",
                "--state finds saved states by name, so another such operator, or another method or fold here, takes "
                "the name away from them.",
                "Add name='…', with a word for what the operator keeps.",
            )  # fmt: skip


def refused_with_state(built: Built) -> Iterator[Fault]:
    """Yield what a job with --state refuses to build."""
    admitted, why = Durability(), "A job with --state refuses it."
    views = [view for graph in built.graphs for view in graph.views if isinstance(view, Core)]
    keeping = [view for view in views if view.barrier_actions is not None]
    for (descriptor, where), view in zip(built.states, keeping, strict=False):
        try:
            admitted.admit(descriptor, view.may_be_asked)
        except BuildError as error:
            yield Fault("refused", where, descriptor.name, f"{error}".rstrip(".") + ".", why, "")
    for node in (node for graph in built.graphs for node in graph.nodes if built.is_flow):
        if (objection := objection_to(node)) is not None:
            what, _, fix = objection.rpartition("; ")
            fix = f"{fix[:1].upper()}{fix[1:]}, or run it without --state."
            yield Fault("refused", node.where, node.title, f"{what[:1].upper()}{what[1:]}.", why, fix)


def dead_ends(built: Built) -> Iterator[Fault]:
    """Yield operators none of whose streams is read."""
    written = {(id(port.scope.graph), port.node) for port in built.outputs.values()}
    for graph in built.graphs:
        read, carried = {edge.source for edge in graph.edges if not closes_loop(graph, edge)}, inputs_of(graph)
        host = graph.extension(Writing).host
        sinks = () if host is None else tuple(f"write {name}" for name in host.names)
        for node in graph.nodes:
            is_used = not read.isdisjoint(node.sources) or (id(graph), node.index) in written
            if not node.sources or is_used or node.where == ENGINE or node.name in sinks or acts(node):
                continue
            if node.targets and (node.index, 0) not in carried:
                yield Fault(
                    "dead-end", node.where, node.title, "No operator reads this stream, and it is no output.",
                    "Its records are computed and dropped.",
                    "Return it, add flow.output('NAME', stream), or remove it. If only the effects of its function "
                    "matter, use .inspect(f)." if built.is_flow else "Read it, or remove it.",
                )  # fmt: skip
            else:
                yield Fault(
                    "unread", node.where, carried.get((node.index, 0)) or node.title, "No operator reads this input.",
                    "Its records are read and dropped.", "Use the stream, or remove the call and the input.",
                )  # fmt: skip


def closes_loop(graph: Graph, edge: GraphEdge) -> bool:
    """Return whether an edge leads from a stateful operator back to its router."""
    where = places(graph)
    return edge.channel is None and where[edge.target].node.name == f"{where[edge.source].node.name}.route"


def inputs_of(graph: Graph) -> Mapping[tuple[int, int], str]:
    """Return the node and output that carry an input of the job -> its name, "" if it has none."""
    return graph.extension(EventTimes).inputs


def acts(node: Node) -> bool:
    """Return whether an operator may matter although its stream is not read: by its effects."""
    return (bool(node.targets) and node.by_hand is not None) or (node.stage is not None and node.stage.kind in EFFECTS)


def unfed(built: Built) -> Iterator[Fault]:
    """Yield operators that no source leads to: their streams come from a loop without an entry, or from nothing."""
    for graph in built.graphs:
        fed = fed_by_sources(graph)
        ends = {node.index for node in graph.nodes if node.index not in fed and node.where != ENGINE}
        for node in (graph.nodes[index] for index in sorted(ends)):
            yield Fault(
                "unfed", node.where, node.title, "No source leads to this operator.", "It will never receive a record.",
                "Connect its input to a stream that begins at a source, or remove it.",
            )  # fmt: skip


def fed_by_sources(graph: Graph) -> set[int]:
    """Return the operators that a source of the program leads to."""
    where = places(graph)
    readers: dict[int, list[int]] = {}
    for edge in graph.edges:
        readers.setdefault(where[edge.source].node.index, []).append(where[edge.target].node.index)
    ahead = [
        node.index for node in graph.nodes
        if node.where != ENGINE and (node.by_hand is not None or not node.targets) and node.stage is None
    ]  # an operator that is written by hand may send records without receiving any
    fed = {*ahead}
    while ahead:
        new = [reader for reader in readers.get(ahead.pop(), ()) if reader not in fed]
        fed.update(new)
        ahead += new
    return fed


def functions(built: Built) -> Iterator[Fault]:
    """Yield what is wrong with the functions of operators: variables that they use, and types of keys and states."""
    by_where = {(descriptor.name, where): descriptor for descriptor, where in built.states}
    graphs = {id(graph): places(graph) for graph in built.graphs}
    for graph in built.graphs:
        for node in graph.nodes:
            descriptor = by_where.get((node.name, node.where))
            operator = Operator(node, None if descriptor is None else descriptor.terms.fold)
            for kind, what, why, fix in captured(operator):
                yield Fault(kind, node.where, node.title, what, why, fix)
            if descriptor is not None:
                makers = [*made_by(graph, graphs[id(graph)], node)]
                for kind, what, why, fix in state_types(operator, makers):
                    yield Fault(kind, node.where, node.title, what, why, fix)


def made_by(graph: Graph, where: Mapping[int, Place], node: Node) -> Iterator[Node]:
    """Yield the stages that make the pairs of a stateful operator: those before its router."""
    found, ahead = {node.index}, [node]
    while ahead:
        targets = set(ahead.pop().targets)
        for edge in graph.edges:
            source = where[edge.source].node
            if edge.target not in targets or source.index in found or source.where == ENGINE:
                continue
            found.add(source.index)
            is_part = source.stage is None and source.name.startswith(f"{node.name}.")
            if is_part or (source.stage is not None and source.stage.kind in ("filter", "same", "plain", *EFFECTS)):
                ahead.append(source)
            elif source.stage is not None:
                yield source


def foreign_imports(built: Built) -> Iterator[Fault]:
    """Yield modules of the program that another machine does not find beside it."""
    root = os.path.join(os.path.realpath(built.app.root), "")
    listed = in_path_files()
    for top in sorted({module.__name__.partition(".")[0] for module in built.modules if is_imported(module)}):
        module = next(each for each in built.modules if each.__name__.partition(".")[0] == top)
        source = os.path.realpath(source_of(module))
        folder = os.path.dirname(source)
        is_near = source.startswith((root, *LIBRARIES)) or root.startswith(os.path.join(source, ""))
        if is_near or folder in listed:
            continue
        yield Fault(
            "import", line_of_import(built, top), "", f"The module {top!r} is {source}, outside the program's folder.",
            "A process on another machine, or one that joins from another shell, does not find it there, and the check "
            "of a joining process's code leaves it out.",
            f"Move it beside {os.path.basename(built.app.path)} or install it. Otherwise start each process with "
            f"PYTHONPATH={folder}, and give --ship {source} with --on.",
        )  # fmt: skip


def in_path_files() -> Collection[str]:
    """Return the folders that the environment adds to Python's path, as editable installs do."""
    files = chain.from_iterable(Path(folder).glob("*.pth") for folder in site.getsitepackages())
    return {os.path.realpath(line) for file in files for line in file.read_text(errors="replace").splitlines()}


def line_of_import(built: Built, top: str) -> str:
    """Return file:line of the first statement of the program's file that imports a module; its first line if none."""
    for node in ast.walk(ast.parse(Path(built.app.path).read_bytes())):
        if isinstance(node, ast.stmt) and top in imported(node):
            return f"{built.app.path}:{node.lineno}"
    return f"{built.app.path}:1"


def imported(node: ast.AST) -> list[str]:
    """Return the top-level modules that a statement imports."""
    match node:
        case ast.Import(names=names):
            return [each.name.partition(".")[0] for each in names]
        case ast.ImportFrom(module=str(module), level=0):
            return [module.partition(".")[0]]
    return []


def missing_imports(built: Built) -> Iterator[Fault]:
    """Yield imports inside functions of the program that Python would not find. They fail at the first record."""
    root = os.path.join(os.path.realpath(built.app.root), "")
    files = {str(module.__file__) for module in built.modules if is_imported(module) and module.__file__}
    own = {file for file in files if os.path.realpath(file).startswith(root) and file.endswith(".py")}
    for file in sorted({built.app.path, *own}):
        for node in late_imports(ast.parse(Path(file).read_bytes()), False):
            for top in imported(node):
                if top not in sys.modules and find_spec(top) is None:
                    yield Fault(
                        "missing-import", f"{file}:{node.lineno}", "", f"There is no module {top!r} for this import.",
                        "The import runs only when the function is called, so the job fails at its first record.",
                        f"Install {top!r} in the environment of each process, or put it beside the program.",
                    )  # fmt: skip


def late_imports(tree: ast.AST, is_late: bool) -> Iterator[ast.stmt]:
    """Yield the imports inside functions, except those that may fail."""
    for node in ast.iter_child_nodes(tree):
        if is_late and isinstance(node, ast.stmt) and imported(node):
            yield node
        if not isinstance(node, LOOKS_AHEAD):
            yield from late_imports(node, is_late or isinstance(node, ast.FunctionDef | ast.Lambda))
