"""Classes that travel by their fields, the code that a peer cannot run by naming a class, and `register`."""

import abc
import contextlib
import dataclasses
import functools
import importlib
import logging
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle
import msgpack
import pytest

import megaflow
from megaflow.errors import CannotTravel, ProtocolError, UsageError
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.spec import AppFile, PickledFunction
from megaflow.job.worker.process.program_loading import load
from megaflow.timely.communication.codec import tags, user_types
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode, of_main
from tests.timely.communication.codec.registrations import undone

T = TypeVar("T")
ran: list[str] = []


class Session:
    """A class as a beginner writes it."""

    limit = 3

    def __init__(self, user: str) -> None:
        ran.append("init")
        self.user, self.clicks = user, [1]

    def __setattr__(self, name: str, value: object) -> None:
        ran.append("setattr")
        object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        ran.append("getattribute")
        return object.__getattribute__(self, name)

    @property
    def size(self) -> int:
        raise AssertionError("ran")

    @size.setter
    def size(self, value: int) -> None:
        raise AssertionError("ran")

    @functools.cached_property
    def name(self) -> str:
        return self.user.upper()

    def step(self) -> None:
        raise AssertionError("ran")


class Base(abc.ABC, Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value

    @abc.abstractmethod
    def act(self) -> None: ...


class Derived(Base[int]):
    def act(self) -> None: ...


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if sys._getframe(1).f_code.co_filename == user_types.__file__:
            raise AssertionError(f"ran: {name}")
        return type.__getattribute__(cls, name)


class WithMeta(metaclass=Meta):
    pass


class Unlinks:
    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            Path(self.path).unlink()  # type: ignore[attr-defined]


@dataclasses.dataclass
class Guarded(Unlinks):
    path: str


class Stateful:
    """Has a cache that does not travel."""

    def __init__(self, n: int) -> None:
        self.n, self.cache = n, object()

    def __getstate__(self) -> Any:
        return {"n": self.n}

    def __setstate__(self, state: Any) -> None:
        self.n, self.cache = state["n"], object()


class OnlyGets(Stateful):
    __setstate__ = None  # type: ignore[assignment]


class Child(Stateful):
    pass


class HidesDict:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise AssertionError("ran")


class Error(Exception):
    pass


@pytest.fixture
def registered() -> Any:
    """Undo registrations after the test."""
    with undone():
        yield


def sent(*node: Any) -> Any:
    return decode(msgpack.packb(list(node)))


def an_object(cls: type, **fields: Any) -> list[Any]:
    return [tags.OBJECT, cls.__module__, cls.__qualname__, list(fields), [tags.LIST, list(fields.values())]]


def test_an_object_of_the_programs_own_class_arrives_without_running_its_code() -> None:
    session = Session("ada")
    assert session.name == "ADA"
    ran.clear()
    arrived = decode(encode(session))
    assert ran == []
    assert type(arrived) is Session
    assert object.__getattribute__(arrived, "__dict__") == {"user": "ada", "clicks": [1], "name": "ADA"}
    assert vars(decode(encode(Derived(3)))) == {"value": 3}


@pytest.mark.parametrize(
    "name",
    [
        f"{__name__}:{each}"
        for each in ("Unlinks", "WithMeta", "Stateful", "Child", "Error", "Base", "Guarded", "subprocess.Popen", "T")
    ]
    + ["subprocess:Popen", "logging:Logger", "logging:StreamHandler", "pathlib:Path", "types:SimpleNamespace"]
    + ["datetime:tzinfo", "threading:local", "functools:partial", "builtins:dict", "builtins:type", "builtins:object"]
    + ["megaflow.errors:CannotTravel", "megaflow.megaphone.base.bins:BinStore", "msgpack:Packer", "pytest:Session"]
    + ["nothing.at.all:Thing", f"{__name__}:Session.__init__"],
)
def test_a_peer_cannot_have_an_object_made_of_such_a_class(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("still here")
    module, qualname = name.split(":")
    imported = set(sys.modules)
    with pytest.raises(ProtocolError) as caught:
        sent(tags.OBJECT, module, qualname, ["path"], [tags.LIST, [str(victim)]])
    if qualname == "Guarded":
        with pytest.raises(ProtocolError):
            sent(tags.DATACLASS, module, qualname, ["path"], [tags.LIST, [str(victim)]])
    assert victim.exists() and set(sys.modules) == imported and "ran" not in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [{"size": 1}, {"step": 1}, {"__class__": 1}, {"__dict__": 1}, {"__init__": 1}, {"__weakref__": 1}, {1: 2}],
    ids=str,
)
def test_a_peer_cannot_put_a_field_where_the_class_has_a_method_or_a_property(fields: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError, match="arrived with a field"):
        sent(tags.OBJECT, __name__, "Session", list(fields), [tags.LIST, list(fields.values())])


def test_an_attribute_that_hides_a_method_is_refused_where_it_is_sent() -> None:
    session = Session("ada")
    session.step = 3  # type: ignore[assignment,method-assign]
    with pytest.raises(CannotTravel, match="'step' hides"):
        encode(session)


def test_objects_without_a_dict_take_their_slots_only() -> None:
    class_ = types.new_class("Slim", (), {}, lambda names: names.update(__slots__=("a",), __module__=__name__))
    globals()["Slim"] = class_
    try:
        assert sent(*an_object(class_, a=3)).a == 3
        with pytest.raises(ProtocolError):
            sent(*an_object(class_, b=3))
    finally:
        del globals()["Slim"]


def test_a_class_that_hides_its_dict_does_not_have_its_code_run() -> None:
    arrived = sent(*an_object(HidesDict))
    assert type(arrived) is HidesDict
    encode(arrived)


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        ("/home/ada/app.py", True),
        ("/home/ada/pkg/model.py", True),
        ("/home/ada/.venv/lib/python3.11/site-packages/lib/model.py", False),
        ("/usr/lib/python3/dist-packages/lib/model.py", False),
        (f"{Path(pickle.__file__).parent}/lib/model.py", False),
        (f"{Path(megaflow.__file__).parent}/model.py", False),
        (None, False),
    ],
)
def test_a_module_is_the_programs_own_by_its_file(file: str | None, is_own: bool, monkeypatch: Any) -> None:
    module = types.ModuleType("some_model")
    if file is not None:
        module.__file__ = file
    cls = type("Thing", (), {"__module__": "some_model"})
    module.Thing = cls  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "some_model", module)
    assert (user_types.why_not_by_fields(cls) is None) == is_own
    if is_own:
        assert type(decode(encode(cls()))) is cls


def test_a_module_of_the_apps_own_folder_is_the_programs_own_wherever_that_is_and_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages" / "myapp"
    folder.mkdir(parents=True)
    (folder / "installed_app.py").write_text("class Mine:\n    pass\ndef dataflow(flow): pass\n")
    (folder / "neighbour_of_it.py").write_text("class Near:\n    pass\n")
    (folder / "wave.py").write_text("class High:\n    pass\n")
    monkeypatch.delitem(sys.modules, "wave", raising=False)
    try:
        with undone():
            function = load(AppFile(str(folder / "installed_app.py"), "dataflow"))
            import neighbour_of_it  # type: ignore[import-not-found]

            named_like_one_of_pythons = importlib.import_module("wave")
            for cls in (function.__globals__["Mine"], neighbour_of_it.Near, named_like_one_of_pythons.High):
                assert type(decode(encode(cls()))) is cls
    finally:
        for name in ("installed_app", "neighbour_of_it", "wave"):
            sys.modules.pop(name, None)


NOTEBOOK = """
import dataclasses, subprocess
class Visit:
    def __init__(self, n): self.n = n
@dataclasses.dataclass
class Seen:
    n: int
def fold(key, n, state):
    subprocess.Popen
    return Visit(n), [Seen(n)]
def dataflow(flow):
    return fold
class Dataflow:
    def __call__(self, flow): return fold
    def build(self, flow): return fold
def of_two(fold, flow):
    return fold
"""


@pytest.mark.parametrize(
    "given",
    [
        lambda module: module.dataflow,
        lambda module: functools.wraps(module.dataflow)(lambda flow: module.dataflow(flow)),
        lambda module: functools.partial(module.of_two, module.fold),
        lambda module: functools.partial(functools.partial(module.of_two), module.fold),
        lambda module: module.Dataflow(),
        lambda module: module.Dataflow().build,
    ],
    ids=["function", "decorated", "partial", "partial of a partial", "object", "method"],
)
def test_the_classes_of_a_pickled_function_are_the_programs_own(given: Callable[[Any], Any]) -> None:
    module = types.ModuleType("a_notebook")
    sys.modules["a_notebook"] = module
    exec(NOTEBOOK, vars(module))
    cloudpickle.register_pickle_by_value(module)
    data = cloudpickle.dumps(given(module))
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules["a_notebook"]
    module.__dict__.clear()
    with undone():
        fold = load(PickledFunction(data, tuple(sys.path)))(None)
        state, outputs = fold("a", 3, None)
        for value in (state, *outputs):
            arrived = decode(encode(value))
            assert type(arrived) is type(value) and vars(arrived) == {"n": 3}
        with pytest.raises(ProtocolError):
            sent(tags.OBJECT, "a_notebook", "subprocess.Popen", [], [tags.LIST, []])


# Registered


SCRIPT = """
import fractions, logging, megaflow
megaflow.register(fractions.Fraction, lambda value: [value.numerator, value.denominator],
                  lambda pair: fractions.Fraction(*pair))
megaflow.register(logging.Filter)
def dataflow(flow):
    return flow
"""


def test_what_a_script_registers_reaches_its_workers(registered: Any) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    app = pickle_app(names["dataflow"])
    code = """
import pickle, sys
from megaflow.job.worker.process.program_loading import load
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
load(pickle.loads(bytes.fromhex(sys.stdin.read())))
import fractions, logging
print(decode(encode(fractions.Fraction(1, 3))), decode(encode(logging.Filter("a"))).name)
"""
    run = [sys.executable, "-c", code]
    shown = subprocess.run(run, input=pickle.dumps(app).hex(), stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown == "1/3 a\n"


def test_a_registered_class_travels_by_its_own_state_or_by_its_fields(registered: Any) -> None:
    megaflow.register(Stateful)
    arrived = decode(encode(Stateful(3)))
    assert (type(arrived), arrived.n) == (Stateful, 3) and arrived.cache is not None
    megaflow.register(logging.Filter)
    arrived = decode(encode(logging.Filter("a.b")))
    assert type(arrived) is logging.Filter and vars(arrived) == vars(logging.Filter("a.b"))
    with pytest.raises(CannotTravel, match=r"register\(Child\)"):
        encode(Child(1))


def test_a_class_that_only_gives_its_state_gets_it_back_as_fields(registered: Any) -> None:
    del OnlyGets.__setstate__
    Stateful.__setstate__, kept = None, Stateful.__setstate__  # type: ignore[assignment,method-assign]
    del Stateful.__setstate__
    try:
        megaflow.register(OnlyGets)
        assert vars(decode(encode(OnlyGets(3)))) == {"n": 3}
    finally:
        Stateful.__setstate__ = kept  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("cls", "why"),
    [(Error, "more"), (type("Odd", (), {"__reduce__": lambda self: 1}), "__reduce__"), (subprocess.Popen, None)],
)
def test_a_class_that_is_more_than_its_fields_needs_two_functions(cls: type, why: str | None, registered: Any) -> None:
    if why is None:
        megaflow.register(cls)  # trusted, whatever it does
        return
    with pytest.raises(UsageError, match=f"{why}.*encode, decode"):
        megaflow.register(cls)
    with pytest.raises(UsageError, match="one function"):
        megaflow.register(cls, lambda value: 1)  # type: ignore[call-overload]


DECODE = """
import pickle, sys
from megaflow.timely.communication.codec.decode import decode
for data in pickle.loads(bytes.fromhex(sys.stdin.read())):
    print(type(decode(data)).__qualname__)
"""


def test_the_decoder_knows_every_record_class_of_megaflow() -> None:
    not_records = {"Config", "Broadcast", "Exchange", "Flow", "JobControl", "Pipeline", "OperatorInfo"}
    doors = [importlib.import_module(name) for name in ("megaflow", "megaflow.connect", "megaflow.timely")]
    offered = {name: getattr(door, name) for door in doors for name in door.__all__ if name not in not_records}
    records = [
        each
        for each in offered.values()
        if isinstance(each, type) and (user_types.is_named_tuple(each) or dataclasses.is_dataclass(each))
    ]
    assert {megaflow.Window} <= {*records}
    values = [
        encode(user_types.storage_of(each).fill(names, names) if dataclasses.is_dataclass(each) else each(*names))
        for each in records
        for names in [[*getattr(each, "_fields", getattr(each, "__dataclass_fields__", ()))]]
    ]
    run = [sys.executable, "-c", DECODE]
    shown = subprocess.run(run, input=pickle.dumps(values).hex(), stdout=subprocess.PIPE, text=True, check=True).stdout
    assert shown.split() == [each.__qualname__ for each in records]


def test_an_instance_of_a_redefined_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Order:
        """The class that the module had under that name."""

    Order.__qualname__ = "OrderOfToday"
    monkeypatch.setitem(globals(), "OrderOfToday", Order)
    again = type("OrderOfToday", (), {"__module__": __name__, "__qualname__": "OrderOfToday"})
    user_types.check_findable(Order)
    with pytest.raises(CannotTravel, match="defined again after the value was made: make the value again"):
        user_types.check_findable(again)


@pytest.mark.parametrize("kind", ["object", "dataclass", "NamedTuple", "registered"])
def test_a_job_refuses_a_class_that_was_redefined_after_an_earlier_job(
    kind: str, monkeypatch: pytest.MonkeyPatch, registered: Any
) -> None:
    def define() -> Any:
        names = {"__name__": "__main__"}
        base, head = ("(NamedTuple)", "") if kind == "NamedTuple" else ("", "")
        head = "@dataclasses.dataclass\n" if kind == "dataclass" else head
        code = f"import dataclasses\nfrom typing import NamedTuple\n{head}class OfTheCell{base}:\n    size: int = 3\n"
        exec(code, names)
        monkeypatch.setitem(vars(sys.modules["__main__"]), "OfTheCell", names["OfTheCell"])
        if kind == "registered":
            exec("import megaflow\nmegaflow.register(cls)", {"__name__": "__main__", "cls": names["OfTheCell"]})
        return names["OfTheCell"]

    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)  # as a notebook's
    old = define()()
    assert type(decode(encode(old))) is type(old)
    assert pickle_app(len).data and decode(encode(old)).size == 3, "the class is the same"
    new = define()()
    assert type(new) is not type(old)
    pickle_app(len)
    assert type(decode(encode(new))) is type(new)
    with pytest.raises(CannotTravel, match="defined again after the value was made: make the value again"):
        encode(old)
    assert type(old) not in of_main
