"""Notes on errors of programs that copy forms from the texts on timely dataflow: what to write here instead.

Python reports what failed ("'Session' object has no attribute 'give_content'"), and often a similar name. The note adds
the form that works here.

1. Nothing is looked up while a program works. When an error ends a worker, `note_form` looks at this one error. So
   these names cost nothing. The classes also need no `__getattr__`, which would make type checkers accept every
   misspelt name.
2. A note is added only if the object or the failing line is known to belong to megaflow, or if only the texts use the
   name (`to_stream`, `replay_into`). An attribute of the program's own classes gets no note.
"""

import linecache
import re
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from megaflow.errors import similar
from megaflow.timely.dataflow.error_notes import is_ours

_BATCH = "write session.give_batch(records)"
_EACH = "write `for time, records in input:` or input.for_each(f)"
_ACTIVATOR = "write info.activator, of the second argument of build(capability, info)"
_BOTH = "write stream.inspect_batch(f) for records, or a stream.unary_frontier(…) that reads input.frontier"

_ATTRIBUTES: dict[tuple[str, str], str] = {
    ("Session", "give_content"): _BATCH,
    ("Session", "give_container"): _BATCH,
    ("Session", "give_containers"): _BATCH,
    ("Session", "give_vec"): _BATCH,
    ("Input", "next"): _EACH,
    ("Input", "for_each_time"): _EACH,
    ("Output", "output_index"): "write the output itself, as in time.retain(output)",
    ("FrontierNotificator", "next"): "write notificator.for_each(f), which calls f(capability, count) for each time",
    ("int", "notify_at"): "the function is called as f(capability, count); use the operator's notificator",
    ("Worker", "dataflow_named"): "write worker.dataflow(name, build)",
    ("Worker", "dataflow_core"): "write worker.dataflow(name, build)",
    ("Worker", "log_register"): "write worker.log.subscribe(callback)",
    ("Worker", "logging"): "write worker.log.subscribe(callback)",
    ("Worker", "activator_for"): _ACTIVATOR,
    ("Worker", "sync_activator_for"): _ACTIVATOR,
    ("Worker", "allocate"): "write initialize(config, main), whose main(allocator) has allocator.allocate()",
    ("Worker", "step_or_park_while"): "write worker.step_while(predicate)",
    ("Worker", "has_dataflows"): "write worker.installed_dataflows, which is empty if there is none",
    ("Scope", "region_named"): "write scope.region(name, build)",
    ("Scope", "activator_for"): _ACTIVATOR,
    ("Stream", "container"): "leave it out: batches are lists",
    ("Stream", "inspect_core"): _BOTH,
    ("Stream", "inspect_container"): _BOTH,
    ("Stream", "delay_total"): "write stream.delay(f)",
    ("Stream", "enter_at"): "write stream.enter(scope).delay(lambda record, time: Product(time.outer, round))",
    ("ProbeHandle", "with_frontier"): "write f(probe.frontier)",
    ("ProbeHandle", "clone"): "use the handle itself, in several places if you like",
    ("InputHandle", "epoch"): "write input.time",
    ("UnorderedHandle", "activate"): "write input.session(capability)",
    ("Capability", "drop"): "write capability.release()",
    ("Capability", "try_delayed"): "write capability.delayed(time), which raises TimeError",
    ("Capability", "try_downgrade"): "write capability.downgrade(time), which raises TimeError",
    ("Push", "send"): "write pusher.push(message)",
    ("Pull", "recv"): "write puller.pull()",
    ("ChannelAllocator", "receive"): "leave it out: puller.pull() receives",
    ("ChannelAllocator", "release"): "leave it out: pushed messages leave by themselves",
    ("object", "to_stream"): "write scope.to_stream(records)",
    ("object", "replay_into"): "write scope.replay(sources)",
}
"""Class (or a base of it) and attribute -> what to write."""

_NAMES = {"args", "frontier", "held", "index", "peer_ids", "peers", "time"}
"""Names that are attributes here but methods in the texts."""

_CALLS: dict[tuple[str, str], str] = {
    ("notificator.py", "for_each"): "the function is called as f(capability, count)",
    ("generic.py", "run"): "the logic is called with the inputs, then the output: logic(input, output)",
    ("generic.py", "call_build"): "build is called as build(capability, info)",
}
"""File and function in megaflow that call a function of the program -> how they call it."""

_USE_OF_PROBE = re.compile(r"'ProbeHandle' object|non-iterable ProbeHandle")
_METHOD_CALL = re.compile(r"(?P<written>.+\.(?P<name>\w+))\(\)")
_ARGUMENTS = re.compile(r"missing \d+ required positional argument|takes .*positional arguments? but")


def note_form(error: BaseException) -> None:
    """Add a note to an error that ends a worker, if it comes from a form that is written differently here."""
    form = None
    if type(error) is AttributeError:
        form = _attribute_form(error)
    elif type(error) is TypeError:
        form = _type_form(str(error), _innermost(error.__traceback__))
    if form is not None:
        error.add_note(f"{form[0].upper()}{form[1:]}{'' if form.endswith('?') else '.'}")


def _attribute_form(error: AttributeError) -> str | None:
    made: Any = error.obj
    if type(made).__name__ == "_GeneratorContextManager" and is_ours(made.gen.gi_code.co_filename):
        return "use it as a block, as in `with worker.dataflow() as scope:`, or give it a function of the scope"
    for kind in type(made).__mro__:
        form = _ATTRIBUTES.get((kind.__name__, str(error.name)))
        if form is not None and kind.__module__.startswith(("megaflow.", "builtins")):
            return form
    if sys.version_info < (3, 12) and type(made).__module__.startswith("megaflow."):  # later Pythons say this
        near = similar(str(error.name), dir(made))
        return f"did you mean {near!r}?" if near else None
    return None


def _type_form(text: str, innermost: TracebackType | None) -> str | None:
    if _USE_OF_PROBE.search(text):
        return "stream.probe() returns the handle alone; stream.probe_with(handle) returns the stream"
    if innermost is None:
        return None
    if text.endswith("object is not callable"):
        call = _METHOD_CALL.fullmatch(_source_of(innermost))
        if call is not None and call["name"] in _NAMES:
            return f"'{call['name']}' is an attribute, not a method: write {call['written']}"
    code = innermost.tb_frame.f_code
    if _ARGUMENTS.search(text) and is_ours(code.co_filename):
        return _CALLS.get((Path(code.co_filename).name, code.co_name))
    return None


def _innermost(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace


def _source_of(trace: TracebackType) -> str:
    """Return the text of the expression that raised. Empty if it is unknown or spans several lines."""
    code = trace.tb_frame.f_code
    for number, (line, last, start, end) in enumerate(code.co_positions()):
        if number == trace.tb_lasti // 2:
            if line is None or line != last:
                return ""
            return linecache.getline(code.co_filename, line).encode()[start:end].decode(errors="replace")
    return ""
