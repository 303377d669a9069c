"""A job is refused if its input finds files that the job writes itself, whatever names lead to them."""

import itertools
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from megaflow.durable.commits import commit_name
from megaflow.durable.incarnation import COMMIT_FILE, SEGMENT_FILE
from megaflow.durable.local_folder import LOCK, NEXT_LOCK
from megaflow.errors import SourceError, UsageError
from megaflow.job.files.splits import find_files
from megaflow.job.launcher.inputs.own_folders import PROFILE_FILES, STORE_FILES, check_own_folders, would_read
from megaflow.job.launcher.run.launch import LaunchOptions, input_of, launch
from megaflow.job.profile.report import OURS
from megaflow.job.spec import AppFile, JobSpec, ProfileSpec
from tests.words import says

PARTS = ["**", "*", "l*", "*.log", "in", "link", "st", "[s]t", ".st", "..", "lock"]


def test_names_are_those_of_the_files() -> None:
    for name in STORE_FILES:
        assert name in (LOCK, NEXT_LOCK) or COMMIT_FILE.fullmatch(name) or SEGMENT_FILE.fullmatch(name), name
    assert commit_name(1) in STORE_FILES and all(map(OURS.fullmatch, PROFILE_FILES))


@pytest.mark.parametrize("place", ["in/st", "in/.st", "st", "in/in/st", "link/st", "in"])
def test_what_would_be_found_is_known_before_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "link").symlink_to(".." if place == "st" else "../other")
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other")
    monkeypatch.chdir(tmp_path)
    long = Random(place).sample([*itertools.product(PARTS, repeat=3)], 120)
    specs = ["/".join(parts) for parts in (*itertools.product(PARTS), *itertools.product(PARTS, PARTS), *long)]
    specs = [spec for spec in specs if "st/.." not in spec and "]t/.." not in spec]  # no folder yet, so none above it
    before = {spec: would_read(spec, str(tmp_path / place), ["lock"]) for spec in specs if not os.path.isdir(spec)}
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    own = tmp_path / place / "lock"
    own.touch()
    for spec in specs:
        try:
            found = any(os.path.samefile(path, own) for path in find_files(spec))
        except SourceError:
            found = False
        assert before.get(spec, found) == found == would_read(spec, str(tmp_path / place), ["lock"]), spec


@pytest.mark.parametrize("follow", [False, True])
def test_a_store_or_profile_in_the_input_is_refused(tmp_path: Path, follow: bool) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "in.log").write_text("a\n")
    (tmp_path / "other").symlink_to("logs")
    plain = JobSpec(AppFile("app.py", "dataflow"), follow=follow)
    stored = replace(plain, state=str(tmp_path / "logs" / "st"))
    profiled = replace(plain, profile=ProfileSpec(str(tmp_path / "logs" / "deep" / "er")))
    for spec, option in ((stored, "--state"), (profiled, "--profile")):
        for lines in (f"{tmp_path}/logs/**", f"{tmp_path}/other/**/*?encoding=latin-1", {"x": f"{tmp_path}/**/*"}):
            with pytest.raises(UsageError) as caught:
                launch(LaunchOptions(spec, lines=lines))
            assert says(str(caught.value), option, "read its own files", "Name a folder outside")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "logs", tmp_path / "logs" / "in.log", tmp_path / "other"]
    for lines in (f"{tmp_path}/logs/**/*.log", tmp_path / "logs", f"{tmp_path}/logs/*"):
        job_input = input_of(LaunchOptions(plain, lines=lines), print)
        for spec in (plain, stored, profiled, replace(plain, state=str(tmp_path / "logs" / ".st"))):
            check_own_folders(spec, lines, job_input)


@pytest.mark.parametrize(
    ("spec", "is_read"),
    [("spark:text:{}", True), ("spark:text:{}?pathGlobFilter=*.log", False), ("spark:text:{}/st", True),
     ("spark:text:file://{}", True), ("spark:rate:", False), ("spark:text:{}/in", False)],
)  # fmt: skip
def test_a_store_in_a_folder_that_spark_reads_is_refused(tmp_path: Path, spec: str, is_read: bool) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "st").mkdir()
    given: Any = spec.format(tmp_path)
    job = JobSpec(AppFile("app.py", "dataflow"))
    job_input = input_of(LaunchOptions(job, lines=given), print)
    check_own_folders(replace(job, state=str(tmp_path / "_st")), given, job_input)
    for state in ("st", "st/deep"):
        if is_read:
            with pytest.raises(UsageError, match="--state"):
                check_own_folders(replace(job, state=str(tmp_path / state)), given, job_input)
        else:
            check_own_folders(replace(job, state=str(tmp_path / state)), given, job_input)
