"""The prints of a process become whole lines with names; their end is kept."""

from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.dropped_tail import TAIL_BYTES
from megaflow.job.launcher.processes.printed_lines import LINE_BYTES_MAX, SHOWN_LINES, PrintedLines


def name_of(worker: int | None) -> str:
    return f"worker {0 if worker is None else worker}: "


def shown(pieces: list[bytes], is_alone: bool = False) -> bytes:
    lines = PrintedLines(name_of)
    return b"".join([lines.take(piece, is_alone) for piece in pieces]) + lines.finish()


@given(st.lists(st.binary(max_size=40).map(lambda data: data.translate(None, b"\x1e\r")), max_size=20))
def test_lines_are_the_same_however_they_are_cut(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    right = b"".join(b"worker 0: " + line + b"\n" for line in whole.removesuffix(b"\n").split(b"\n") if whole)
    assert shown(pieces) == right


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_the_only_worker_is_shown_as_it_prints(pieces: list[bytes]) -> None:
    assert shown(pieces, is_alone=True) == b"".join(pieces)


def test_a_marked_line_has_the_name_of_its_worker() -> None:
    assert shown([b"\x1e3\x1ea\nb\n\x1e4", b"\x1ec"]) == b"worker 3: a\nworker 0: b\nworker 4: c\n"


def test_a_false_mark_is_part_of_the_line() -> None:
    assert shown([b"\x1e3\n\x1e\n\x1ex\x1e1\n"]) == b"worker 0: \x1e3\nworker 0: \x1e\nworker 0: \x1ex\x1e1\n"


def test_a_progress_bar_is_shown_in_its_last_state() -> None:
    assert shown([b"\x1e3\x1e\r10%", b"\r100%\n", b"dos\r\n"]) == b"worker 3: 100%\nworker 0: dos\n"
    assert shown([b"\r10%\r100%\n"], is_alone=True) == b"\r10%\r100%\n"
    lines = PrintedLines(name_of)
    lines.take(b"\r10%\r20%")
    assert lines.last() == "20%"


def test_a_line_without_end_is_shown_in_parts() -> None:
    text = shown([b"x" * 1000] * 100)
    assert text.replace(b"worker 0: ", b"").replace(b"\n", b"") == b"x" * 100_000
    assert max(map(len, text.split(b"\n"))) < LINE_BYTES_MAX + 1100


def test_a_worker_that_gets_company_gets_a_name() -> None:
    lines = PrintedLines(name_of)
    assert lines.take(b"a\nb", True) == b"a\nb"
    assert lines.take(b"\nc\n", False) == b"worker 0: \nworker 0: c\n"


@given(st.lists(st.integers(0, 3 * TAIL_BYTES), max_size=6))
def test_the_last_lines_are_kept(sizes: list[int]) -> None:
    lines = PrintedLines(name_of)
    whole = b""
    for number, size in enumerate(sizes):
        data = (b"%d " % number * size)[:size] + b"\n"
        lines.take(data)
        whole += data
    right = [line.decode().rstrip()[:500] for line in whole[-TAIL_BYTES:].split(b"\n")]
    kept = lines.last().split("\n")
    assert len(kept) <= SHOWN_LINES and kept == "\n".join(right).rstrip("\n").split("\n")[-SHOWN_LINES:]


def test_last_lines_of_garbage_can_be_printed() -> None:
    lines = PrintedLines(name_of)
    lines.take(b"\xff\xfe\n\x1e3\x1esaw a\n\n")
    assert lines.last(b"later\n") == "\\xff\\xfe\nsaw a\n\nlater"


def test_a_gap_is_counted() -> None:
    lines = PrintedLines(name_of)
    assert lines.gap(12345) == b"worker 0: 12,345 lines were left out\n" and b"1 line was left" in lines.gap(1)
