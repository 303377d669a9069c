"""A failure of the program as an error of the class that the program raised: `except ValueError` works at the launcher.

A worker sends the name of the class. The error here is an instance of a new class, which derives from PeerFailed and
from that class. Its text is the report with the traceback.

1. No code of the program runs. The class must already be there, under its name in an imported module. Nothing that the
   class may define is called: Python's own base class makes the instance, so fields that `__init__` sets are missing. A
   class with a metaclass, `__init_subclass__` or `__del__` is left alone.
2. StopIteration and StopAsyncIteration are left alone, because they would silently end the loop over the outputs.
3. The launcher itself handles plain PeerFailed. The class is restored where the program gets the error. Otherwise the
   launcher could mistake an OSError of the program for one of its own.
"""

import sys
from typing import Any, Final

from megaflow.errors import PeerFailed

IS_OF_PROGRAM: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class is made at run time, as by a class statement
ARGS: Final[Any] = vars(BaseException)["args"]
RUNS: Final = ("__init_subclass__", "__del__")


def typed(failure: BaseException) -> BaseException:
    """Return an error of the class that the program raised; the error itself if that is not possible.

    >>> error = typed(PeerFailed("KeyError: 'a'", "builtins:KeyError"))
    >>> isinstance(error, KeyError) and isinstance(error, PeerFailed), str(error), type(error).__name__
    (True, "KeyError: 'a'", 'KeyError')
    """
    cls = _found(failure.raised) if isinstance(failure, PeerFailed) else None
    if cls is None:
        return failure
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": None}
    try:
        made: Any = type(cls.__name__, (PeerFailed, cls), names)
        own: Any = made
        while own.__flags__ & IS_OF_PROGRAM:
            own = own.__base__  # Python accepts `__new__` of no other class; for a MemoryError it is that of Exception
        error: BaseException = own.__new__(made, str(failure))
    except TypeError:  # the classes have conflicting fields, or the class needs more arguments
        return failure
    ARGS.__set__(error, (str(failure),))
    return error


def _found(name: str) -> type[Exception] | None:
    """Return the class of an error; None if it is missing or not allowed: see rules 1 and 2."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, type(sys) | type) else None
    if type(found) is not type or not issubclass(found, Exception) or issubclass(PeerFailed, found):
        return None
    runs = any(name in vars(each) for each in found.__mro__ if each.__flags__ & IS_OF_PROGRAM for name in RUNS)
    return None if runs or issubclass(found, StopIteration | StopAsyncIteration) else found
