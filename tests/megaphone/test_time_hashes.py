"""Times of numpy and pandas have the hashes of the equal times of Python, whatever their unit and zone."""

import contextlib
import datetime
import zoneinfo
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.durable.key_kinds import kind_of
from megaflow.errors import UsageError
from megaflow.megaphone.base.bins import stable_hash
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode

np = pytest.importorskip("numpy")  # they come with megaflow[arrow]
pd = pytest.importorskip("pandas")

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
ZONES = [None, datetime.UTC, BERLIN, "Europe/Berlin", "Asia/Kolkata"]
UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]


def equal_pairs(keys: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs that a dict finds equal. Units that are too far apart cannot be compared."""
    for pair in combinations(keys, 2):
        with contextlib.suppress(ValueError, OverflowError):
            if len(dict.fromkeys(pair)) == 1:
                yield pair


@settings(deadline=None)
@given(
    st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)), st.sampled_from([0, 0, 1, 999]),
    st.sampled_from(ZONES), st.sampled_from([0, 1]),
)  # fmt: skip
@example(datetime.datetime(2024, 1, 1), 0, None, 0)
@example(datetime.datetime(2024, 10, 27, 1, 30), 0, BERLIN, 1)  # in the hour that comes twice
def test_equal_moments_hash_alike(moment: datetime.datetime, nanoseconds: int, zone: Any, fold: int) -> None:
    stamp = pd.Timestamp(moment) + pd.Timedelta(nanoseconds, "ns")
    keys = [stamp, stamp.as_unit("ns"), moment, *(np.datetime64(moment, unit) for unit in UNITS[:10])]
    keys += [stamp.to_datetime64(), moment.date()]
    if zone is not None:
        here = stamp.tz_localize("UTC").tz_convert(zone)
        python = here.to_pydatetime(warn=False)
        keys += [here, here.as_unit("ns"), here.tz_convert("UTC"), here.tz_convert("Asia/Tokyo"), python]
        keys += [python.replace(fold=fold), here.tz_convert(BERLIN), here.tz_convert("Europe/Berlin").as_unit("ns")]
    for one, other in equal_pairs(keys):
        assert stable_hash(one) == stable_hash(other), (one, other)
    for key in keys:
        assert stable_hash(decode(encode(key))) == stable_hash(key), "a move does not change the bin"


@settings(deadline=None)
@given(st.integers(-(2**40), 2**40), st.sampled_from(UNITS), st.integers(1, 7))
def test_equal_durations_hash_alike(number: int, unit: str, multiple: int) -> None:
    key = np.timedelta64(number, (unit, multiple))
    keys = [key]
    for other in UNITS[:2] if unit in "YM" else UNITS[2:]:
        try:
            converted = key.astype(f"m8[{other}]")
        except OverflowError:
            continue
        if converted == key:
            keys.append(converted)
    if unit in ("s", "ms", "us", "ns") and multiple == 1 and abs(number) < 2**30:  # old versions of pandas err
        keys += [pd.Timedelta(key), pd.Timedelta(key).as_unit("ns"), pd.Timedelta(key).to_pytimedelta()]
    for one, other in equal_pairs(keys):
        assert stable_hash(one) == stable_hash(other), (one, other)
    assert stable_hash(decode(encode(key))) == stable_hash(key)


def test_nanoseconds_tell_keys_apart() -> None:
    for kind in (lambda n: pd.Timestamp(n), lambda n: pd.Timedelta(n), lambda n: np.datetime64(n, "ns"),
                 lambda n: np.datetime64(n, "as"), lambda n: np.timedelta64(n, "fs")):  # fmt: skip
        assert len({stable_hash(kind(10**18 + n)) for n in range(2000)}) == 2000
    assert len({stable_hash(pd.Period(ordinal=n, freq="D")) for n in range(2000)}) == 2000


def test_times_outside_of_pythons_years_have_a_hash() -> None:
    far = np.datetime64("20000-01-01", "s")
    for key in (far, pd.Timestamp(far), np.datetime64("-4000", "Y"), np.datetime64(2**62, "s"), pd.Timestamp.max):
        assert stable_hash(key) == stable_hash(decode(encode(key)))
    assert stable_hash(far) == stable_hash(pd.Timestamp(far)) == stable_hash(np.datetime64("20000", "Y"))


def test_a_tuple_of_such_times_is_a_key() -> None:
    python = ("ada", datetime.datetime(2024, 1, 1))
    assert stable_hash(("ada", pd.Timestamp("2024-01-01"))) == stable_hash(python)
    assert stable_hash(("ada", np.datetime64("2024-01-01"))) == stable_hash(python)


@pytest.mark.parametrize("key", [pd.NaT, pd.NA, np.datetime64("NaT"), np.timedelta64("NaT", "s")], ids=repr)
def test_missing_times_are_refused_as_nan_is(key: Any) -> None:
    for hidden in (key, ("ada", key)):
        with pytest.raises(UsageError, match=r"NaN cannot be a key or part of a key.*such as None"):
            stable_hash(hidden)


def test_a_duration_without_unit_is_refused() -> None:
    with pytest.raises(UsageError, match="without a unit cannot be a key; give it a unit"):
        stable_hash(np.timedelta64(7))


def test_equal_times_are_of_one_kind() -> None:
    moments = (datetime.datetime(2024, 1, 1), pd.Timestamp("2024-01-01"), np.datetime64("2024-01-01"))
    assert {*map(kind_of, moments)} == {"datetime"}
    assert {*map(kind_of, (datetime.timedelta(1), pd.Timedelta(1), np.timedelta64(1, "D")))} == {"timedelta"}
    assert kind_of(datetime.date(2024, 1, 1)) == "date" and kind_of(np.int32(1)) == "number"
