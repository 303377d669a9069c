"""The rules of style that a syntax tree can show. Each test lists every place that breaks its rule."""

import ast
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import pytest

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70         # a screen
MODULE_CODE_LINES_MAX = 330     # without docstrings, comments and blank lines: a sitting

ROOT_FILES = {
    ".gitignore", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md",
    "constraints.txt", "hatch_build.py", "mkdocs.yml", "pyproject.toml",
}

GIT = ("git", "-c", "safe.directory=*")    # the clone may belong to another user

ROOM_MODULES_MAX = 17           # what one map shows at a glance
ROOMED = ("megaflow/job/launcher", "megaflow/job/worker", "megaflow/control/coordinator", "megaflow/megaphone")

# module -> (lines of code allowed, why)
LONG_MODULES = {
    "megaflow/stream.py": (370, "methods whose types name each other, each a line of code under its documentation"),
}

SMALL_MODULE_LINES = 60
SMALL_MODULES_MAX = 13
SMALL_MODULES = {
    # module -> why it may be so small
    "megaflow/__main__.py": "what python -m megaflow runs",
    "megaflow/environment.py": "one list, for the command line and for Python's functions",
    "megaflow/front_door.py": "what the packages share that programs import from",
    "megaflow/job/launcher/program/typed_failure.py": "how no code of a program runs here, with its own argument",
    "megaflow/job/worker/process/lifeline.py": "one promise, with its own argument",
    "megaflow/spark/batch_run.py": "what stands in for a StreamingQuery",
    "megaflow/connect/sink_host.py": "what every job lends to sinks, above none of their modules",
    "megaflow/connect/writing.py": "a table of names, so that a job without sinks loads none of their modules",
    "megaflow/spark/launching.py": "a table of names, so that a job without Spark loads none of their modules",
    "megaflow/spark/spark_errors.py": "sentences for errors of Spark, below all that starts or asks it",
    "megaflow/megaphone/base/by_time.py": "what waits by time, in F, in S and among timers",
    "megaflow/timely/communication/codec/tags.py": "what encoder and decoder agree on",
    "megaflow/timely/dispatch.py": "the one table from channel to handler",
    "megaflow/timely/membership.py": "a value that everything in the engine knows",
    "megaflow/timely/rescale/host.py": "what a worker lends to joiner, leaver and server",
    "megaflow/timely/scheduled_calls.py": "the clock's calls, of workers and of the poller",
}

# Sockets, threads, processes, clocks and dice: they make a run depend on more than its input.
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

# These modules decide by values alone, and must stay pure.
PURE = (
    "megaflow/durable/blocks.py",
    "megaflow/durable/commits.py",
    "megaflow/durable/incarnation.py",
    "megaflow/durable/segments.py",
    "megaflow/durable/store.py",
    "megaflow/megaphone/base/bins.py",
    "megaflow/megaphone/base/time_hashes.py",
    "megaflow/control/coordinator/controller/controller.py",
    "megaflow/control/client/load_balance.py",
    "megaflow/control/client/planner.py",
    "megaflow/control/coordinator/moves/plans.py",
    "megaflow/control/client/hysteresis.py",
    "megaflow/control/client/ds2.py",
    "megaflow/control/client/rate_sample.py",
    "megaflow/megaphone/folds/load_meter.py",
    "megaflow/megaphone/base/chunks.py",
    "megaflow/megaphone/base/routing.py",
    "megaflow/megaphone/router/bootstrap.py",
    "megaflow/megaphone/base/by_time.py",
    "megaflow/megaphone/router/splitting.py",
    "megaflow/megaphone/base/timers.py",
    "megaflow/megaphone/base/event_unit.py",
    "megaflow/megaphone/base/event_timers.py",
    "megaflow/megaphone/snapshot/journal.py",
    "megaflow/megaphone/snapshot/snapshot_writer.py",
    "megaflow/durable/restored.py",
    "megaflow/timely/communication/wire.py",
    "megaflow/timely/membership.py",
    "megaflow/timely/order.py",
    "megaflow/timely/path_summary.py",
    "megaflow/timely/progress/",
    "megaflow/web/curves.py",
    "megaflow/web/grids.py",
    "megaflow/web/patches.py",
    "megaflow/web/spans.py",
    "megaflow/web/view.py",
)

# The thin shell: only these modules and packages may use SHELL_LIBRARIES. All others receive `now` and `rng`.
SHELL = (
    "megaflow/__main__.py",
    "megaflow/cli/",
    "megaflow/connect/database.py",
    "megaflow/job/worker/control/agent.py",
    "megaflow/job/worker/control/connection_handlers.py",
    "megaflow/durable/local_folder.py",
    "megaflow/job/",
    "megaflow/python_executable.py",
    "megaflow/own_files.py",
    "megaflow/spark/",
    "megaflow/testing/",
    "megaflow/web/access.py",
    "megaflow/web/hub.py",
    "megaflow/web/server.py",
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
    "megaflow/timely/rescale/join_door.py",
    "megaflow/timely/worker.py",
)

WALL_CLOCKS = {
    # module that reads the wall clock -> its purpose, which is never to wait or to order events
    "megaflow/cli/state.py": "how old checkpoints are",
    "megaflow/job/launcher/run/machine.py": "when a checkpoint was written",
    "megaflow/job/launcher/program/program_modules.py": "whether a file is older than the process",
    "megaflow/job/launcher/store/resumption.py": "how old a checkpoint is",
    "megaflow/job/watching.py": "when an event was seen",
    "megaflow/job/worker/process/build_only.py": "stands in for a worker's",
    "megaflow/spark/fed_query.py": "the processing time that Spark's processors get with an initial state",
    "megaflow/spark/processor_fold.py": "the processing time that they get with a timer of event time",
    "megaflow/web/hub.py": "when the page shows that something happened",
    "megaflow/timely/runtime.py": "how long a bin was under way between machines",
}

Node = TypeVar("Node", bound=ast.AST)


class Module:
    """One source file and its syntax tree."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """Parse it once, and not while pytest collects: each test process does that."""
        return ast.parse(self.text, filename=self.name)

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kinds))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        yield from self.nodes(ast.FunctionDef)
        yield from self.nodes(ast.AsyncFunctionDef)

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """Yield each import statement, at any place, with each dotted name from which it loads."""
        for statement in self.nodes(ast.Import):
            yield from ((statement, alias.name) for alias in statement.names)
        for origin in self.nodes(ast.ImportFrom):
            yield origin, origin.module or ""

    def lines_of_code(self) -> int:
        """Count the lines that are neither blank nor part of a comment or docstring."""
        docstrings = {
            line
            for node in self.nodes(ast.Expr)
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        }
        lines = enumerate(map(str.strip, self.text.splitlines()), start=1)
        return sum(bool(line) and not line.startswith("#") and number not in docstrings for number, line in lines)

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}: {what}"


def read(*folders: str) -> list[Module]:
    return [Module(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


MEGAFLOW = read("megaflow")
EVERYTHING = MEGAFLOW + read("apps")


def shell_uses(module: Module) -> Iterator[str]:
    """Yield each use of a socket, thread, clock or die."""
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


def test_the_root_holds_no_other_files() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this copy was not made by git")
    listed = subprocess.run([*GIT, "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert {path for path in listed.stdout.splitlines() if "/" not in path} == ROOT_FILES


def test_a_room_holds_few_modules() -> None:
    rooms = Counter(str(Path(module.name).parent) for module in MEGAFLOW if not module.name.endswith("__init__.py"))
    assert [room for room, count in rooms.items() if count > ROOM_MODULES_MAX and room.startswith(ROOMED)] == []


def test_the_page_on_architecture_lists_the_packages() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(megaflow/[\w/]*)/` \|", page, re.MULTILINE)
    packages = {str(Path(module.name).parent) for module in MEGAFLOW if module.name.endswith("/__init__.py")}
    assert sorted(listed) == sorted(packages - {"megaflow"})


def test_every_module_is_short() -> None:
    too_long = []
    for module in EVERYTHING:
        lines = module.lines_of_code()
        allowed, _ = LONG_MODULES.get(module.name, (MODULE_CODE_LINES_MAX, ""))
        if lines > allowed:
            too_long.append(f"{module.name}: {lines} lines of code, at most {allowed}")
    assert too_long == []
    short = {module.name for module in EVERYTHING if module.lines_of_code() <= MODULE_CODE_LINES_MAX}
    assert short.isdisjoint(LONG_MODULES), "these need no exception any more"


def test_class_names_are_unique_in_their_package() -> None:
    """Names that differ only by a leading underscore count as the same."""
    places = defaultdict(list)
    for module in MEGAFLOW:
        for node in module.nodes(ast.ClassDef):
            places[Path(module.name).parent, node.name.lstrip("_")].append(module.at(node, node.name))
    assert [found for found in places.values() if len(found) > 1] == []


def test_few_modules_are_small_and_each_for_a_reason() -> None:
    small = {
        module.name
        for module in MEGAFLOW
        if len(module.text.splitlines()) < SMALL_MODULE_LINES
        and not module.name.endswith("/__init__.py")
        and not module.name.startswith("megaflow/cli/templates/")  # programs, not modules of the package
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
            continue            # pyspark, and imports of a single command, are imported where they are used
        for node in (inner for function in module.functions() for inner in ast.walk(function)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                hidden.append(module.at(node, ast.unparse(node)))
    assert hidden == []


def test_no_import_hides_behind_type_checking() -> None:
    hidden = []
    for module in EVERYTHING:
        if module.name == "megaflow/quick_dataclass.py":
            continue  # for type checkers, our replacement is Python's decorator
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
