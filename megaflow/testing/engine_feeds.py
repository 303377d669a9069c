"""What an EngineCluster is fed, and how a `dataflow(flow)` is an engine program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any, TypeAlias

from megaflow.errors import UsageError
from megaflow.job.launcher.function_pickler import check_function
from megaflow.job.record_format import LINES
from megaflow.job.worker.flow import Flow, build_flow
from megaflow.job.worker.named_inputs import NamedInputs
from megaflow.megaphone.control_stream import set_default
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.operators.movement import broadcast

FlowFunction: TypeAlias = Callable[[Flow], Stream[Any]]
"""`dataflow(flow) -> outputs`, as for `megaflow run`."""


def build_of(function: Any, args: Sequence[Any]) -> Callable[[Worker, Stream[Any], Stream[Any]], Stream[Any]]:
    """Return a `build(worker, records, commands)`: the function itself, or that of a `dataflow(flow)`.

    The lines of that are the records, and its commands are numbered. Raises UsageError for what is neither.
    """
    with suppress(TypeError, ValueError):
        signature(function).bind(None, None, None)
        return function  # type: ignore[no-any-return]
    check_function(function)

    def build(worker: Worker, records: Stream[Any], commands: Stream[Any]) -> Stream[Any]:
        numbered = broadcast(commands.port, Lane.MAIL)
        set_default(numbered)
        inputs = NamedInputs()
        read = partial(_parsed, records, inputs)
        flow = Flow(worker, Scope(commands.port.scope), Stream(numbered), args, read, inputs)
        return build_flow(function, flow, has_lines=True)

    return build


def _parsed(records: Stream[Any], inputs: NamedInputs) -> Stream[Any]:
    """Return the records of lines, by the format in which the program reads them."""
    stream = inputs.formats.get("", LINES).stream(lambda line: f"line {line + 1} of a feed", None)
    return records if stream is None else records.flat_map(lambda line: stream.feed([line]))


def check_feeds(feeds: Any, commands: Sequence[tuple[int, Any]], workers: Sequence[int]) -> None:
    """Raise UsageError for feeds or commands that would not go in as they stand."""
    if not isinstance(feeds, Mapping):
        raise UsageError(f"feeds must be a dict, worker -> [(time, record), …], not {feeds!r:.80}.")
    if strangers := set(feeds).difference(workers):
        raise UsageError(f"There are feeds for workers {sorted(strangers)}, but the workers are {list(workers)}.")
    for name, script in [*((f"feeds[{worker}]", feed) for worker, feed in feeds.items()), ("commands", commands)]:
        last = 0
        for time, _ in script:
            if not isinstance(time, int) or time < last:
                raise UsageError(f"{name}: Times must be ints in order, from 0 on, but {time!r} comes after {last}.")
            last = time
