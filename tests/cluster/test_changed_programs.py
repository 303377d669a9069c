"""A program that changed after its states were saved: each value stays as it was, or nothing changes at all."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Run, wait_until
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster


class Changing:
    """Program that is run, changed and run again, with more lines each time."""

    def __init__(self, folder: Path, start: Callable[..., Run]) -> None:
        self._start = start
        self._app, self._lines = folder / "till.py", folder / "sales.txt"
        self._store, self._out = folder / "kept", folder / "out.jsonl"

    def add(self, *lines: str) -> None:
        """Append lines to the input."""
        with self._lines.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def run(self, program: str, *flags: str, code: int = 0) -> str:
        """Run a program to its end; return the launcher's messages."""
        self._app.write_text(program)
        words = ("--lines", str(self._lines), "--output", f"jsonl:{self._out}", "--state", str(self._store))
        found, _, said = self._start(str(self._app), *words, *flags).end()
        assert found == code, said
        return "\n".join(said)

    def follow(self, program: str, lines: int, *flags: str, records: int = 0) -> None:
        """Run a program on growing input until it has applied `lines` and the output has `records`, then stop it."""
        self._app.write_text(program)
        words = ("--lines", str(self._lines), "--output", f"jsonl:{self._out}", "--state", str(self._store))
        run = self._start(str(self._app), *words, "--follow", *flags)
        run.status_when(lambda status: sum(each["records"] for each in status["workers"]) == lines)
        wait_until(lambda: len(self.records()) >= records)
        run.process.send_signal(signal.SIGINT)
        code, _, said = run.end()
        assert code == 130, said

    def refuse(self, program: str, *flags: str) -> str:
        """Run a program that is refused; return the reason. Neither the store nor the output may change."""
        before = self.files()
        said = self.run(program, *flags, code=1)
        check_equal(self.files(), before, said)
        return said

    def files(self) -> dict[str, bytes]:
        """Return the content of the store and of the output."""
        kept = [path for path in self._store.iterdir() if path.name != "lock"]
        return {path.name: path.read_bytes() for path in (*kept, self._out)}

    def records(self) -> list[Any]:
        """Return all records of the output."""
        return [json.loads(line)["record"] for line in self._out.read_text().splitlines()]


@pytest.fixture
def changing(tmp_path: Path, start: Callable[..., Run]) -> Changing:
    return Changing(tmp_path, start)


TILL = """
from dataclasses import dataclass
from typing import NamedTuple

class Total(NamedTuple):
    {fields}

class Customer(NamedTuple):
    {key}

def add(customer, cents, total):
    total = total or Total(cents=0, count=0)
    total = Total(cents=total.cents + cents, count=total.count + 1)
    return total, [[customer.name, customer.town, total.cents, total.count]]

def dataflow(flow):
    sales = flow.lines().map(str.split)
    pairs = sales.map(lambda sale: (Customer(name=sale[0], town=sale[1]), int(sale[2])))
    return pairs.stateful_state_machine(add, name="till")
"""
FIELDS, KEY = ("cents: int", "count: int"), ("name: str", "town: str")


def till(fields: tuple[str, ...] = FIELDS, key: tuple[str, ...] = KEY) -> str:
    return TILL.format(fields="\n    ".join(fields), key="\n    ".join(key))


def test_reordered_fields_of_a_named_tuple_stay_what_they_are(changing: Changing) -> None:
    changing.add("ann bonn 300", "ann bonn 300", "bob bern 7")
    changing.run(till())
    changing.add("ann bonn 2", "bob bern 1")
    changing.run(till(FIELDS[::-1]))
    with comparing():
        assert changing.records()[-2:] in (
            [["ann", "bonn", 602, 3], ["bob", "bern", 8, 2]],
            [["bob", "bern", 8, 2], ["ann", "bonn", 602, 3]],
        )


@pytest.mark.slow
def test_reordered_fields_of_a_key_are_refused(changing: Changing) -> None:
    changing.add("ann bonn 300", "bob bern 7")
    changing.run(till())
    changing.add("ann bonn 2")
    said = changing.refuse(till(key=KEY[::-1]))
    assert "operator 'till' had key Customer(town=" in said and "their order have changed since" in said
    changing.run(till())
    check_equal(changing.records()[-1:], [["ann", "bonn", 302, 2]])


WINDOWS = """
from megaflow import session, sliding, tumbling

def dataflow(flow):
    sales = flow.lines().map(str.split).event_time(lambda sale: float(sale[1]))
    pairs = sales.map(lambda sale: (sale[0], int(sale[2])))
    return pairs.window({}{}).{}().map(lambda each: [each[0], *each[1], each[2]])
"""
TUMBLING = WINDOWS.format("tumbling(20)", "", "sum")


@pytest.mark.slow
@pytest.mark.parametrize(
    "windows, verb",
    [("tumbling(10)", "sum"), ("sliding(20, every=10)", "sum"), ("session(20)", "sum"), ("tumbling(20)", "max")],
)
def test_other_windows_are_refused_until_it_is_said_how(changing: Changing, windows: str, verb: str) -> None:
    other = WINDOWS.format(windows, "", verb)
    changing.add("ann 1 300", "ann 12 30")
    changing.follow(TUMBLING, 2)
    said = changing.refuse(other, "--follow")
    assert "of operator 'window' in the store are of tumbling(20.000000) with sum, but the program has" in said
    assert "--drop-state window" in said and "version=2 and upgrade=" in said
    changing.add("ann 13 3", "ann 99 1")
    changing.follow(TUMBLING, 2, records=1)
    check_equal(changing.records(), [["ann", 0.0, 20.0, 333]])
    named = WINDOWS.format(windows, ", name='other'", verb)
    assert "--drop-state window" in changing.refuse(named, "--follow")
    changing.add("ann 99 5")
    changing.follow(named, 1, "--drop-state", "window")


@pytest.mark.slow
def test_an_upgrade_may_begin_windows_anew(changing: Changing) -> None:
    changing.add("ann 1 300", "ann 12 30")
    changing.follow(TUMBLING, 2)
    changing.add("ann 13 3", "ann 99 1")
    upgraded = WINDOWS.format("tumbling(10)", ", version=2, upgrade=lambda key, state, version: None", "sum")
    changing.follow(upgraded, 2, "--partial-windows", "emit", records=1)
    check_equal(changing.records(), [["ann", 10.0, 20.0, 3]], "which lacks the record that was forgotten")


ACCOUNTS = """
from dataclasses import dataclass
from typing import NamedTuple

{}

def add(name, cents, account):
    {}

{}

def dataflow(flow):
    sales = flow.lines().map(str.split).map(lambda sale: (sale[0], int(sale[1])))
    return sales.stateful_state_machine(add, name={}{})
"""
ADD = """account = account or Account(0, 0)
    account = Account(account.cents + cents, account.count + 1)
    return account, [[name, account.cents, account.count]]"""
CLASS = "@dataclass\nclass Account:\n    cents: int\n    count: int"
NEW = "@dataclass\nclass Balance:\n    euros: float"
NEW_ADD = """account = Balance((account or Balance(0)).euros + cents / 100)
    return account, [[name, account.euros]]"""
UPGRADE = """def upgrade(name, old, version):
    assert type(old).__name__ == "Account" and version == 1
    return Balance(old.cents / 100)"""
BEFORE = ACCOUNTS.format(CLASS, ADD, "", "'till'", "")


def accounts(changes: str = "", name: str = "till") -> str:
    """Return the program with other states."""
    return ACCOUNTS.format(NEW, NEW_ADD, UPGRADE, repr(name), changes)


@pytest.mark.slow
def test_a_missing_class_is_refused_until_it_is_said_how(changing: Changing) -> None:
    changing.add("ann 300", "bob 7")
    changing.run(BEFORE)
    changing.add("ann 100")
    said = changing.refuse(accounts())
    assert "cannot read the states of operator 'till' in the store: a value of class" in said
    assert "version=2 and upgrade=" in said and "--drop-state till" in said and "Traceback" not in said
    changing.run(BEFORE)
    check_equal(changing.records()[-1:], [["ann", 400, 2]])
    changing.add("ann 100", "bob 3")
    changing.run(accounts(", version=2, upgrade=upgrade"), "--processes", "2")
    check_equal(sorted(changing.records()[-2:]), [["ann", 5.0], ["bob", 0.1]])
    assert "run the newer program" in changing.refuse(BEFORE)


@pytest.mark.slow
def test_states_of_a_missing_class_can_be_dropped(changing: Changing) -> None:
    changing.add("ann 300", "bob 7")
    changing.run(BEFORE)
    changing.add("ann 100")
    changing.run(accounts(name="accounts"), "--drop-state", "till")
    check_equal(changing.records()[-1:], [["ann", 1.0]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changed",
    [
        CLASS.replace("    count: int", "    number: int"),
        CLASS + "\n    note: str = ''",
        CLASS.replace("\n    count: int", ""),
        "class Account(NamedTuple):\n    cents: int\n    count: int",
    ],
    ids=["renamed", "added", "removed", "another kind"],
)
def test_a_class_with_other_fields_is_refused(changing: Changing, changed: str) -> None:
    changing.add("ann 300", "bob 7")
    changing.run(BEFORE)
    changing.add("ann 100")
    said = changing.refuse(ACCOUNTS.format(changed, ADD, "", "'till'", ""))
    assert "cannot read the states of operator 'till' in the store: " in said and ".Account" in said
    changing.run(BEFORE)
    check_equal(changing.records()[-1:], [["ann", 400, 2]])


KEYED = """
def add(key, one, total):
    total = (total or 0) + one
    return total, [[repr(key), total]]

def dataflow(flow):
    return flow.lines().map(lambda line: ({}, 1)).stateful_state_machine(add, name={}{})
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_keys_of_another_type_are_refused(changing: Changing, processes: str) -> None:
    before = KEYED.format("line", "'count'", "")
    changing.add("ann", "bob", "ann")
    changing.run(before, "--processes", processes)
    changing.add("ann", "bob")
    other = KEYED.format("(line, 0)", "'count'", "")
    said = changing.run(other, "--processes", processes, code=1)
    assert "keys of operator 'count' in the store are of type str, but all keys since are of type" in said
    assert "(str, number)" in said and "--drop-state count" in said
    changing.run(before)
    check_equal(sorted(changing.records()[-2:]), [["'ann'", 3], ["'bob'", 2]])
    check_equal(len(changing.records()), 5)
    changing.add("ann")
    changing.run(KEYED.format("(line, 0)", "'pairs'", ""), "--drop-state", "count")
    check_equal(changing.records()[-1:], [["('ann', 0)", 1]])


@pytest.mark.slow
def test_other_keys_may_join_those_that_are_there(changing: Changing) -> None:
    changing.add("ann", "bob", "7")
    changing.run(KEYED.format("line", "'count'", ""))
    changing.add("7", "ann")
    changing.run(KEYED.format("int(line) if line.isdigit() else line", "'count'", ""))
    check_equal(sorted(changing.records()[-2:]), [["'ann'", 2], ["7", 1]])
    changing.add("7")
    changing.run(KEYED.format("(line, 0)", "'count'", ", version=2, upgrade=lambda key, old, version: None"))
    check_equal(changing.records()[-1:], [["('7', 0)", 1]])
