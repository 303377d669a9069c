"""The trial before a move: a check that everything in certain bins can travel, made before anything moves.

The trial lowers every key, state and timer of the bins as for the wire, and throws the result away. It skips values
that need no trial: of keys and states that are None, numbers, str or bytes it looks only at the types, at some ten
million a second. Other values cost as much as encoding them, about a microsecond for a small one.

A trial is a generator that yields after each piece of work, which takes at most about a millisecond plus one key. Its
caller runs it between the steps of the worker, for as long as it has time. Keys come and go meanwhile. The trial skips
keys that are gone, and S tries the first new key of each type. A trial describes one moment; it promises nothing for
the next one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from reprlib import Repr
from typing import Any

from megaflow.errors import CannotTravel
from megaflow.megaphone.base.bins import BinStore
from megaflow.timely.communication.codec.class_names import ClassName, classes_in
from megaflow.timely.communication.codec.lowering import lower_shared
from megaflow.timely.communication.codec.tags import SCALARS

SCANNED_KEYS = 1024  # number of keys whose types are checked between two yields
TRIED_SECONDS = 0.001  # the most that a run takes, unless it has only one key
TRIED_KEYS_MAX = 256  # in one run
STATE = "the state of "
PAYLOAD = "a timer's payload for "

_short = Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80  # characters


def shortened(value: object) -> str:
    """Return a short form of any value, about a hundred characters at most.

    >>> shortened(list(range(100)))
    '[0, 1, 2, 3, 4, 5, ...]'
    """
    return _short.repr(value)


def trial(
    name: str, store: BinStore, bins: Iterable[int], now: Callable[[], float], met: set[ClassName]
) -> Iterator[None]:
    """Try the contents of the bins of operator `name`, piece by piece; bins that are not on this worker have none.

    Adds to `met` the classes of the objects in the bins, which the new owners must know. Raises CannotTravel naming
    operator, key and type. `now`: a clock in seconds.
    """
    for bin in bins:
        keys = list(store.bins.get(bin, ()))
        for start in range(0, len(keys), SCANNED_KEYS):
            some = keys[start : start + SCANNED_KEYS]
            states = list(map(store.states.get, some))  # None for keys that are gone
            yield from _try(name, STATE, _worth_trying(some, states), now, met)
        timers = [timer[1:] for timer in (*store.timers.of(bin), *store.events.of(bin))]
        yield from _try(name, PAYLOAD, _worth_trying(*map(list, zip(*timers))) if timers else [], now, met)


def _worth_trying(keys: list[Any], values: list[Any]) -> list[tuple[Any, Any]]:
    if set(map(type, keys)) | set(map(type, values)) <= SCALARS:
        return []
    return [pair for pair in zip(keys, values) if type(pair[0]) not in SCALARS or type(pair[1]) not in SCALARS]


def _try(
    name: str, what: str, pairs: Sequence[tuple[Any, Any]], now: Callable[[], float], met: set[ClassName]
) -> Iterator[None]:
    start, size = 0, 1
    while start < len(pairs):
        began = now()
        run = pairs[start : start + size]
        try:
            classes_in(lower_shared(run), met)
        except Exception:  # perhaps from a registered function
            check_pairs(name, run, what)
            raise
        start += size
        size = min(TRIED_KEYS_MAX, 2 * size) if now() - began < TRIED_SECONDS / 2 else max(1, size // 2)
        yield
    yield


def check_pairs(name: str, pairs: Iterable[tuple[Any, Any]], what: str = STATE, show: bool = False) -> None:
    """Raise CannotTravel naming operator, key and type if a key or its value cannot travel.

    `what`: a description of the second part of each pair; `show`: put the value into the message.
    """
    for key, value in pairs:
        for part, tried in (("", key), (what, value)):
            try:
                lower_shared(tried)
            except Exception as error:
                reason = str(error)
                if not isinstance(error, CannotTravel):
                    reason = f"encoding a {type(tried).__qualname__} raised {type(error).__name__}: {error}"
                shown = f", which is {shortened(value)}," if show else ""
                raise CannotTravel(f"{name}: {part}key {shortened(key)}{shown} cannot be encoded: {reason}") from None
