"""Values of numpy and pandas arrive unchanged; hostile ones allocate nothing."""

import datetime
import sys
import tracemalloc
import types
import zoneinfo
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megaflow.errors import CannotTravel, ProtocolError
from megaflow.timely.communication.codec import tags
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.examples import many

np = pytest.importorskip("numpy")  # they come with megaflow[arrow]
pd = pytest.importorskip("pandas")


@dataclass
class Unknown:
    """Class whose values were never encoded before."""

    number: int


DTYPES = [
    "<f8",
    ">f4",
    "<i8",
    "|i1",
    "|u1",
    "<u8",
    "|b1",
    "<c16",
    "<f2",
    "<M8[ns]",
    "<M8[25s]",
    "<m8",
    "<U3",
    ">U2",
    "|S4",
]


def bytes_of(dtype: str) -> Any:
    size = np.dtype(dtype).itemsize
    if dtype[1] == "b":
        return st.lists(st.booleans(), max_size=6).map(bytes)
    if dtype[1] == "U":
        order = "utf-32-le" if dtype[0] == "<" else "utf-32-be"
        return st.lists(st.text(min_size=size // 4, max_size=size // 4), max_size=3).map(
            lambda t: "".join(t).encode(order)
        )
    return st.lists(st.binary(min_size=size, max_size=size), max_size=6).map(b"".join)


arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: bytes_of(dtype).map(lambda data: np.frombuffer(data, dtype)))


@settings(max_examples=many(200), deadline=None)
@given(arrays)
def test_an_array_arrives_with_its_dtype_shape_and_bytes(array: Any) -> None:
    for sent in (array, array.reshape((1, -1, 1)), array[::2], np.concatenate([array, array]).reshape((2, -1)).T):
        arrived = decode(encode([{"a": sent}]))[0]["a"]
        assert type(arrived) is np.ndarray and arrived.dtype == sent.dtype and arrived.shape == sent.shape
        assert arrived.tobytes() == sent.tobytes()
        assert arrived.flags.writeable and arrived.flags.owndata
    for scalar in array:
        arrived = decode(encode((scalar, [scalar] * 9)))
        assert type(arrived[0]) is type(scalar) and arrived[0].dtype == scalar.dtype
        assert arrived[0].tobytes() == scalar.tobytes() == arrived[1][8].tobytes()


def test_scalars_keep_their_type() -> None:
    values = [
        np.float64(1.5),
        np.float32(0.1),
        np.int64(3),
        np.uint8(3),
        np.bool_(True),
        np.str_("a\0"),
        np.bytes_(b"a\0"),
    ]
    values += [np.complex64(1j), np.datetime64("2020-01-01"), np.timedelta64("NaT"), np.str_(""), np.longdouble("0.1")]
    arrived = decode(encode(values))
    assert [type(value) for value in arrived] == [type(value) for value in values]
    assert [str(value) for value in arrived] == [str(value) for value in values]
    assert [len(value) for value in arrived[5:7]] == [2, 2], "NULs at the end are kept"
    assert decode(encode({np.int64(3): 1})) == {3: 1}
    assert decode(encode(np.zeros((0, 3)))).shape == (0, 3) and decode(encode(np.array(7))).shape == ()


@pytest.mark.parametrize(
    "value",
    [
        np.array([object()]),
        np.zeros(2, "i4,f8"),
        np.zeros(1, "V3")[0],
        np.ma.array([1]),
        np.random.default_rng(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arrays_of_objects_and_records_and_other_classes_are_refused(value: Any) -> None:
    with pytest.raises(CannotTravel, match=r"dtype|register"):
        encode([value])


@settings(max_examples=many(200), deadline=None)
@given(
    st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)), st.integers(0, 999),
    st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from([0, 1]),
    st.sampled_from([None, datetime.UTC, zoneinfo.ZoneInfo("Europe/Zurich"), "Europe/Zurich", "UTC"]),
)  # fmt: skip
def test_timestamps_arrive_with_nanoseconds_unit_zone_and_fold(
    moment: datetime.datetime, nanoseconds: int, unit: str, fold: int, zone: Any
) -> None:
    stamp = pd.Timestamp(moment).as_unit("ns") + pd.Timedelta(nanoseconds, "ns")
    stamp = stamp.as_unit(unit)
    stamp = stamp.replace(fold=fold) if zone is None else stamp.tz_localize("UTC").tz_convert(zone)
    delta = pd.Timedelta(nanoseconds, "ns").as_unit(unit)
    arrived, length = decode(encode((stamp, delta)))
    assert type(arrived) is pd.Timestamp and repr(arrived) == repr(stamp) and arrived == stamp
    assert (arrived.unit, arrived.fold, arrived.tz, arrived.nanosecond) == (
        stamp.unit,
        stamp.fold,
        stamp.tz,
        stamp.nanosecond,
    )
    assert type(length) is pd.Timedelta and length == delta and length.unit == delta.unit


@pytest.mark.parametrize("library", ["numpy", "pandas"])
def test_a_value_is_encoded_while_another_thread_imports_a_library(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, types.ModuleType(library))  # as it is at first
    assert encode(Unknown(1))


def test_missing_values_of_pandas_arrive() -> None:
    for missing in (pd.NaT, pd.NA):
        assert [each is missing for each in decode(encode([missing] * 9))] == [True] * 9


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC", "Asia/Kolkata", "Etc/GMT+5", 90])
def test_a_datetime_with_a_zone_of_pytz_arrives(zone: Any) -> None:
    pytz = pytest.importorskip("pytz")
    zone = pytz.FixedOffset(zone) if isinstance(zone, int) else pytz.timezone(zone)
    for hour in range(0, 6000, 25):
        sent = (datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=hour)).astimezone(zone)
        arrived = decode(encode([sent] * 5))[4]
        assert (str(arrived), arrived.tzinfo) == (str(sent), sent.tzinfo)
    assert decode(encode(zone)) is zone


@pytest.mark.parametrize("freq", ["D", "W-WED", "M", "2Q-NOV", "Y-DEC", "h", "15min", "s", "ns"])
def test_a_period_arrives_with_its_frequency(freq: str) -> None:
    period = pd.Period("1969-07-20", freq)
    for arrived in (decode(encode(period)), decode(encode({period: [period] * 9}))[period][8]):
        assert type(arrived) is pd.Period and arrived == period and arrived.freqstr == period.freqstr


@pytest.mark.parametrize(
    "node",
    [
        [tags.ARRAY, "<f8", [2**40], b""],
        [tags.ARRAY, "<f8", [0, 2**62], b""],
        [tags.ARRAY, "<f8", [-1], b""],
        [tags.ARRAY, "<f8", [1.0], bytes(8)],
        [tags.ARRAY, "<f8", [True], bytes(8)],
        [tags.ARRAY, "<f8", [2], bytes(8)],
        [tags.ARRAY, "<f8", [1] * 65, bytes(8)],
        [tags.ARRAY, "<f8", 1, bytes(8)],
        [tags.ARRAY, "|O", [1], bytes(8)],
        [tags.ARRAY, "O", [1], bytes(8)],
        [tags.ARRAY, "<i4,<i4", [1], bytes(8)],
        [tags.ARRAY, "<S0", [2**40], b""],
        [tags.ARRAY, "|S999999999", [0, 1], b"a"],
        [tags.ARRAY, "<f7", [1], bytes(7)],
        [tags.ARRAY, ["<f8"], [1], bytes(8)],
        [tags.ARRAY, "|b1", [1], b"\2"],
        [tags.ARRAY, "<U1", [1], b"\xff\xff\xff\xff"],
        [tags.NUMPY_SCALAR, "<f8", b""],
        [tags.NUMPY_SCALAR, "|V4", bytes(4)],
        [tags.NUMPY_TEXT, 2**40],
        [tags.TIMESTAMP, 1, "ns", 0, "../../etc/passwd", None],
        [tags.TIMESTAMP, 1, "ns", 0, None, "dateutil/etc/passwd"],
        [tags.TIMESTAMP, "now", "ns", 0, None, None],
        [tags.TIMESTAMP, 1, "D", 0, None, None],
        [tags.TIMESTAMP, 2**80, "s", 0, None, None],
        [tags.PANDAS_TIMEDELTA, 1, "generic"],
        [tags.PERIOD, 1, "x" * 40],
        [tags.PERIOD, 1, "../../etc"],
        [tags.PERIOD, 1.5, "D"],
        [tags.PERIOD, 2**70, "D"],
        [tags.PANDAS_NA, 1],
        [tags.PYTZ_ZONE, "../../etc/passwd"],
        [tags.PYTZ_ZONE, 2**40],
        [tags.PYTZ_ZONE, "Europe/Berlin", 3600],
        [tags.PYTZ_ZONE, "Europe/Berlin", "1", 0, "CET"],
    ],
    ids=str,
)
def test_hostile_values_are_refused_before_anything_is_allocated(node: Any) -> None:
    packed = msgpack.packb(node, default=str)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            arrived = decode(packed)
            assert node[2] == [0, 2**62] and arrived.nbytes == 0, arrived
            raise ProtocolError("numpy allows it, and it takes no memory")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["numpy", "pandas"])
def test_a_library_that_is_not_imported_stays_so(name: str, monkeypatch: Any) -> None:
    of_numpy = (np.float64(1), np.str_("a"), np.zeros(3))
    of_pandas = (pd.Timestamp(0), pd.Timedelta(0), pd.Period(2020), pd.NA)
    packed = [encode(value) for value in (*of_numpy, *of_pandas)]
    for each in [each for each in sys.modules if each.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, each)
    for each in packed[:3] if name == "numpy" else packed[3:]:
        with pytest.raises(ProtocolError, match=f"has not imported {name}"):
            decode(each)
    assert name not in sys.modules
