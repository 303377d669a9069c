"""Distribute: F's routing without a state to keep. Records go to the owner of their bin at their time, as they are.

The bins are empty, and move as those of other operators do: so the same commands steer it, the same views show it, and
a worker that leaves has given them up. S passes records on at once; nothing of a time depends on an empty bin.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from megaflow.megaphone.bins import stable_hash
from megaflow.megaphone.chunks import Chunk
from megaflow.megaphone.routing import Numbered
from megaflow.megaphone.splitting import ByRecord
from megaflow.megaphone.stateful import assemble, finish
from megaflow.timely.communication.channel import Lane
from megaflow.timely.dataflow.builder import Input, OperatorBuilder
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.graph import Port
from megaflow.timely.dataflow.pact import Addressed

T = TypeVar("T")


def distribute(
    port: Port[T],
    hash: Callable[[T], int] = stable_hash,
    control: Port[Numbered] | None = None,
    bins: int = 256,
    name: str | None = None,
) -> Port[T]:
    """Send each record to the owner of the bin of `hash(record)` at its time. Costs a hash per record."""
    assembly = assemble([port], hash, control, bins, str(name or "distribute"), ByRecord)
    installer, view = assembly.installer, assembly.view
    builder = OperatorBuilder(port.scope, assembly.name)
    data: Input[T] = builder.new_input(assembly.routed.data[0], Addressed())
    state: Input[Chunk] = builder.new_input(assembly.routed.state, Addressed(Lane.STATE))
    output, result = builder.new_output()

    def run() -> None:
        installer.install_all(state.drain())
        for time, batch in data.drain():
            view.meter.count(len(batch))
            output.ship(time, batch)

    def make(capabilities: list[Capability], info: Any) -> Callable[[], None]:
        capabilities[0].release()
        return run

    builder.build(make)
    finish(assembly, result)
    return result
