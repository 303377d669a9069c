"""Forks of the test's process that live as long as a block, for tests of what a fork shares with its parent."""

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import IO


@contextlib.contextmanager
def forked(does: Callable[[], object] = bool) -> Iterator[str]:
    """Run a function in a fork that lives until the block has ended; yield the text of what it returns or raises.

    The fork ends without any of the code that other processes run at their end.
    """
    reading, writing = os.pipe()
    awaited, end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for a fork of a process with threads
        pid = os.fork()
    if not pid:
        try:
            os.close(end)
            os.close(reading)
            try:
                said = repr(does())
            except Exception as error:
                said = repr(error)
            os.write(writing, said.encode())
            os.close(writing)
            os.read(awaited, 1)
        finally:
            os._exit(0)  # even after an error: the remaining tests belong to the parent
    os.close(writing)
    os.close(awaited)
    with contextlib.ExitStack() as stack:
        stack.callback(os.waitpid, pid, 0)
        stack.callback(os.close, end)
        pipe: IO[str] = stack.enter_context(open(reading))
        yield pipe.read()
