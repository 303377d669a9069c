"""Garbage that only Python's collector finds: objects that refer to each other in a circle.

The collector of a launcher or worker runs rarely, because its work is lost time for a stream. So what comes and goes
all the time, such as processes, connections and refused commands, must not leave such circles. A test makes some in
`uncollected`, and looks by weak references whether they have gone.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keep the collector from running in the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
