"""Rows have the columns that the program requested, and it reads the inputs that the job was given."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.job.files.file_descriptors import FileDescriptors
from megaflow.job.formats.record_format import LINES
from megaflow.job.formats.text_encoding import ReplacedBytes
from megaflow.job.worker.process.flow import Flow, build_flow
from megaflow.job.worker.process.named_inputs import NamedInputs, RowShape, followers, select_input, shape_of
from megaflow.rows.packed_rows import RowPack, pack_rows
from megaflow.timely import example
from tests.job.by_hand import flow_by_hand
from tests.job.worker.scripted_source import Scripted


class Order(NamedTuple):
    amount: Decimal
    at: int
    id: int


def schema(**kinds: str) -> str:
    return json.dumps({"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]})


ORDERS = RowPack(
    "orders", schema(id="long", at="timestamp", amount="decimal(5,2)"), [[1, 2], [0, None], [Decimal(5), None]]
)


def test_a_row_is_a_tuple_a_dict_or_a_named_tuple_with_its_fields_in_any_order() -> None:
    assert RowShape().records(ORDERS) == [(1, 0, Decimal(5)), (2, None, None)]
    assert RowShape(dict).records(ORDERS)[0] == {"id": 1, "at": 0, "amount": Decimal(5)}
    assert RowShape(Order).records(ORDERS) == [Order(Decimal(5), 0, 1), Order(None, None, 2)]  # type: ignore[arg-type]
    moments = RowShape(tuple, "datetime").records(ORDERS)
    assert moments == [(1, datetime(1970, 1, 1, tzinfo=UTC), Decimal(5)), (2, None, None)]
    days = RowPack("days", schema(day="date"), [[1]])
    assert RowShape(tuple, "datetime").records(days) == [(date(1970, 1, 2),)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [("timestamp", 253_402_318_799_000_000), ("timestamp_ntz", -63_549_316_800_000_000), ("date", 1 << 30)],
)
def test_a_time_that_no_datetime_holds_is_named(kind: str, value: int) -> None:
    pack = RowPack("orders", schema(id="long", at=kind), [[1, 2, 3], [0, value, None]])
    assert RowShape().records(pack)[1] == (2, value)
    with pytest.raises(SourceError) as raised:
        RowShape(dict, "datetime").records(pack)
    for part in ("'orders'", f"{value}, in ", "since 1970", "'at'", f"row (2, {value})", "timestamps='datetime'"):
        assert part in str(raised.value)
    nested = json.dumps({"fields": [{"name": "seen", "type": {"type": "array", "elementType": kind}}]})
    with pytest.raises(SourceError, match=r"'orders' have \[0, .*\], in the column 'seen'"):
        RowShape(dict, "datetime").records(RowPack("orders", nested, [[[0], [0, value]]]))


def test_a_named_tuple_with_other_fields_is_told_with_both() -> None:
    with pytest.raises(SourceError, match=r"'views' have the columns page, but Order has the fields amount, at, id"):
        RowShape(Order).records(RowPack("views", schema(page="string"), [["/"]]))


@pytest.mark.parametrize(
    ("as_", "timestamps", "wrong"),
    [(list, "micros", "as_ must be tuple, dict or one of the"), ("namedtuple", "micros", "not 'namedtuple'"),
     (tuple, "seconds", "timestamps must be 'micros' or 'datetime', not 'seconds'")],
)  # fmt: skip
def test_another_shape_is_refused(as_: Any, timestamps: str, wrong: str) -> None:
    with pytest.raises(UsageError, match=wrong):
        shape_of("orders", as_, timestamps)


def test_names_that_the_program_and_the_job_do_not_share_are_told_with_both() -> None:
    inputs = NamedInputs(("orders", "views"))
    with pytest.raises(BuildError, match="reads the rows 'sales', but the job was given rows 'orders' and 'views'"):
        inputs.read("sales", RowShape())
    inputs.read("orders", RowShape())
    with pytest.raises(BuildError, match="was given the rows 'views', but the dataflow reads only 'orders'"):
        inputs.check_read()
    with pytest.raises(UsageError, match=r"flow.rows\('orders'\) is called twice"):
        inputs.read("orders", RowShape(dict))
    inputs.read("views", RowShape(dict))
    inputs.check_read()
    with pytest.raises(BuildError, match=r"was given no rows\. Bind them by --rows orders=spark:FORMAT:PATH"):
        NamedInputs(()).read("orders", RowShape())
    assert NamedInputs(("orders",)).only() == "orders" and NamedInputs(None).only() == "rows"
    with pytest.raises(BuildError, match=r"one input, but this job was given rows 'orders' and 'views'"):
        inputs.only()
    NamedInputs(None).read("whatever", RowShape())


@pytest.mark.parametrize(
    ("function", "rows", "lines", "why"),
    [
        (lambda flow: flow.lines("a"), (), ("b",), "the lines 'a', but the job was given the lines 'b'.*--lines a="),
        (lambda flow: flow.lines("a"), (), (), "reads the lines 'a', but the job was given no named lines"),
        (lambda flow: flow.lines(), (), ("a", "b"), r"\(\), but the job was given the lines 'a' and 'b'\. Read them"),
        (lambda flow: flow.lines("a"), (), ("a", "b"), r"the lines 'b', but the dataflow reads only 'a'.*\./NAME"),
        (lambda flow: flow.lines("a").concat(flow.lines("a")), (), ("a", "b"), r"the dataflow reads only 'a'\."),
        (lambda flow: flow.scope.empty(), (), ("a",), "the lines 'a', but the dataflow does not call flow.lines"),
        (lambda flow: flow.lines("a"), ("a",), (), r"the lines 'a', but the job was given the rows 'a'.*rows\('a'\)"),
        (lambda flow: flow.rows("a"), (), ("a",), "the rows 'a', but the job was given no rows, but the lines 'a'"),
        (lambda flow: flow.lines(7), (), ("a",), "reads the lines 7, but the job was given the lines 'a'"),
    ],
)  # fmt: skip
def test_lines_that_the_program_and_the_job_do_not_share_are_told_with_both(
    function: Any, rows: Any, lines: Any, why: str
) -> None:
    def build(scope: Any) -> None:
        flow = flow_by_hand(scope, inputs=NamedInputs(rows, lines))
        with pytest.raises(BuildError, match=why):
            build_flow(function, flow, has_lines=True)

    example(build)


@pytest.mark.parametrize(
    ("function", "items", "why"),
    [
        (lambda flow: flow.items("a"), (), r"the items 'a', but the job was given none. Give them by megaflow\.start"),
        (lambda flow: flow.items(), (), r"reads items without a name, by flow.items\(\), but the job was given none"),
        (
            lambda flow: flow.items(), ("a", "b"),
            r"by flow.items.., but the job was given the items 'a' and 'b'\. Read each .* flow\.items\('a'\)",
        ),
        (lambda flow: flow.rows("a"), ("a",), "the rows 'a', but the job was given no rows, but the items 'a'"),
        (lambda flow: flow.items("c"), ("a", "b"), "reads the items 'c', but the job was given the items 'a' and 'b'"),
        (lambda flow: flow.lines(), ("items",), r"given items\. Read them by flow\.items\(\)"),
        (lambda flow: flow.lines(), ("a", "b"), r"given items\. Read them by flow\.items\('a'\)"),
        (lambda flow: flow.lines("a"), ("a",), r"given items of this name\. Read them by flow\.items\('a'\)"),
        (lambda flow: flow.scope.empty(), ("a",), r"the items 'a', but the dataflow does not call flow\.items\. Leave"),
    ],
)  # fmt: skip
def test_items_that_the_program_and_the_job_do_not_share_are_told_with_both(
    function: Any, items: Any, why: str
) -> None:
    def build(scope: Any) -> None:
        inputs = NamedInputs((), items, items)
        flow = flow_by_hand(scope, inputs=inputs)
        with pytest.raises(BuildError, match=why):
            build_flow(function, flow, has_lines=True)

    example(build)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda flow: flow.lines(), r"given the lines 'x' and the items 'a'\. Read them by flow\.lines\('x'\)"),
        (lambda flow: flow.lines("y"), "reads the lines 'y', but the job was given the lines 'x' and the items 'a'"),
        (lambda flow: flow.items("x"), "reads the items 'x', but the job was given the lines 'x' and the items 'a'"),
        (lambda flow: flow.rows("x"), "given no rows, but the lines 'x' and the items 'a'"),
    ],
)
def test_lines_and_items_of_a_job_are_told_apart(function: Any, why: str) -> None:
    def build(scope: Any) -> None:
        inputs = NamedInputs((), ("a", "x"), ("a",))
        flow = flow_by_hand(scope, inputs=inputs)
        with pytest.raises(BuildError, match=why):
            build_flow(function, flow, has_lines=True)

    example(build)


def test_each_input_of_lines_is_a_stream_and_one_alone_is_the_source_itself() -> None:
    def several(scope: Any) -> Any:
        batches = [("a", ["1", "2"]), ("b", ["3"]), ("a", ["4"])]
        flow = flow_by_hand(scope, batches, NamedInputs(lines=("a", "b")))
        assert flow.lines("a") is flow.lines("a")
        return flow.lines("a").capture(), flow.lines("b").capture()

    assert example(several) == ([(0, ["1", "2", "4"])], [(0, ["3"])])
    for names, name in ((("a",), "a"), ((), None)):
        inputs = NamedInputs((), names)

        def one(scope: Any, inputs: NamedInputs = inputs, name: str | None = name) -> Any:
            flow = flow_by_hand(scope, ["1"], inputs)
            return flow.lines(name).capture()

        assert example(one) == [(0, ["1"])]


def test_inputs_that_are_not_known_are_drawn_apart() -> None:
    def apart(scope: Any) -> list[bool]:
        flow = flow_by_hand(scope, (), NamedInputs(None, None))
        return [flow.lines("a").port is flow.lines("b").port, flow.lines("a").port is flow.lines("a").port]

    assert example(apart) == [False, True]


def test_a_pack_is_unpacked_by_its_name() -> None:
    inputs = NamedInputs(("orders", "views"))
    inputs.read("orders", RowShape())
    assert inputs.unpack(pack_rows(ORDERS)) == ("orders", [(1, 0, Decimal(5)), (2, None, None)])
    with pytest.raises(SourceError, match="Rows 'views' arrived, but the dataflow reads 'orders'"):
        inputs.unpack(pack_rows(ORDERS._replace(input="views")))
    assert select_input("a")(("a", [1])) == [1] and select_input("a")(("b", [1])) == []


def flow_of(scope: Any, *names: str, source: Any = ()) -> Flow:
    return flow_by_hand(scope, source, NamedInputs(names))


def test_each_input_is_a_stream_of_its_rows_and_one_alone_is_the_source_itself() -> None:
    def several(scope: Any) -> Any:
        flow = flow_of(scope, "a", "b", source=[("a", [1, 2]), ("b", [3]), ("a", [4])])
        assert flow.rows("a") is flow.rows("a")
        return flow.rows("a").capture(), flow.rows("b").capture()

    assert example(several) == ([(0, [1, 2, 4])], [(0, [3])])
    assert example(lambda scope: flow_of(scope, "a", source=[1, 2]).rows("a").capture()) == [(0, [1, 2])]


@pytest.mark.parametrize(
    ("function", "names", "why"),
    [
        (lambda flow: flow.lines(), ("orders",), r"reads lines, but the job was given the rows 'orders'.*flow.rows"),
        (lambda flow: flow.rows("orders"), (), "reads the rows 'orders', but the job was given no rows"),
        (lambda flow: flow.rows("a"), ("a", "b"), "was given the rows 'b', but the dataflow reads only 'a'"),
        (lambda flow: flow.scope.empty(), ("a",), "was given the rows 'a', but the dataflow does not call flow.rows"),
        (lambda flow: flow.scope.empty(), (), "never calls flow.lines()"),
    ],
)
def test_a_program_that_reads_other_inputs_is_refused_when_it_is_built(function: Any, names: Any, why: str) -> None:
    def build(scope: Any) -> None:
        with pytest.raises(BuildError, match=why):
            build_flow(function, flow_of(scope, *names), has_lines=True)

    example(build)


@pytest.mark.parametrize(
    ("read", "why"),
    [
        ([(Scripted(), "orders"), (Scripted(), "orders")], r"flow.read\(…, 'orders'\) is called twice\. Read the"),
        ([(Scripted(), "cards")], "The job was also given the lines 'cards'"),
        ([(Scripted, "orders")], "Give a megaflow.connect.Source, not this object, which is a class"),
        ([("orders", "orders")], "not this object, which has no discover and no open"),
        ([(open, "orders")], "not this object, which has no discover and no open"),
        ([(Scripted(), "not a name")], "The name must be an identifier, such as 'orders'"),
        ([(Scripted(), 7)], "The name must be an identifier, such as 'orders'"),
    ],
)
def test_a_source_has_a_name_of_its_own_and_is_one(read: list[tuple[Any, Any]], why: str) -> None:
    inputs = NamedInputs(lines=["cards"])
    with pytest.raises(BuildError, match=why):
        for source, name in read:
            inputs.read_source(source, name)


def test_lines_that_no_job_was_given_are_told() -> None:
    inputs = NamedInputs(has_input=False)
    inputs.read_source(Scripted(), "orders")
    with pytest.raises(BuildError, match=r"reads lines, but the job was given none\. Give --lines PATH"):
        inputs.read_as_lines(None)
    with pytest.raises(BuildError, match=r"reads the lines 'cards', but the job was given none.* cards=PATH"):
        inputs.read_as_lines("cards")


def test_coordinating_process_decides_which_followed_file_is_right() -> None:
    processes = {0: ("h", 1, (0, 1)), 1: ("h", 2, (2, 3))}
    for coordinator, decide in ((0, [0, 1]), (3, [2, 3])):
        decided = []
        for index in range(5):  # the last one joins
            worker: Any = SimpleNamespace(
                index=index, now=float, membership=SimpleNamespace(coordinator=coordinator),
                rescaling=SimpleNamespace(processes=processes),
            )  # fmt: skip
            made = followers([("", "/a", "")], "strict", ReplacedBytes(), print, worker, print, FileDescriptors())
            if made[""](LINES).decides():
                decided.append(index)
        assert decided == decide
