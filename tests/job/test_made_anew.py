"""A worker creates new caches, locks and generic functions for those of the script."""

import pickle
import sys
from typing import Any

import pytest

from megaflow.job.launcher.program.function_pickler import pickle_by_value

SCRIPT = """
import functools, json, queue, random, struct, threading, types, typing
calls = []
@functools.cache
def fib(n):
    calls.append(n)
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(5)
last = functools.lru_cache(maxsize=1)(lambda n: [n])
last.note = "kept"
@functools.singledispatch
def show(value):
    return "other"
@show.register
def _(value: int):
    return f"int {value}"
@show.register
def _(value: list):
    return ",".join(map(show, value))
class Order:
    lock = threading.Lock()
    def __init__(self):
        self.guard = threading.RLock()
    @functools.cached_property
    def total(self):
        return [1]
    @functools.lru_cache
    def twice(self):
        return [2]
    @functools.singledispatchmethod
    def text(self, value):
        return "other"
    @text.register
    def _(self, value: int):
        return "int"
order = Order()
order.lock.acquire()
order.guard.acquire()
here = threading.local()
here.value = 1
unpack = struct.Struct("<H").unpack
from random import choice, random as draw
cached_loads = functools.cache(json.loads)
odd = types.SimpleNamespace(__module__="json", x=1)
UserId = typing.NewType("UserId", int)
P = typing.ParamSpec("P")
def typed(value: UserId, more: typing.Callable[P, int] = None) -> UserId:
    return UserId(value)
"""


def in_a_worker(expression: str) -> Any:
    """Return the result of a script's function after its transfer to a worker."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    exec(f"def function(): return {expression}", names)
    return pickle.loads(pickle_by_value(names["function"]))()


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(fib.cache_info().currsize, fib(9), fib.cache_info().currsize)", (0, 34, 10)),
        ("(last(1) is last(1), last.cache_info().maxsize, last.note)", (True, 1, "kept")),
        ("show([1, [2, 'a']])", "int 1,int 2,other"),
        ("(order.total is order.total, Order().twice(), order.text(1), order.text('a'))", (True, [2], "int", "other")),
        ("(order.lock.acquire(False), order.guard.acquire(False))", (True, True)),
        ("(draw.__self__, choice.__self__) == (random.random.__self__,) * 2", True),
        ("(cached_loads('[1]'), odd.x)", ([1], 1)),
        ("(order.lock is Order.lock, hasattr(here, 'value'))", (True, False)),
        ("(unpack(b'ab'), typed(3), UserId.__supertype__)", ((25185,), 3, int)),
    ],
)
def test_an_object_works_in_a_worker(expression: str, value: object) -> None:
    assert in_a_worker(expression) == value


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is of Python 3.12")
def test_an_alias_of_a_type_works_in_a_worker() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("type Pair[T] = tuple[T, int]\ndef swap(pair: Pair[str]): return pair[::-1]", names)
    assert pickle.loads(pickle_by_value(names["swap"]))(("a", 1)) == (1, "a")


@pytest.mark.parametrize(
    "expression",
    ["threading.Event()", "threading.Condition()", "threading.Thread()", "threading.Barrier(2)", "queue.Queue()"],
)
def test_what_connects_threads_is_refused_and_not_copied(expression: str) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(f"{SCRIPT}\nmade = {expression}\ndef function(): return made", names)
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle_by_value(names["function"])
