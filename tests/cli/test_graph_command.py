"""`megaflow graph` draws a program's dataflows, in either notation, without running them."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from megaflow.cli.main import cli
from megaflow.program import example
from megaflow.timely.dataflow.graph import ScopeRef
from megaflow.timely.dataflow.picture import draw

ROOT = Path(__file__).resolve().parents[2]

NESTED = '''
from megaflow.timely import Pipeline

def main(worker):
    print("a program may print")
    with worker.dataflow("nested") as scope:
        numbers = scope.to_stream(range(10))
        with scope.region("outside") as region:
            pairs = numbers.enter(region).map(lambda x: (x, 1), ).exchange(lambda pair: pair[0])
            with region.iterative('in"side') as loop:
                handle, back = loop.loop_variable(1)
                turned = pairs.enter(loop).concat(back).map(print)
                turned.connect_loop(handle)
                done = turned.leave()
        probe = done.leave().probe()
    with worker.dataflow("second") as scope:
        scope.to_stream([1]).broadcast()
    worker.step_while(lambda: not probe.done())
    raise AssertionError("it ran")

def dataflow_of_lines(flow):
    assert flow.args == ["3"]
    return flow.lines().map(len)
'''


def graph(*words: str) -> Result:
    return CliRunner().invoke(cli, ["graph", *words])


@pytest.fixture
def nested(tmp_path: Path) -> str:
    path = tmp_path / "nested.py"
    path.write_text(NESTED)
    return str(path)


def test_mermaid_shows_operators_with_their_lines_channels_with_their_pacts_and_scopes_as_frames(nested: str) -> None:
    done = graph(nested)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "flowchart TD"
    assert "print" not in done.stdout and "a program may" in done.stderr
    assert [line.strip() for line in lines if "subgraph" in line] == [
        'subgraph d0["nested"]',
        'subgraph d0s1["outside"]',
        'subgraph d0s2["in#quot;side"]',
        'subgraph d1["second"]',
    ]
    depth = {line.strip(): len(line) - len(line.lstrip()) for line in lines}
    assert depth['d0n0["ToStream<br>nested.py:7"]'] == 8
    [inner] = [line for line in depth if line.endswith('["Feedback<br>nested.py:11"]')]
    assert depth[inner] == 16
    assert '    d0n1 -->|"Exchange"| d0n2' in lines
    assert sum("-.->" in line for line in lines) == 1, "the probe"
    assert lines.count("    end") == 2 and sum(line.strip() == "end" for line in lines) == 4


def test_every_box_and_every_arrow_is_in_both_notations(nested: str) -> None:
    mermaid, dot = graph(nested).stdout, graph(nested, "--format", "dot").stdout
    boxes = re.findall(r"^ *(d\dn\d+)\[", mermaid, re.MULTILINE)
    assert boxes == re.findall(r"^ *(d\dn\d+) \[shape=box", dot, re.MULTILINE)
    assert len(boxes) == len(set(boxes)) > 8
    arrows = re.findall(r"^ *(d\dn\d+) -[-.]+>.* (d\dn\d+)$", mermaid, re.MULTILINE)
    assert arrows == re.findall(r"^ *(d\dn\d+) -> (d\dn\d+) \[", dot, re.MULTILINE)
    assert {box for arrow in arrows for box in arrow} == set(boxes)
    assert dot.startswith("digraph {") and dot.endswith("}\n") and dot.count("{") == dot.count("}") == 5
    assert 'label="in\\"side"' in dot


def test_a_function_that_takes_lines_is_given_lines_that_never_come(nested: str) -> None:
    done = graph(f"{nested}:dataflow_of_lines", "--", "3")
    assert done.exit_code == 0, done.output
    assert 'subgraph d0["dataflow_of_lines"]' in done.stdout
    line = NESTED.splitlines().index("    return flow.lines().map(len)") + 1
    assert f'["Lines<br>nested.py:{line}"]' in done.stdout and f'["Map<br>nested.py:{line}"]' in done.stdout


APPS = [
    path
    for path in sorted((ROOT / "apps").glob("*.py"))
    if re.search(r"^def (dataflow\(|main\(worker)", path.read_text(), re.MULTILINE)
    and not path.name.startswith("capture_")  # they connect to other programs before they build
]


ARGS = {"orders_to_table.py": ("--", "sqlite:orders.db")}  # of those that need some


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.name)
def test_every_app_that_builds_a_dataflow_can_be_drawn(app: Path) -> None:
    done = graph(str(app), *ARGS.get(app.name, ()))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("flowchart TD\n    subgraph d0[")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere.py"], 2, "there is no file 'nowhere.py'"),
        (["{nested}:absent"], 2, "has no function 'absent'. There are: main, dataflow_of_lines"),
        (["{nested}", "--format", "png"], 2, "'png' is not one of 'mermaid', 'dot'"),
        (["{empty}"], 2, "builds no dataflow before its first step"),
        (["{neither}"], 2, "has no function 'dataflow'. There are: other"),
    ],
)
def test_what_cannot_be_drawn_is_said(
    tmp_path: Path, nested: str, words: list[str], code: int, message: str
) -> None:
    empty, neither = tmp_path / "empty.py", tmp_path / "neither.py"
    empty.write_text("def main(worker):\n    worker.step()\n")
    neither.write_text("def other(worker):\n    worker.step()\n")
    done = graph(*(word.format(nested=nested, empty=empty, neither=neither) for word in words))
    assert done.exit_code == code
    assert message in done.output


def test_what_the_program_raises_is_shown_without_our_frames_unless_asked_for(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.write_text("import sys\ndef dataflow(flow):\n    sys.exit('no')\n")
    done, whole = graph(str(app)), graph(str(app), "--debug")
    assert done.exit_code == 1 and "SystemExit: no" in done.output and "built_program.py" not in done.output
    assert whole.exit_code == 1 and "SystemExit: no" in whole.output and "built_program.py" in whole.output


def test_a_picture_can_be_had_in_a_program() -> None:
    seen: list[str] = []

    def build(scope: object) -> None:
        ref: ScopeRef = scope.ref  # type: ignore[attr-defined]
        scope.to_stream([1]).exchange(lambda x: x)  # type: ignore[attr-defined]
        seen.append(draw([ref.graph], "mermaid"))

    example(build)
    assert 'd0n0 -->|"Exchange"| d0n1' in seen[0]
