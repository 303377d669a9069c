"""Watermarks on a simulated cluster: those of the partition that is furthest behind, and an infinite one at the end."""

from types import SimpleNamespace
from typing import Any

from megaflow.control.watermark_messages import MaximaSeen
from megaflow.job.worker.flow import Flow
from megaflow.megaphone.event_unit import INFINITE
from megaflow.megaphone.routing import Watermark
from megaflow.stream import Stream
from megaflow.testing import SimulatedCluster
from megaflow.testing.simulated_watermarks import SimulatedWatermarks


def watermarks(inputs: dict[int, str], **operators: tuple[int, tuple[str, ...]]) -> SimulatedWatermarks:
    made = SimulatedWatermarks(inputs)
    specs: Any = {name: SimpleNamespace(out_of_order=late, follows=names) for name, (late, names) in operators.items()}
    made.operators = specs
    return made


def seen(number: int, micros: int, operator: str = "event_time") -> MaximaSeen:
    return MaximaSeen(operator, ((("split", number), micros),))


def test_it_is_that_of_the_partition_that_is_furthest_behind_and_there_is_none_before_all_have_begun() -> None:
    made = watermarks({0: "", 1: ""}, event_time=(10, ("",)))
    made.learn(seen(0, 100))
    assert made.due() == []
    made.learn(seen(1, 50))
    assert made.due() == [Watermark(40)] and made.due() == []
    made.learn(seen(1, 30))
    assert made.due() == [], "it never falls"
    made.read(1)
    assert made.due() == [Watermark(90)]


def test_partitions_that_no_operator_follows_do_not_count() -> None:
    made = watermarks({0: "orders", 1: "names"}, event_time=(0, ("orders",)))
    made.learn(seen(0, 7))
    assert made.due() == [Watermark(7)]


def test_in_the_end_it_is_infinite() -> None:
    made = watermarks({0: ""}, event_time=(0, ("",)))
    made.read(0)
    assert made.due() == [] and made.at_end() == [Watermark(INFINITE)]
    assert watermarks({0: ""}).at_end() == [Watermark(INFINITE)]


def test_each_timer_fires_once_and_in_order_while_lines_are_read() -> None:
    """Of some seeds the first fires before the last line is read: watermarks come on the way."""

    def wait(key: str, time: int, came: list[Any], state: None, timers: Any) -> tuple[None, list[tuple[Any, int]]]:
        for each in came:
            if isinstance(each, int):
                timers.at_event(each, (each, time))
        return None, [(each, time) for each in came if not isinstance(each, int)]

    def dataflow(flow: Flow) -> Stream[Any]:
        return flow.lines().map(int).event_time(lambda n: n).map(lambda n: ("", n)).stateful_unary(wait)

    early = 0
    for seed in range(5):
        fired = SimulatedCluster(seed, workers=2).run(dataflow, lines=[map(str, range(60)), map(str, range(60))])
        assert [number for (number, _), _ in fired] == sorted([*range(60)] * 2)
        early += fired[0][1] < max(set_at for (_, set_at), _ in fired)
    assert early
