"""The rules of style that a syntax tree can show; each test lists every place that breaks its rule."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70         # a screen
MODULE_LINES_MAX = 350          # a sitting

# module -> (lines allowed, why)
LONG_MODULES = {
    "megaflow/control/messages.py": (420, "a vocabulary: every record of the protocol, and no code"),
    "megaflow/timely/rescale/messages.py": (450, "a vocabulary: every record of the protocol, and no code"),
    "megaflow/control/coordinator/controller.py": (390, "all that happens meets here, each kind handled elsewhere"),
    "megaflow/stream.py": (490, "methods whose types name each other, each a line of code under its documentation"),
}

SMALL_MODULE_LINES = 60
SMALL_MODULES_MAX = 12
SMALL_MODULES = {
    # module -> why it stands alone
    "megaflow/__main__.py": "what python -m megaflow runs",
    "megaflow/environment.py": "one list, for the command line and for Python's functions",
    "megaflow/front_door.py": "what the packages share that programs import from",
    "megaflow/cli/app_operators.py": "a program's operators, without a job",
    "megaflow/job/kept_states.py": "one public function, above the hash and the files that it needs",
    "megaflow/job/launcher/machine.py": "the seam between the launcher's loop and a simulation of it",
    "megaflow/job/launcher/run_summary.py": "what the launcher's loop puts together and programs read",
    "megaflow/job/worker/lifeline.py": "one promise, with its own argument",
    "megaflow/spark/batch_run.py": "what stands in for a StreamingQuery",
    "megaflow/megaphone/by_time.py": "what waits by time, in F, in S and among timers",
    "megaflow/timely/communication/codec/tags.py": "what encoder and decoder agree on",
    "megaflow/timely/communication/complaints.py": "the one limit of what strangers and clients put into the log",
    "megaflow/timely/dispatch.py": "the one table from channel to handler",
    "megaflow/timely/membership.py": "a value that everything in the engine knows",
    "megaflow/timely/rescale/host.py": "what a worker lends to joiner, leaver and server",
    "megaflow/timely/scheduled_calls.py": "the clock's calls, of workers and of the poller",
}

# A name means one thing: modules and classes that share theirs are named here, with the reason.
SHARED_BASENAMES = {
    "messages": "the vocabulary of a protocol, whose package says which",
}
SHARED_CLASS_NAMES = {
    "Client": "a connection to a port; in the driver, the Protocol of what is at its other end",
    "Commit": "what a store says is durable; in a change of the membership, the message that has all obey it",
    "Coordinator": "of a job; in the feed of Spark, the one that it talks to",
    "HandOver": "public in megaflow.testing, and the coordinator's event that follows from it",
    "Kill": "public in megaflow.testing, and what a process agent is asked to do",
    "Member": "a worker's part in the membership; in the simulation, the Protocol of a simulated worker",
    "Retire": "what the coordinator asks of the engine, and what the engine then tells the leaving workers",
    "Stop": "public in megaflow.testing, and the launcher's own request",
    "Stream": "what users write; in catching up, one dataflow's progress",
}

# Sockets, threads, processes, clocks and dice: what makes a run depend on anything but its input.
SHELL_LIBRARIES = {
    "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "random", "sched", "secrets", "select", "selectors",
    "signal", "socket", "socketserver", "ssl", "subprocess", "threading", "time",
}
CLOCKS_AND_DICE = {
    "date": {"today"},
    "datetime": {"now", "today", "utcnow"},
    "os": {"getrandom", "urandom"},
    "uuid": {"uuid1", "uuid4"},
}

# Decided by values alone; these stay pure forever.
PURE = (
    "megaflow/durable/blocks.py",
    "megaflow/durable/commits.py",
    "megaflow/durable/incarnation.py",
    "megaflow/durable/segments.py",
    "megaflow/durable/store.py",
    "megaflow/megaphone/bins.py",
    "megaflow/control/coordinator/controller.py",
    "megaflow/control/client/load_balance.py",
    "megaflow/control/client/planner.py",
    "megaflow/control/coordinator/plans.py",
    "megaflow/control/client/hysteresis.py",
    "megaflow/control/client/ds2.py",
    "megaflow/control/client/rate_sample.py",
    "megaflow/megaphone/load_meter.py",
    "megaflow/megaphone/chunks.py",
    "megaflow/megaphone/routing.py",
    "megaflow/megaphone/bootstrap.py",
    "megaflow/megaphone/by_time.py",
    "megaflow/megaphone/splitting.py",
    "megaflow/megaphone/timers.py",
    "megaflow/megaphone/event_unit.py",
    "megaflow/megaphone/event_timers.py",
    "megaflow/megaphone/journal.py",
    "megaflow/megaphone/unwritten.py",
    "megaflow/durable/restored.py",
    "megaflow/timely/communication/wire.py",
    "megaflow/timely/membership.py",
    "megaflow/timely/order.py",
    "megaflow/timely/path_summary.py",
    "megaflow/timely/progress/",
)

# The thin shell: only these modules and packages may touch SHELL_LIBRARIES, all others are handed `now` and `rng`.
SHELL = (
    "megaflow/cli/",
    "megaflow/connect/database.py",
    "megaflow/control/worker/agent.py",
    "megaflow/control/worker/port_roles.py",
    "megaflow/durable/local_folder.py",
    "megaflow/job/",
    "megaflow/spark/",
    "megaflow/testing/",
    "megaflow/timely/communication/client.py",
    "megaflow/timely/communication/acceptor.py",
    "megaflow/timely/communication/tcp_allocator.py",
    "megaflow/timely/communication/tcp_fabric.py",
    "megaflow/timely/communication/local.py",
    "megaflow/timely/communication/peers.py",
    "megaflow/timely/communication/poller.py",
    "megaflow/timely/communication/secret.py",
    "megaflow/timely/communication/tcp.py",
    "megaflow/timely/dataflow/capture/capture.py",
    "megaflow/timely/runtime.py",
    "megaflow/timely/rescale/join_client.py",
    "megaflow/timely/worker.py",
)

WALL_CLOCKS = {
    # module that reads the clock on the wall -> what for: never to wait, nor to tell what was first
    "megaflow/cli/state.py": "how old checkpoints are",
    "megaflow/job/launcher/machine.py": "when a checkpoint was written",
    "megaflow/job/launcher/resumption.py": "how old a checkpoint is",
    "megaflow/job/worker/dry_build.py": "stands in for a worker's",
    "megaflow/timely/runtime.py": "how long a bin was under way between machines",
}

Node = TypeVar("Node", bound=ast.AST)


class Module:
    """One source file and its syntax tree."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.tree = ast.parse(self.text, filename=self.name)

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        yield from self.nodes(ast.FunctionDef)
        yield from self.nodes(ast.AsyncFunctionDef)

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """Each import statement, wherever it stands, with each dotted name it loads from."""
        for statement in self.nodes(ast.Import):
            yield from ((statement, alias.name) for alias in statement.names)
        for origin in self.nodes(ast.ImportFrom):
            yield origin, origin.module or ""

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}: {what}"


def read(*folders: str) -> list[Module]:
    return [Module(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


MEGAFLOW = read("megaflow")
EVERYTHING = MEGAFLOW + read("apps")


def shell_uses(module: Module) -> Iterator[str]:
    """Each use of a socket, thread, clock or die."""
    for statement, name in module.imports():
        if name.partition(".")[0] in SHELL_LIBRARIES:
            yield module.at(statement, f"imports {name}")
    for call in module.nodes(ast.Call):
        words = ast.unparse(call.func).split(".")
        if len(words) > 1 and words[-2] in CLOCKS_AND_DICE and words[-1] in CLOCKS_AND_DICE[words[-2]]:
            yield module.at(call, f"calls {'.'.join(words)}")


def test_every_module_has_a_docstring() -> None:
    assert [module.name for module in EVERYTHING if not ast.get_docstring(module.tree)] == []


def test_the_docstring_of_a_package_names_each_of_its_modules_and_packages() -> None:
    unnamed = []
    for module in (module for module in MEGAFLOW if module.name.endswith("/__init__.py")):
        words = set(re.findall(r"\w+", ast.get_docstring(module.tree) or ""))
        folder = (ROOT / module.name).parent
        rooms = {path.stem for path in folder.glob("*.py")}
        rooms |= {path.parent.name for path in folder.glob("*/__init__.py")}
        unnamed += [f"{module.name}: {room}" for room in sorted(rooms - words) if not room.startswith("__")]
    assert unnamed == []


def test_every_module_is_short() -> None:
    too_long = []
    for module in EVERYTHING:
        lines = len(module.text.splitlines())
        allowed, _ = LONG_MODULES.get(module.name, (MODULE_LINES_MAX, ""))
        if lines > allowed:
            too_long.append(f"{module.name}: {lines} lines, at most {allowed}")
    assert too_long == []


def of_several(named: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names, of (name, place), that are in more than one place."""
    places = defaultdict(list)
    for name, place in named:
        places[name].append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_modules_share_a_basename() -> None:
    """Packages may: `control/worker/` and `job/worker/` are two rooms of one process."""
    shared = of_several((Path(module.name).stem, module.name) for module in MEGAFLOW)
    assert shared.keys() - {"__init__"} == SHARED_BASENAMES.keys(), shared


def test_no_two_classes_share_a_name() -> None:
    """Nor do they differ by an underscore before it."""
    classes = ((module, node) for module in MEGAFLOW for node in module.nodes(ast.ClassDef))
    shared = of_several((node.name.lstrip("_"), module.at(node, node.name)) for module, node in classes)
    assert shared.keys() <= SHARED_CLASS_NAMES.keys(), shared


def test_few_modules_are_small_and_each_for_a_reason() -> None:
    small = {
        module.name
        for module in MEGAFLOW
        if len(module.text.splitlines()) < SMALL_MODULE_LINES and not module.name.endswith("/__init__.py")
    }
    assert small <= SMALL_MODULES.keys()
    assert len(small) <= SMALL_MODULES_MAX


def test_every_function_fits_a_screen() -> None:
    too_long = []
    for module in EVERYTHING:
        for function in module.functions():
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                too_long.append(module.at(function, f"{function.name}: {lines} lines, at most {FUNCTION_LINES_MAX}"))
    assert too_long == []


def test_only_the_command_line_prints() -> None:
    silent = [module for module in MEGAFLOW if not module.name.startswith("megaflow/cli/")]
    calls = [(module, call) for module in silent for call in module.nodes(ast.Call)]
    assert [module.at(call, "print") for module, call in calls if ast.unparse(call.func) == "print"] == []


def test_no_exception_is_caught_unnamed_or_swallowed_whole() -> None:
    swallowed = []
    for module in EVERYTHING:
        for handler in module.nodes(ast.ExceptHandler):
            caught = ast.unparse(handler.type) if handler.type else ""
            idle = all(isinstance(statement, ast.Pass | ast.Continue) for statement in handler.body)
            if not caught or (idle and caught in {"Exception", "BaseException"}):
                swallowed.append(module.at(handler, f"except {caught}".strip()))
    assert swallowed == []


def test_imports_stand_at_the_top_of_their_module() -> None:
    hidden = []
    for module in MEGAFLOW:
        if module.name.startswith(("megaflow/spark/", "megaflow/cli/", "megaflow/__main__.py")):
            continue            # pyspark, and what only one command needs, are imported where they are used
        for node in (inner for function in module.functions() for inner in ast.walk(function)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                hidden.append(module.at(node, ast.unparse(node)))
    assert hidden == []


def test_no_import_hides_behind_type_checking() -> None:
    hidden = []
    for module in EVERYTHING:
        if module.name == "megaflow/quick_dataclass.py":
            continue  # what replaces Python's decorator is Python's decorator to who checks types
        imported = [alias for origin in module.nodes(ast.ImportFrom) for alias in origin.names]
        hidden += [module.at(alias, "TYPE_CHECKING") for alias in imported if alias.name == "TYPE_CHECKING"]
        attributes = module.nodes(ast.Attribute)
        hidden += [module.at(node, "TYPE_CHECKING") for node in attributes if node.attr == "TYPE_CHECKING"]
    assert hidden == []


def test_pure_modules_use_no_socket_thread_clock_or_dice() -> None:
    assert [use for module in MEGAFLOW if module.name.startswith(PURE) for use in shell_uses(module)] == []


def test_only_the_shell_uses_sockets_threads_clocks_and_dice() -> None:
    outside = [module for module in MEGAFLOW if not module.name.startswith(SHELL)]
    assert [use for module in outside for use in shell_uses(module)] == []


def test_nothing_is_decided_by_a_clock_that_somebody_may_set() -> None:
    named = {
        module.name for module in MEGAFLOW for node in module.nodes(ast.Attribute) if ast.unparse(node) == "time.time"
    }
    assert named == set(WALL_CLOCKS)


def test_no_module_is_both_pure_and_shell() -> None:
    assert [module.name for module in MEGAFLOW if module.name.startswith(PURE) and module.name.startswith(SHELL)] == []
