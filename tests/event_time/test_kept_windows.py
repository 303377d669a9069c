"""Windows resume from states of the same windows, sessions also from those of a shorter gap. Others are refused."""

from datetime import datetime, timedelta, tzinfo

import pytest

from megaflow.durable.restored import unchanged
from megaflow.event_time.accumulators import Accumulators, Count, Sum, best, extreme
from megaflow.event_time.kept_windows import WindowsForm
from megaflow.event_time.sessions import Sessions
from megaflow.event_time.windows import Windows, session, sliding, tumbling

COUNT, SUM = Count(), Sum("window")


def form(windows: Windows, *accumulators: object) -> WindowsForm:
    return WindowsForm(windows, Accumulators(accumulators))  # type: ignore[arg-type]


class FiveAhead(tzinfo):
    """A zone whose text contains an address that differs between processes."""

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=5)

    def dst(self, moment: datetime | None) -> timedelta:
        return timedelta(0)


def test_days_of_a_zone_of_the_program_go_on_in_the_next_run() -> None:
    before, after = (form(tumbling("1D", tz=zone), COUNT) for zone in (FiveAhead(), FiveAhead()))
    assert after.adapter(before.text()) is unchanged
    assert form(tumbling("1D"), COUNT).adapter(before.text()) is None


@pytest.mark.parametrize("windows", [
    tumbling(20), sliding(20, every=2.5), sliding(9, 3, offset=1), session(0.25),
    tumbling("1D", tz="Europe/Berlin"), tumbling("3M", tz="Asia/Tokyo", offset=-3600),
])
def test_the_same_windows_go_on_unchanged(windows: Windows) -> None:
    assert form(windows, COUNT).adapter(form(windows, COUNT).text()) is unchanged
    assert form(windows).adapter(form(windows, COUNT).text()) is unchanged, "while the dataflow is built"


@pytest.mark.parametrize(
    "before, after",
    [
        (form(tumbling(20), COUNT), form(sliding(20, every=10), COUNT)),
        (form(tumbling(10), COUNT), form(tumbling(20), COUNT)),
        (form(tumbling(10), COUNT), form(tumbling(10, offset=5), COUNT)),
        (form(sliding(20, every=10), COUNT), form(sliding(20, every=5), COUNT)),
        (form(tumbling(86_400), COUNT), form(tumbling("1D"), COUNT)),
        (form(tumbling("1D", tz="Asia/Tokyo"), COUNT), form(tumbling("1D"), COUNT)),
        (form(tumbling("1D"), COUNT), form(tumbling("2D"), COUNT)),
        (form(tumbling("1W"), COUNT), form(tumbling("1D"), COUNT)),
        (form(tumbling("1D"), COUNT), form(tumbling("1D", offset=3600), COUNT)),
        (form(tumbling("1D", offset=3600), COUNT), form(tumbling("1D", offset=-3600), COUNT)),
        (form(tumbling(10), COUNT), form(session(10), COUNT)),
        (form(session(10), COUNT), form(tumbling(10), COUNT)),
        (form(session(10), COUNT), form(session(9), COUNT)),
        (form(session(10), COUNT), form(session(11), SUM)),
        (form(tumbling(10), SUM), form(tumbling(10), extreme("window", "max", None, greatest=True))),
        (form(tumbling(10), extreme("w", "max", None, True)), form(tumbling(10), extreme("w", "max", len, True))),
        (form(tumbling(10), best("w", 3, None)), form(tumbling(10), best("w", 4, None))),
        (form(tumbling(10), COUNT, SUM), form(tumbling(10), SUM, COUNT)),
        (form(tumbling(10), COUNT), form(tumbling(10), COUNT, SUM)),
    ],
)
def test_other_windows_or_aggregations_are_refused(before: WindowsForm, after: WindowsForm) -> None:
    assert after.adapter(before.text()) is None


def test_a_longer_gap_lengthens_open_sessions() -> None:
    accumulators = Accumulators([COUNT])
    state, *_ = Sessions(session(10), accumulators, 0).take(None, [(0, "a"), (15_000_000, "b")], 0)
    adapt = form(session(20), COUNT).adapter(form(session(10), COUNT).text())
    assert adapt is not None
    longer = Sessions(session(20), accumulators, 0)
    state, *_ = longer.take(adapt(state), [(34_000_000, "c")], 0)
    assert [each[:2] for each in state[1]] == [[0, 15_000_000], [15_000_000, 54_000_000]]
    state, *_ = longer.take(state, [(1_000_000, "d")], 0)
    assert state[1] == [[0, 54_000_000, [4]]]
