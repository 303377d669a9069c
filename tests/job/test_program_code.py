"""Whether a program's files still equal its loaded code, determined without running them."""

from pathlib import Path

from megaflow.durable.commits import Fingerprint
from megaflow.job.program_code import code_now, difference, digest
from megaflow.job.spec import AppFile, JobSpec, PickledFunction


def test_files_that_have_changed_or_are_gone_and_other_arguments_differ(tmp_path: Path) -> None:
    files = {"app.py": b"import more", "more.py": b"x = 1", "pack/again.py": b"y = 1"}
    (tmp_path / "pack").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    loaded = Fingerprint("app.py:dataflow", ("a",), {name: digest(content) for name, content in files.items()})
    spec = JobSpec(AppFile(str(tmp_path / "app.py"), "dataflow"), args=("a",))
    (tmp_path / "new.py").write_text("nobody has loaded this")
    assert code_now(loaded, spec) == loaded
    (tmp_path / "more.py").write_text("x = 2")
    (tmp_path / "pack" / "again.py").unlink()
    assert difference(code_now(loaded, spec), loaded) == "more.py, pack/again.py differ"
    other = JobSpec(AppFile(str(tmp_path / "app.py"), "flow"), args=("b",))
    said = difference(code_now(Fingerprint("app.py:dataflow", ("a",), {}), other), loaded) or ""
    assert said.startswith("the program is app.py:flow, the job's is app.py:dataflow; ")
    assert said.endswith("the arguments are ['b'], the job's are ['a']")


def test_a_function_that_is_pickled_is_what_it_was() -> None:
    loaded = Fingerprint("count", (), {"app.py": "1"})
    assert code_now(loaded, JobSpec(PickledFunction(b"", ()))) == loaded
