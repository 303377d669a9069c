"""A store, its inputs and its outputs are moved together, or exchanged for others."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow.errors import StoreError


def counts(flow: Any) -> Any:
    return flow.lines().map(lambda line: (line, 1)).stateful_state_machine(
        lambda key, value, state: ((state or 0) + value, [(key, (state or 0) + value)]), name="count"
    )  # fmt: skip


def run(folder: Path, output: str = "out.jsonl", **options: Any) -> None:
    megaflow.run(
        counts, lines=str(folder / "in.txt"), output=f"jsonl:{folder / output}", state=folder / "state", **options
    )


def records(path: Path) -> list[Any]:
    return [json.loads(line)["record"] for line in path.read_text().splitlines()]


def begun(folder: Path, lines: Iterable[str] = "ab") -> Path:
    folder.mkdir()
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    run(folder)
    return folder


@pytest.mark.slow
def test_a_folder_that_has_moved_is_named_and_its_job_resumes(tmp_path: Path) -> None:
    old, new = begun(tmp_path / "old"), tmp_path / "new"
    old.rename(new)
    with (new / "in.txt").open("a") as file:
        file.write("a\n")
    with pytest.raises(StoreError, match=r"belongs to output= jsonl:.*/old/out.jsonl, not .*/new/out.jsonl.*relocate"):
        run(new)
    with pytest.raises(StoreError, match=rf"{tmp_path}/odl={new}: The store .* has no file named .*/odl'.*in.txt"):
        run(new, relocate={str(tmp_path / "odl"): str(new)})
    for _ in range(2):  # the same call may be repeated
        run(new, relocate={str(old): str(new)})
        assert records(new / "out.jsonl") == [["a", 1], ["b", 1], ["a", 2]]
    run(new)
    assert records(new / "out.jsonl") == [["a", 1], ["b", 1], ["a", 2]]


@pytest.mark.slow
def test_an_output_with_other_bytes_is_refused_and_stays(tmp_path: Path) -> None:
    folder = begun(tmp_path / "job")
    out = folder / "out.jsonl"
    mine, other = out.read_bytes(), b"x" * 3900
    out.write_bytes(other)
    with (folder / "in.txt").open("a") as file:
        file.write("a\n")
    with pytest.raises(StoreError, match=r"does not have the bytes that this job wrote.*The file was not changed\."):
        run(folder)
    assert out.read_bytes() == other
    out.write_bytes(mine + b"of an attempt that was killed")
    run(folder)
    assert records(out) == [["a", 1], ["b", 1], ["a", 2]]


@pytest.mark.slow
def test_an_output_is_known_by_its_path_without_symbolic_links(tmp_path: Path) -> None:
    folder = begun(tmp_path / "job")
    (folder / "link.jsonl").symlink_to(folder / "out.jsonl")
    (tmp_path / "alias").symlink_to(folder)
    with (folder / "in.txt").open("a") as file:
        file.write("a\n")
    run(folder, output="link.jsonl")
    assert records(folder / "out.jsonl") == [["a", 1], ["b", 1], ["a", 2]]
    os.unlink(folder / "link.jsonl")
    (tmp_path / "elsewhere").mkdir()
    (folder / "link.jsonl").symlink_to(tmp_path / "elsewhere" / "out.jsonl")
    with pytest.raises(StoreError, match=r"belongs to output= jsonl:.*/job/out.jsonl, not .*/elsewhere/out.jsonl"):
        run(folder, output="link.jsonl")
