"""A process that disconnects while it waits for its turn makes no other process wait."""

from typing import Any

import pytest

from megaflow.timely.membership import founding
from megaflow.timely.rescale.join_door import JoinDoor
from megaflow.timely.rescale.messages import TOPIC, Admission, Denied, JoinAsk, LinkLost

HELLO = {"host": "h", "port": 50, "workers": 1, "server": None}
ADMISSION = Admission(1, 2, (2,), 0, founding([0, 1]), {0: ("h", 1, (0,)), 1: ("h", 2, (1,))}, ((0, founding([0, 1])),))


class Caller:
    """Connection of a process that asks."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def send(self, value: object) -> None:
        self.told.append(value)

    def close(self) -> None:
        self.told.append("closed")


@pytest.fixture
def mail() -> list[tuple[int, str, Any]]:
    return []


@pytest.fixture
def door(mail: list[tuple[int, str, Any]]) -> JoinDoor:
    made = JoinDoor([4, 5])
    made.attach(lambda worker, topic, body: mail.append((worker, topic, body)))
    return made


def asked(door: JoinDoor, mail: list[tuple[int, str, Any]]) -> tuple[Any, int]:
    caller: Any = Caller()
    door.connected(caller, HELLO)
    worker, topic, ask = mail.pop()
    assert (worker, topic) == (4, TOPIC) and isinstance(ask, JoinAsk)
    return caller, ask.key


def test_who_waits_gets_the_answer_and_nobody_else_hears_of_it(door: JoinDoor, mail: list[Any]) -> None:
    caller, key = asked(door, mail)
    door.answer(key, ADMISSION)
    door.lost(caller)
    assert caller.told == [ADMISSION, "closed"] and mail == []


def test_the_admission_of_one_that_has_hung_up_is_given_back(door: JoinDoor, mail: list[Any]) -> None:
    caller, key = asked(door, mail)
    other, _ = asked(door, mail)
    door.lost(caller)
    assert mail == []
    door.answer(key, ADMISSION)
    door.answer(key, ADMISSION)
    assert mail == [(4, TOPIC, LinkLost((2,)))] and caller.told == other.told == []


def test_a_refusal_of_one_that_has_hung_up_concerns_nobody(door: JoinDoor, mail: list[Any]) -> None:
    caller, key = asked(door, mail)
    door.lost(caller)
    door.answer(key, Denied("no"))
    assert mail == []


def test_a_worker_that_has_finished_is_told_nothing(door: JoinDoor, mail: list[Any]) -> None:
    caller, key = asked(door, mail)
    door.lost(caller)
    door.finished(4)
    door.answer(key, ADMISSION)
    assert mail == []
