"""The limit on reading ahead of other inputs. No order of events makes inputs wait for each other forever."""

from hypothesis import given
from hypothesis import strategies as st

from megaflow.control.coordinator.base.job_state import TimedOperator
from megaflow.control.coordinator.reading.input_fronts import PERIOD_SECONDS, STILL_SECONDS, InputFronts, limits_of
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.messages import Split
from megaflow.control.reading_messages import ReadLimits, SplitRead
from tests.control.coordinator.coordination import Coordination

SKEW = 100
FRONTS = st.dictionaries(st.sampled_from("abcd"), st.integers(-1000, 1000))


@given(fronts=FRONTS, skew=st.integers(0, 500), share=st.integers(0, 15))
def test_slowest_input_is_never_limited_below_its_front(fronts: dict[str, int], skew: int, share: int) -> None:
    counting = {each: front for place, (each, front) in enumerate(sorted(fronts.items())) if share >> place & 1}
    limits = limits_of(counting, "abcd", skew)
    for each, limit in limits.items():
        assert limit == min(counting[other] for other in counting if other != each) + skew
    if counting:
        slowest = min(counting, key=fronts.__getitem__)
        assert limits.get(slowest, fronts[slowest]) >= fronts[slowest]
        assert limits.keys() >= {*"abcd"} - {slowest}


class Bench(Coordination):
    """The fronts of a job with two inputs of one file each, `a` on worker 0 and `b` on worker 1."""

    def __init__(self, skew: int | None = SKEW) -> None:
        super().__init__()
        files = [Split(number, name, 0, 2 << 20, name) for number, name in enumerate("ab")]
        self.lines = LinesToRead(self.roster, self.stream, files, False)
        self.lines.go_on()
        self.fronts = InputFronts(skew, {"time": TimedOperator(7, frozenset("ab"))}, self.lines)

    def see(self, number: int, micros: int) -> None:
        self.fronts.see("time", [(("split", number), micros), (("partition", -1), 1)], self.now)

    def due(self, seconds: float = 2 * PERIOD_SECONDS) -> list[ReadLimits]:
        self.now += seconds
        return self.fronts.due(self.now)


def test_limits_follow_the_fronts_of_files_that_are_read() -> None:
    bench = Bench()
    assert bench.due() == [ReadLimits({})], "whoever coordinated before may have set some"
    bench.see(0, 1007)
    assert bench.due() == [ReadLimits({"b": 1000 + SKEW})], "nothing is known of b"
    assert bench.fronts.limits == {"b": 1000 + SKEW}
    bench.see(1, 17)
    assert bench.due() == [ReadLimits({"a": 10 + SKEW, "b": 1000 + SKEW})]
    bench.see(1, 12)
    assert bench.due() == [] and bench.due(0.0) == []
    bench.see(1, 57)
    assert bench.due(PERIOD_SECONDS / 2) == [], "limits come only so often"
    assert bench.due() == [ReadLimits({"a": 50 + SKEW, "b": 1000 + SKEW})]


def test_input_that_is_read_to_its_end_limits_nobody() -> None:
    bench = Bench()
    bench.see(0, 1007), bench.see(1, 17)
    assert bench.due() == [ReadLimits({"a": 10 + SKEW, "b": 1000 + SKEW})]
    bench.lines.learn(1, SplitRead(1), False)
    bench.lines.learn(0, SplitRead(1), False)
    assert bench.due() == [ReadLimits({"b": 1000 + SKEW})]


def test_input_whose_front_stands_still_holds_nobody() -> None:
    bench = Bench()
    bench.see(0, 1007), bench.see(1, 17)
    assert bench.due() == [ReadLimits({"a": 10 + SKEW, "b": 1000 + SKEW})]
    bench.now += STILL_SECONDS / 2
    bench.see(0, 1008)
    assert bench.due(STILL_SECONDS / 2) == [ReadLimits({"b": 1001 + SKEW})]
    assert bench.due(STILL_SECONDS) == [ReadLimits({})]
    bench.see(1, 57)
    assert bench.due() == [ReadLimits({"a": 50 + SKEW})], "it is read again"


def test_without_a_skew_there_are_no_limits() -> None:
    bench = Bench(None)
    bench.see(0, 1007), bench.see(1, 17)
    assert bench.due() == []
