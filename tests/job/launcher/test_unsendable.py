"""The error for a dataflow that cannot be sent names the variable, its line and the remedy."""

import linecache
import threading
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.job.launcher.program.function_pickler import pickle_app

SCRIPT = """
import contextvars, functools, queue, socket, sqlite3, weakref
db = sqlite3.connect(":memory:")
out = open(__file__, "ab")
numbers = (n for n in range(9))
class Client:
    def __init__(self):
        self.inner = {"s": socket.socket()}
client = Client()
class Parser:
    file = [out]
    def parse(self, text):
        return text
if True:
    orders = queue.Queue()
known = weakref.WeakValueDictionary()
current = contextvars.ContextVar("current")
def insert(row):
    return db.execute(row)
def indirect(row):
    return [insert(each) for each in row]
def write(row):
    return out.write(row)
def send(row):
    return client.send(row)
def parse(row):
    return Parser().parse(row)
def default(row, to=numbers):
    return to
def fetch(row):
    return orders.get()
@functools.cache
def look_up(row):
    return known.get(row)
part = functools.partial(indirect, 1)
def switch(row):
    return current.get()
"""


@pytest.fixture
def script(tmp_path: Any) -> dict[str, Any]:
    """The names of the script as a main module has them."""
    path = tmp_path / "app.py"
    path.write_text(SCRIPT)
    linecache.checkcache()
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    exec(compile(SCRIPT, path, "exec"), names)
    return names


def refused(names: dict[str, Any], dataflow: Any) -> str:
    with pytest.raises(UsageError) as caught:
        pickle_app(dataflow)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    return str(caught.value)


@pytest.mark.parametrize(
    ("function", "variable", "line", "user", "what"),
    [
        ("insert", "db", 3, "insert", "it is an object of type 'sqlite3.Connection'"),
        ("indirect", "db", 3, "insert", "it is an object of type 'sqlite3.Connection'"),
        ("part", "db", 3, "insert", "it is an object of type 'sqlite3.Connection'"),
        ("write", "out", 4, "write", "it is an open file"),
        ("default", "to", 0, "default", "it is a generator"),
        ("send", "client", 9, "send", "its attribute 'inner' holds an object of type 'socket.socket'"),
        ("parse", "Parser", 10, "parse", "its attribute 'file' holds an open file"),
        ("fetch", "orders", 15, "fetch", "it is an object of type 'queue.Queue'"),
        ("look_up", "known", 16, "look_up", "it is an object of type 'weakref.WeakValueDictionary'"),
        ("switch", "current", 17, "switch", "it is an object of type '_contextvars.ContextVar'"),
    ],
)
def test_the_error_names_variable_line_and_remedy(
    script: dict[str, Any], function: str, variable: str, line: int, user: str, what: str
) -> None:
    exec(f"def dataflow(flow): return flow.lines().map({function})", script)
    said = refused(script, script["dataflow"])
    place = f" (app.py, line {line})" if line else ""
    assert said.startswith(
        f"The variable {variable!r}{place}, which {user!r} uses, cannot be sent to the workers: {what}"
    )
    assert said.endswith(f"Create it in 'dataflow', which each worker calls, or in {user!r} at its first call.")


def test_the_error_names_a_variable_of_an_enclosing_function() -> None:
    stop = threading.Event()

    def dataflow(flow: Any) -> Any:
        return flow.lines().filter(lambda line: stop.is_set())

    said = refused({}, dataflow)
    assert "The variable 'stop' (test_unsendable.py, line " in said and "'threading.Event'" in said


def test_the_error_names_an_attribute_of_a_callable_object(script: dict[str, Any]) -> None:
    exec("class Flow:\n    def __init__(self): self.db = db\n    def __call__(self, flow): return flow", script)
    assert "The dataflow 'Flow' cannot be sent to the workers: its attribute 'db' holds" in refused(
        script, script["Flow"]()
    )


def test_the_error_names_a_variable_of_code_without_a_module() -> None:
    names: dict[str, Any] = {"stop": threading.Event()}
    exec("def dataflow(flow):\n    return flow.lines().filter(lambda line: stop.is_set())", names)
    assert "The variable 'stop', which 'dataflow' uses, cannot be sent" in refused({}, names["dataflow"])
