"""Whether processes run the same code: the message about a difference, its receiver, and cases without comparison."""

import pytest

from megaflow.durable.commits import Fingerprint
from megaflow.errors import ConfigMismatch
from megaflow.job.program_code import difference
from megaflow.job.worker.process.fingerprint import CodeCheck, CodeShown
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.membership import founding
from tests.job.by_hand import Clock, settle


def code(*args: str, app: str = "app.py:dataflow", **files: str) -> Fingerprint:
    """A fingerprint; files without their endings."""
    return Fingerprint(app, args, {f"{name}.py": digest for name, digest in files.items()})


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (code("x", app_="1", more="2"), None),
        (None, None),
        (code("x", app_="3", more="2"), "app_.py differs"),
        (code("x", app_="3", more="4"), "app_.py, more.py differ"),
        (code("x", app_="1"), "more.py is loaded only by the job"),
        (code("x", app_="1", more="2", c="0", b="0"), "b.py, c.py are loaded only here"),
        (code(app_="1", more="2"), "the arguments are [], the job's are ['x']"),
        (code("x", app="a:g", app_="1", more="2"), "the program is a:g, the job's is app.py:dataflow"),
        (code(app_="9", b="0"), "app_.py differs; more.py is loaded only by the job; b.py is loaded only here; "
                                "the arguments are [], the job's are ['x']"),
    ],
)  # fmt: skip
def test_a_difference_is_said_by_file_and_argument(here: Fingerprint | None, said: str | None) -> None:
    there = code("x", app_="1", more="2")
    assert difference(here, there) == said
    assert difference(here, None) is None
    assert decode(encode(CodeShown(here))) == CodeShown(here)


def test_of_many_files_some_are_named() -> None:
    some = {f"m{number:02}": "1" for number in range(30)}
    said = difference(code(**some), code(**dict.fromkeys(some, "2")))
    assert said is not None and said.startswith("m00.py, m01.py, ") and said.endswith("m09.py, 20 more differ")


def founders(*codes: Fingerprint | None) -> list[tuple[Worker, CodeCheck]]:
    """Workers that have started together and have built their dataflows. The first one coordinates."""
    fabric, clock, ids = LocalFabric(range(len(codes))), Clock(), founding(range(len(codes)))
    workers = [Worker(fabric.allocator(id), ids, Scope, (clock, clock)) for id in ids.ids]
    return [(worker, CodeCheck(worker, each)) for worker, each in zip(workers, codes, strict=True)]


def test_a_founder_that_has_loaded_other_code_ends_the_job() -> None:
    (first, _), (second, check), (third, other) = founders(code(a="1"), code(a="2"), code(a="1"))
    check.show()
    other.show()
    for worker in (second, third, first, third):
        settle(worker)
    with pytest.raises(ConfigMismatch, match=r"Worker 1 loaded other code than worker 0: a\.py differs\. "):
        settle(second)


def test_a_founder_may_import_what_others_do_not() -> None:
    (first, _), (second, check) = founders(code(a="1", plots="1"), code(a="1", more="1"))
    check.show()
    for worker in (second, first, second):
        settle(worker)
