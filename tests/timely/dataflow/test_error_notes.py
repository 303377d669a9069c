"""Blame: the note names operator, declaration, worker, time and record; the traceback shows the user's lines."""

from collections.abc import Callable
from typing import Any

import pytest

from megaflow.errors import GraphMismatch, ProgramError
from megaflow.program import Worker
from megaflow.timely import Broadcast, Exchange, InputHandle, OperatorInfo, Pipeline, example
from megaflow.timely.dataflow.error_notes import annotate, format_user_traceback, user_line
from tests.timely.workers import EVERY, by_hand, run


def fussy(x: int) -> Any:
    if x == 3:
        raise ValueError("three")
    return [x]


def reading(read: Callable[[int], object]) -> Callable[..., Any]:
    """Build functions of hand-made operators that call `read` on each record."""

    def build(capability: Any, info: object) -> Callable[..., None]:
        capability.release()

        def logic(*ports: Any) -> None:
            for port in ports[:-1]:
                for _, data in port:
                    for x in data:
                        read(x)

        return logic

    return build


def sinking(info: OperatorInfo) -> Callable[[Any], None]:
    def logic(input: Any) -> None:
        for _, data in input:
            for x in data:
                fussy(x)

    return logic


def fold(key: int, value: int, state: Any) -> Any:
    return fussy(key)[0], []


USES: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "map": (lambda stream: stream.map(fussy), "Map", ", record 3"),
    "filter": (lambda stream: stream.filter(fussy), "Filter", ", record 3"),
    "flat_map": (lambda stream: stream.flat_map(fussy), "FlatMap", ", record 3"),
    "lazy flat_map": (lambda stream: stream.flat_map(lambda x: (y for y in fussy(x))), "FlatMap", ", record 3"),
    "map_in_place": (lambda stream: stream.map_in_place(lambda x: fussy(x) and None), "MapInPlace", ", record 3"),
    "inspect": (lambda stream: stream.inspect(fussy), "Inspect", ", record 3"),
    "inspect_time": (lambda stream: stream.inspect_time(lambda time, x: fussy(x)), "InspectTime", ", record 3"),
    "inspect_batch": (lambda stream: stream.inspect_batch(lambda time, xs: [fussy(x) for x in xs]), "InspectBatch", ""),
    "unary": (lambda stream: stream.unary(Pipeline(), "Mine", reading(fussy)), "Mine", ""),
    "unary_frontier": (lambda stream: stream.unary_frontier(Pipeline(), "Mine", reading(fussy)), "Mine", ""),
    "binary": (lambda stream: stream.binary(stream, Pipeline(), Pipeline(), "Mine", reading(fussy)), "Mine", ""),
    "sink": (lambda stream: stream.sink(Broadcast(), "Mine", sinking), "Mine", ""),
    "fold": (
        lambda stream: stream.map(lambda x: (x, 1)).stateful_state_machine(fold, name="Counts"), "Counts",
        ", record (3, 1)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("workers", EVERY)
@pytest.mark.parametrize("use", USES)
def test_a_raising_function_is_blamed_with_operator_line_worker_time_and_record(use: str, workers: int) -> None:
    apply, operator, record = USES[use]

    def main(worker: Worker) -> None:
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            apply(scope.input_from(handle))
        handle.advance_to(7)
        handle.send_batch([1, 2, 3, 4])
        handle.close()

    with pytest.raises(ValueError, match=r"^three") as caught:
        run(workers, main)
    [note] = caught.value.__notes__
    assert note.startswith(f"in operator '{operator}' ({__file__}:")
    assert any(note.endswith(f"), worker {worker}, time 7{record}") for worker in range(workers)), note
    assert caught.traceback[-1].name == "fussy"


class Own(BaseException):
    pass


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, Own])
@pytest.mark.parametrize("use", ["lazy flat_map", "inspect_time", "fold"])
def test_what_is_no_exception_is_blamed_like_one(
    use: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, operator, record = USES[use]

    def stopping(x: int) -> Any:
        if x == 3:
            raise kind
        return [x]

    monkeypatch.setitem(globals(), "fussy", stopping)

    def main(worker: Worker) -> None:
        with worker.dataflow() as scope:
            apply(scope.to_stream([1, 2, 3, 4]))

    with pytest.raises(kind) as caught:
        run(1, main)
    [note] = caught.value.__notes__
    assert note.startswith(f"in operator '{operator}' ({__file__}:") and note.endswith(f", worker 0, time 0{record}")


def test_a_repr_that_ends_the_program_does_not_hide_the_error() -> None:
    class Ending:
        def __repr__(self) -> str:
            raise SystemExit

    with pytest.raises(ValueError, match="invalid literal") as caught:
        example(lambda scope: scope.to_stream([Ending()]).map(lambda record: int("none")))
    assert caught.value.__notes__[0].endswith("record <Ending whose repr raises SystemExit>")


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("where", ["exchange", "pact"])
def test_a_raising_key_is_blamed_on_the_operator_that_has_the_key(where: str, workers: int) -> None:
    """Not on the operator whose output is being sent. Also if the program sends and no operator runs."""

    def main(worker: Worker) -> None:
        handle: InputHandle[int] = InputHandle()
        with worker.dataflow() as scope:
            stream = scope.input_from(handle)
            if where == "exchange":
                stream.exchange(fussy)
            else:
                stream.map(abs).unary(Exchange(fussy), "Mine", reading(abs))
        handle.advance_to(7)
        handle.send_batch([3, 2])
        handle.close()

    with pytest.raises(ValueError, match=r"^three") as caught:
        run(workers, main)
    [note] = caught.value.__notes__
    assert note.startswith(f"in operator '{'Exchange' if where == 'exchange' else 'Mine'}' ({__file__}:")
    assert note.endswith(", time 7, record 3")


def test_what_flat_map_cannot_iterate_is_shown_with_its_record() -> None:
    with pytest.raises(ProgramError, match="must return an iterable") as caught:
        example(lambda scope: scope.to_stream([5]).flat_map(lambda x: x))
    assert caught.value.__notes__[0].endswith("time 0, record 5")


def test_the_record_is_the_one_that_raised_also_in_later_batches() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        example(lambda scope: scope.to_stream(range(5000)).map(lambda x: 1 // (x - 4321)))
    assert caught.value.__notes__[0].endswith(", record 4321")


def test_long_records_are_cut_and_a_broken_repr_hides_nothing() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    for record, shown in [("x" * 1000, "x…"), (Broken(), "<Broken whose repr raises RuntimeError>")]:
        with pytest.raises(ZeroDivisionError) as caught:
            example(lambda scope, record=record: scope.to_stream([record]).map(lambda x: 1 // 0))
        [note] = caught.value.__notes__
        assert note.endswith(shown) and len(note) < 500


def test_the_first_note_stands() -> None:
    error = ValueError()
    annotate(error, "Near", "here:1", 0)
    annotate(error, "Far", "there:2", 1)
    assert error.__notes__ == ["in operator 'Near' (here:1), worker 0"]


def test_a_users_own_notes_stay() -> None:
    def fail(x: int) -> None:
        error = ValueError("three")
        error.add_note("mine")
        raise error

    with pytest.raises(ValueError, match="three") as caught:
        example(lambda scope: scope.to_stream([1]).map(fail))
    assert caught.value.__notes__[0] == "mine" and len(caught.value.__notes__) == 2


def test_an_operator_is_declared_where_the_user_called() -> None:
    assert user_line().startswith(f"{__file__}:")
    _, worker = by_hand()
    with worker.dataflow() as scope:
        stream = scope.to_stream([1])
        here = int(user_line().rpartition(":")[2])
        stream.map(abs).exchange(abs)
    [_, mapped, exchanged] = worker.graphs()[0].nodes
    assert mapped.where == exchanged.where == f"{__file__}:{here + 1}"


def caught_from(build: Callable[[Any], object]) -> BaseException:
    with pytest.raises((ValueError, KeyError)) as caught:
        example(build)
    return caught.value


def test_the_traceback_shows_the_users_lines_without_the_engine() -> None:
    error = caught_from(lambda scope: scope.to_stream([3]).map(fussy))
    short, long = format_user_traceback(error), format_user_traceback(error, debug=True)
    assert 'raise ValueError("three")' in short and short.index("ValueError: three") < short.index("in operator 'Map'")
    assert "megaflow/timely" not in short and "megaflow/timely" in long


def test_a_cause_is_shown_without_the_engine_too() -> None:
    def chained(x: int) -> None:
        try:
            fussy(x)
        except ValueError as error:
            raise KeyError("outer") from error

    text = format_user_traceback(caught_from(lambda scope: scope.to_stream([3]).map(chained)))
    assert "ValueError: three" in text and "KeyError: 'outer'" in text and "direct cause" in text
    assert "megaflow/timely" not in text


def test_an_error_of_the_engine_itself_keeps_only_its_message() -> None:
    assert "differs" in format_user_traceback(GraphMismatch("it differs"))


def test_a_misspelt_attribute_is_followed_by_the_right_one() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = (3).numeratr  # type: ignore[attr-defined]
    assert "Did you mean: 'numerator'?" in format_user_traceback(caught.value)
