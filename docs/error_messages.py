"""The page of all error messages, collected from the code by its syntax: `docs/build_site.py` puts it into the site.

1. A message is the text of a call of a class of `megaflow.errors`. Parts that differ from case to case become
   placeholders: `{self._path!r}` becomes `<path>`, and any longer expression `…`. Named constants of the code become
   their text.
2. Messages are grouped by the package that raises them (`SUBJECTS`). Each module with a message has a subject, and a
   test holds that.
3. Texts that only other functions put together are not listed. They appear as a part of a listed message or end with
   the remedy of their class.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import megaflow
from megaflow import errors

PACKAGE = Path(megaflow.__file__).parent
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == errors.__name__
}
SUBJECTS: dict[str, tuple[str, ...]] = {
    "Programs and operators": ("timely/dataflow", "timely/dataflows.py", "keyed_state.py", "operator_builder.py",
                               "program.py", "scope.py", "stream.py", "stream_end.py", "stream_pass.py",
                               "synchronization.py", "job/app.py", "job/launcher/program", "timely"),
    "State per key and moves": ("megaphone", "control/coordinator", "control/client"),
    "Keys, states and records that travel": ("timely/communication/codec",),
    "Event time and windows": ("event_time",),
    "Input": ("job/formats", "job/files", "job/launcher/inputs", "job/worker/reading", "rows"),
    "Output": ("job/launcher/outputs", "job/worker/writing"),
    "Sources, sinks and databases": ("connect",),
    "Spark": ("spark", "job/launcher/processes/spark_slots.py", "job/launcher/run/spark_run.py",
              "job/launcher/run/spark_stateful.py"),
    "Stores and resuming": ("durable", "job/launcher/store", "job/worker/snapshots"),
    "Running jobs and their commands": ("control", "job", "web"),
    "Processes and connections": ("timely/communication", "timely/rescale", "job/worker", "job/launcher/processes",
                                  "python_executable.py"),
    "The command line": ("cli", "environment.py", "job/profile"),
    "Tests on a simulated cluster": ("testing",),
    "The protocol between processes": (),
}  # fmt: skip
"""Subject -> packages and modules. The longest fitting path decides; a ProtocolError is always of the last subject."""

WORDS_MIN = 2    # of a text of its own


class Message(NamedTuple):
    """A message as the page shows it."""

    kind: str  # class of the error
    text: str


def constants(trees: Iterable[ast.Module]) -> dict[str, str]:
    """Return the texts that have the same constant's name wherever it is defined in the package."""
    found: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.setdefault(target.id, set()).add(value.value)
    return {name: texts.pop() for name, texts in found.items() if len(texts) == 1}


def placeholder(node: ast.expr, known: dict[str, str]) -> str:
    """Return what stands for an expression in a message."""
    while isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        node = node.args[0]    # of said(error), user_line(…) and the like, the argument says more
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if name in known:
        return known[name]
    return f"<{name.strip('_').replace('_', ' ').lower()}>" if name and name not in ("self", "spec") else "…"


def text_of(node: ast.expr | None, known: dict[str, str]) -> str:
    """Return the text of an expression with placeholders, "" if it has no text of its own."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                placeholder(part.value, known) if isinstance(part, ast.FormattedValue) else text_of(part, known)
                for part in parts
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return (text_of(left, known) or "…") + (text_of(right, known) or "…")
    return ""


def subject_of(path: str, kind: str) -> str:
    """Return the subject of a message of a module. Raises LookupError if the module has none."""
    *_, last = SUBJECTS
    if kind == "ProtocolError":
        return last
    fitting = [(len(place), subject) for subject, places in SUBJECTS.items() for place in places
               if path == place or path.startswith(f"{place}/")]    # fmt: skip
    if not fitting:
        raise LookupError(f"docs/error_messages.py: name a subject for megaflow/{path}.")
    return max(fitting)[1]


def collect() -> dict[str, set[Message]]:
    """Return the messages of each subject."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "templates" not in path.parts]
    trees = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}
    known, found = constants(trees.values()), {subject: set[Message]() for subject in SUBJECTS}
    for path, tree in trees.items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            match [call.func, *call.args]:
                case [ast.Name(id=kind), text, *_] if kind in CLASSES:
                    words = text_of(text, known)
                case [_, ast.Name(id=kind), text, *_] if kind in CLASSES:    # naming(StoreError, "Cannot read …")
                    words = text_of(text, known) + ": …"
                case _:
                    continue
            if len(re.findall(r"\w{2,}", re.sub(r"<[^>]*>", "", words))) >= WORDS_MIN:
                found[subject_of(path, kind)].add(Message(kind, " ".join(words.split())))
    return found


def markdown(found: dict[str, set[Message]]) -> Iterator[str]:
    """Yield the lines of all subjects, each with a table of its messages."""
    for subject, messages in found.items():
        yield f"\n## {subject}\n\n| message | class |\n|---|---|"
        for kind, text in sorted(messages, key=lambda message: (message.text.lower(), message.kind)):
            fence = "``" if "`" in text else "`"
            shown = text.replace("|", "\\|")
            yield f"| {fence}{shown}{fence} | [{kind}](errors.md#megaflow.errors.{kind}) |"
