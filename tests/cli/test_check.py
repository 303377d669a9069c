"""`megaflow check` builds a program without running it, draws it, and warns: each warning has a sibling without it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from megaflow.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]

COUNT = """
def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]
"""
PAIRS = "flow.lines().map(lambda line: (line, 1))"

# kind -> (program with the warning, the warning's line and operator, words of its text, program without it)
WARNED: dict[str, tuple[str, tuple[str, str], str, str]] = {
    "a lambda as fold": (
        f"def dataflow(flow):\n    return {PAIRS}.stateful_state_machine(lambda key, n, total: (n, [n]))\n",
        ("unnamed 2", "<lambda>"),
        "name='…'",
        f"def dataflow(flow):\n"
        f"    return {PAIRS}.stateful_state_machine(lambda key, n, total: (n, [n]), name='totals')\n",
    ),
    "a window without a name": (
        "from megaflow import tumbling\n"
        "def dataflow(flow):\n"
        "    timed = flow.json_lines().event_time(lambda click: click['at'])\n"
        "    return timed.map(lambda click: (click['user'], click)).window(tumbling(60)).count()\n",
        ("unnamed 4", "window"),
        "no name of its own",
        "from megaflow import tumbling\n"
        "def dataflow(flow):\n"
        "    timed = flow.json_lines().event_time(lambda click: click['at'])\n"
        "    return timed.map(lambda click: (click['user'], click)).window(tumbling(60), name='minutes').count()\n",
    ),
    "an aggregate without a name": (
        f"def dataflow(flow):\n    return {PAIRS}.sum_by_key()\n",
        ("unnamed 2", "sum_by_key"),
        "no name of its own",
        f"def dataflow(flow):\n    return {PAIRS}.sum_by_key(name='sums')\n",
    ),
    "one fold in two operators": (
        f"{COUNT}def dataflow(flow):\n    pairs = {PAIRS}\n"
        "    first = pairs.stateful_state_machine(count)\n    return first.stateful_state_machine(count)\n",
        ("refused 8", "count"),
        "Two stateful operators of the dataflow have the name 'count'",
        f"{COUNT}def dataflow(flow):\n    pairs = {PAIRS}\n"
        "    first = pairs.stateful_state_machine(count)\n"
        "    return first.stateful_state_machine(count, name='again')\n",
    ),
    "a control stream of its own": (
        f"{COUNT}def dataflow(flow):\n    commands = flow.scope.source('none', lambda held, info: lambda out: None,"
        f" stateless=True)\n    return {PAIRS}.stateful_state_machine(count, control=commands)\n",
        ("refused 7", "count"),
        "remove control=",
        f"{COUNT}def dataflow(flow):\n    return {PAIRS}.stateful_state_machine(count, control=flow.control)\n",
    ),
    "an operator written by hand": (
        "from megaflow.timely import Pipeline\n"
        "def build(held, info):\n    return lambda taken, out: None\n"
        "def dataflow(flow):\n    return flow.lines().unary(Pipeline, 'mine', build)\n",
        ("refused 5", "mine"),
        "written by hand",
        "from megaflow.timely import Pipeline\n"
        "def build(held, info):\n    return lambda taken, out: None\n"
        "def dataflow(flow):\n    return flow.lines().unary(Pipeline, 'mine', build, stateless=True)\n",
    ),
    "records that cannot be read again": (
        "def dataflow(flow):\n    return flow.lines().concat(flow.scope.to_stream(['first']))\n",
        ("refused 2", "ToStream"),
        "cannot be read again",
        "def dataflow(flow):\n    return flow.lines().concat(flow.lines().map(str.upper))\n",
    ),
    "a stream that leads nowhere": (
        "def dataflow(flow):\n    lines = flow.lines()\n    lines.map(len)\n    return lines\n",
        ("dead-end 3", "Map"),
        "flow.output('NAME', stream)",
        "def dataflow(flow):\n    lines = flow.lines()\n    lines.inspect(print)\n    return lines\n",
    ),
    "a fold whose outputs nothing reads": (
        f"{COUNT}def dataflow(flow):\n    {PAIRS}.stateful_state_machine(count)\n    return flow.lines()\n",
        ("dead-end 6", "count"),
        "computed and dropped",
        f"{COUNT}def dataflow(flow):\n    flow.output('counts', {PAIRS}.stateful_state_machine(count))\n"
        "    return flow.lines()\n",
    ),
    "an input that nothing reads": (
        "def dataflow(flow):\n    flow.lines('orders')\n    return flow.lines('prices').map(len)\n",
        ("unread 2", "orders"),
        "No operator reads this input",
        "def dataflow(flow):\n    orders = flow.lines('orders')\n    return flow.lines('prices').concat(orders)\n",
    ),
    "an operator that no source reaches": (
        "def dataflow(flow):\n    lines = flow.lines()\n    handle, back = flow.scope.feedback(1)\n"
        "    turned = back.map(len)\n    turned.connect_loop(handle)\n    return lines.concat(turned)\n",
        ("unfed 4", "Map"),
        "It will never receive a record",
        "def dataflow(flow):\n    lines = flow.lines()\n    return lines.concat(lines.map(len))\n",
    ),
    "a large global": (
        "TABLE = {number: str(number) for number in range(200_000)}\n"
        "def dataflow(flow):\n    return flow.lines().map(lambda line: TABLE.get(len(line)))\n",
        ("large 3", "Map"),
        "'TABLE' (app.py, line 1)",
        "TABLE = {number: str(number) for number in range(2_000)}\n"
        "def dataflow(flow):\n    return flow.lines().map(lambda line: TABLE.get(len(line)))\n",
    ),
    "a large object behind a function": (
        "def rated(line):\n    return MODEL[len(line)]\n"
        "MODEL = b'x' * 2_000_000\n"
        "def dataflow(flow):\n    return flow.lines().map(lambda line: rated(line))\n",
        ("large 5", "Map"),
        "'rated' uses the variable 'MODEL' (app.py, line 3)",
        "def rated(line):\n    return MODEL[len(line)]\n"
        "MODEL = b'x' * 2_000\n"
        "def dataflow(flow):\n    return flow.lines().map(lambda line: rated(line))\n",
    ),
    "a global connection": (
        "import sqlite3\n"
        "CONNECTION = sqlite3.connect(':memory:')\n"
        f"def keep(word, n, total):\n    CONNECTION.execute('select 1')\n    return n, []\n"
        f"def dataflow(flow):\n    return {PAIRS}.stateful_state_machine(keep)\n",
        ("unsendable 7", "keep"),
        "'CONNECTION' (app.py, line 2), which is an object of type 'sqlite3.Connection'",
        "import sqlite3\n"
        "def dataflow(flow):\n    connection = sqlite3.connect(':memory:')\n"
        "    def keep(word, n, total):\n        connection.execute('select 1')\n        return n, []\n"
        f"    return {PAIRS}.stateful_state_machine(keep)\n",
    ),
    "a connection in an object": (
        "import sqlite3\n"
        "class Lookup:\n    def __init__(self):\n        self.client = sqlite3.connect(':memory:')\n"
        "    def find(self, line):\n        return line\n"
        "LOOKUP = Lookup()\ndef dataflow(flow):\n    return flow.lines().map(LOOKUP.find)\n",
        ("unsendable 9", "Map"),
        "The Lookup that it calls has the attribute 'client'",
        "import sqlite3\n"
        "class Lookup:\n    def __init__(self):\n        self.client = sqlite3.connect(':memory:')\n"
        "    def find(self, line):\n        return line\n"
        "def dataflow(flow):\n    return flow.lines().map(Lookup().find)\n",
    ),
    "a large attribute of an object that is called": (
        "class Model:\n    def __init__(self, size):\n        self.weights = bytes(size)\n"
        "    def __call__(self, line):\n        return line\n"
        "def dataflow(flow):\n    return flow.lines().map(Model(2_000_000))\n",
        ("large 7", "Map"),
        "The Model that it calls has the attribute 'weights'",
        "class Model:\n    def __init__(self, size):\n        self.weights = bytes(size)\n"
        "    def __call__(self, line):\n        return line\n"
        "def dataflow(flow):\n    return flow.lines().map(Model(2_000))\n",
    ),
    "an open file": (
        "LOG = open('/dev/null', 'w')\ndef dataflow(flow):\n    return flow.lines().filter(lambda line: LOG.closed)\n",
        ("unsendable 3", "Filter"),
        "'LOG' (app.py, line 1), which is an open file",
        "import threading\nLOCK = threading.Lock()\n"  # each process makes its own lock
        "def dataflow(flow):\n    return flow.lines().filter(lambda line: LOCK.locked())\n",
    ),
    "float keys by a fold": (
        "def mean(price: float, n: int, state: int | None) -> tuple[int, list[int]]:\n    return n, [n]\n"
        "def dataflow(flow):\n    return flow.json_lines().map(tuple).stateful_state_machine(mean)\n",
        ("float-key 4", "mean"),
        "NaN is refused",
        "def mean(cents: int, n: float, state: float | None) -> tuple[float, list[float]]:\n    return n, [n]\n"
        "def dataflow(flow):\n    return flow.json_lines().map(tuple).stateful_state_machine(mean)\n",
    ),
    "float keys by a map": (
        "def placed(line: str) -> tuple[tuple[float, float], str]:\n    return (0.5, 0.5), line\n"
        "def dataflow(flow):\n    return flow.lines().map(placed).filter(bool).count_by_key(name='places')\n",
        ("float-key 4", "places"),
        "are or contain floats",
        "def placed(line: str) -> tuple[tuple[int, int], float]:\n    return (1, 2), 0.5\n"
        "def dataflow(flow):\n    return flow.lines().map(placed).filter(bool).count_by_key(name='places')\n",
    ),
    "float keys in a record": (
        "from typing import NamedTuple\nclass Place(NamedTuple):\n    lat: float\n"
        "def placed(line: str) -> tuple[Place, int]:\n    return Place(0.5), 1\n"
        "def dataflow(flow):\n    return flow.lines().map(placed).sum_by_key(name='places')\n",
        ("float-key 7", "places"),
        "are or contain floats",
        "from typing import NamedTuple\nclass Place(NamedTuple):\n    within: 'Place | None'\n"
        "def placed(line: str) -> tuple[Place, float]:\n    return Place(None), 0.5\n"
        "def dataflow(flow):\n    return flow.lines().map(placed).sum_by_key(name='places')\n",
    ),
    "float keys by key=": (
        "def price(line: str) -> float:\n    return float(line)\n"
        "def dataflow(flow):\n    return flow.lines().count_by_key(key=price, name='prices')\n",
        ("float-key 4", "prices"),
        "Use an int",
        "def price(line: str) -> int:\n    return int(line)\n"
        "def dataflow(flow):\n    return flow.lines().count_by_key(key=price, name='prices')\n",
    ),
    "a state that cannot travel": (
        "import sqlite3\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Account:\n    cents: int\n    database: sqlite3.Connection\n"
        "def pay(name: str, cents: int, state: Account | None):\n    return state, []\n"
        f"def dataflow(flow):\n    return {PAIRS}.stateful_state_machine(pay)\n",
        ("state-type 10", "pay"),
        "The field 'database' of Account, in the state of 'pay', has the type Connection",
        "from dataclasses import dataclass\nfrom decimal import Decimal\n"
        "@dataclass\nclass Account:\n    cents: Decimal\n    pages: dict[str, list[int]]\n"
        "def pay(name: str, cents: int, state: Account | None):\n    return state, []\n"
        f"def dataflow(flow):\n    return {PAIRS}.stateful_state_machine(pay)\n",
    ),
    "a state of a local class": (
        "def dataflow(flow):\n"
        "    class Seen(dict):\n        pass\n"
        "    def note(word: str, n: int, seen: Seen | None):\n        return seen, []\n"
        f"    return {PAIRS}.stateful_state_machine(note)\n",
        ("state-type 6", "note"),
        "Seen, which cannot travel",
        "class Seen:\n    pass\n"
        "def dataflow(flow):\n"
        "    def note(word: str, n: int, seen: Seen | None):\n        return seen, []\n"
        f"    return {PAIRS}.stateful_state_machine(note)\n",
    ),
    "a late import that fails": (
        "def parse(line):\n    import there_is_no_such_module\n    return line\n"
        "def dataflow(flow):\n    return flow.lines().map(parse)\n",
        ("missing-import 2", ""),
        "'there_is_no_such_module'",
        "def parse(line):\n    try:\n        import there_is_no_such_module\n"
        "    except ImportError:\n        import json\n    return line\n"
        "def dataflow(flow):\n    return flow.lines().map(parse)\n",
    ),
}


def check(*words: str) -> Result:
    return CliRunner().invoke(cli, ["check", *words])


def warnings_of(path: Path, *words: str) -> list[dict[str, Any]]:
    done = check(str(path), "--json", *words)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)["warnings"]
    return found


def write(folder: Path, text: str, name: str = "app.py") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", WARNED)
def test_a_fault_is_warned_of_and_its_sibling_is_not(tmp_path: Path, name: str) -> None:
    faulty, (kind, operator), words, sound = WARNED[name]
    path = write(tmp_path / "faulty", faulty)
    found = warnings_of(path)
    fitting = [each for each in found if f"{each['kind']} {each['where'].rpartition(':')[2]}" == kind]
    assert [each["operator"] for each in fitting] == [operator], found
    assert fitting[0]["where"].startswith(str(path)) and all(fitting[0][part] for part in ("what", "why"))
    assert words in " ".join(fitting[0][part] for part in ("what", "why", "fix"))
    assert [each for each in warnings_of(write(tmp_path / "sound", sound)) if each["kind"] == kind.split()[0]] == []


APPS = [
    path for path in sorted((ROOT / "apps").glob("*.py"))
    if re.search(r"^def (dataflow\(|main\(worker)", path.read_text(), re.MULTILINE)
    and not path.name.startswith("capture_")  # they connect to other programs before they build
]  # fmt: skip
ARGS = {"orders_to_table.py": ("--", "sqlite:orders.db"), "table": ("--", "sqlite:orders.db")}


@pytest.mark.parametrize("app", APPS, ids=lambda path: path.name)
def test_no_shipped_app_is_warned_of(app: Path) -> None:
    assert warnings_of(app, *ARGS.get(app.name, ())) == []


TEMPLATES = sorted(path.parent.name for path in (ROOT / "megaflow" / "cli" / "templates").glob("*/app.py"))


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_template_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["new", "shop", "--template", template]).exit_code == 0
    monkeypatch.chdir("shop")
    assert warnings_of(Path("app.py"), *ARGS.get(template, ())) == []


def test_the_text_shows_operators_and_warnings_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, f"{COUNT}def dataflow(flow):\n    print('built')\n    flow.lines().map(len)\n"
                    f"    return {PAIRS}.stateful_state_machine(count).exchange(len)\n")  # fmt: skip
    done = check("app.py")
    assert done.exit_code == 0 and "built" in done.stderr and "built" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "Lines", "app.py:7"] in rows
    assert ["4", "count", "3", "by", "key", "state", "in", "256", "bins", "app.py:8"] in rows
    assert ["5", "Exchange", "4", "by", "exchange", "app.py:8"] in rows
    assert "reads: lines" in done.stdout and "output: 5" in done.stdout
    assert "\napp.py:7: Map: No operator reads this stream" in done.stdout and done.stdout.endswith("1 warning\n")


def test_only_strict_makes_a_warning_an_error(tmp_path: Path) -> None:
    path = str(write(tmp_path, WARNED["a stream that leads nowhere"][0]))
    sound = str(write(tmp_path, WARNED["a stream that leads nowhere"][3], "sound.py"))
    assert [check(*words).exit_code for words in ((path,), (path, "--strict"), (sound, "--strict"))] == [0, 1, 0]


def test_an_engine_program_is_built_up_to_its_first_step(tmp_path: Path) -> None:
    path = write(tmp_path, "def main(worker):\n    with worker.dataflow() as scope:\n"
                           "        numbers = scope.to_stream(range(3))\n        numbers.map(str)\n"
                           "        probe = numbers.inspect(print).probe()\n"
                           "    worker.step_while(lambda: not probe.done())\n"
                           "    raise AssertionError('it ran')\n")  # fmt: skip
    assert [(each["kind"], each["where"][-1]) for each in warnings_of(path)] == [("dead-end", "4")]
    refused = check(str(path), "--lines", "words.txt")
    assert refused.exit_code == 2 and "engine program" in refused.output


def test_rows_are_checked_without_spark(tmp_path: Path) -> None:
    path = write(tmp_path, "def dataflow(flow):\n    return flow.rows('orders', as_=dict).map(len)\n")
    words = [sys.executable, "-X", "importtime", "-m", "megaflow", "check", str(path), "--rows", "orders=spark:json:in"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "reads: rows 'orders'" in done.stdout and "pyspark" not in done.stderr


def test_a_session_of_spark_in_a_function_is_warned_of(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    path = write(tmp_path, "from pyspark.sql import SparkSession\ndef look(line):\n"
                           "    return SparkSession.builder.getOrCreate()\n"
                           "def dataflow(flow):\n    return flow.lines().map(look)\n")  # fmt: skip
    [found] = warnings_of(path)
    assert found["kind"] == "unsendable" and "'SparkSession'" in found["what"] and "flow.rows" in found["fix"]


def test_sources_and_items_are_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, "from megaflow.connect import QuerySource\ndef dataflow(flow):\n"
                           "    return flow.items('clicks').concat(flow.items('prices'))\n")  # fmt: skip
    assert warnings_of(path) == []
    assert json.loads(check(str(path), "--json").stdout)["inputs"] == ["input 'clicks'", "input 'prices'"]


@pytest.mark.parametrize(
    ("body", "words", "code", "message"),
    [
        ("flow.lines('orders')", ["--lines", "words.txt"], 1, "the job was given no named lines"),
        ("flow.lines('orders')", ["--lines", "orders=a", "--lines", "prices=b"], 1, "Leave them out"),
        ("flow.lines()", ["--output", "late=none"], 1, "does not call flow.output"),
        ("flow.scope.empty()", ["--lines", "words.txt"], 1, "never calls flow.lines()"),
        ("5", [], 1, "must return its output, a Stream"),
        ("flow.lines", ["--lines", "a", "--lines", "b"], 2, "Give only one of them"),
        ("flow.nothing()", [], 1, "AttributeError"),
        ("flow.lines()", ["stray"], 2, "Unexpected arguments"),
        ("flow.lines()", ["--drop-state", "words"], 2, "Add --state DIR"),
    ],
)
def test_what_a_job_refuses_is_refused(tmp_path: Path, body: str, words: list[str], code: int, message: str) -> None:
    done = check(str(write(tmp_path, f"def dataflow(flow):\n    return {body}\n")), *words)
    assert done.exit_code == code and message in done.output, done.output


def test_a_traceback_of_the_program_comes_last_without_our_frames(tmp_path: Path) -> None:
    done = check(str(write(tmp_path, "def dataflow(flow):\n    return flow.lines().map(1 / 0)\n")))
    assert done.exit_code == 1 and done.stdout == ""
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero") and "built_program" not in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.py", "there is no file"), ("app.py:dataflw", "did you mean 'dataflow'?"), ("ap.py", "did you mean")],
)
def test_a_wrong_name_is_answered_with_a_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "def dataflow(flow):\n    return flow.lines()\n")
    done = check(name)
    assert done.exit_code == 2 and message in done.output


@pytest.mark.cluster
def test_a_module_from_elsewhere_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "lib", "PRICE = 3\n", "prices_elsewhere.py")
    app = write(tmp_path / "app", "import beside\nimport prices_elsewhere\n"
                                  "def dataflow(flow):\n    return flow.lines()\n")  # fmt: skip
    write(tmp_path / "app", "NAME = 'a'\n", "beside.py")
    words = [sys.executable, "-m", "megaflow", "check", str(app), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    [found] = json.loads(done.stdout)["warnings"]
    assert found["kind"] == "import" and found["where"] == f"{app}:2" and "prices_elsewhere.py" in found["what"]


@pytest.mark.cluster
def test_a_store_that_the_program_cannot_resume_is_refused(tmp_path: Path) -> None:
    text = f"{COUNT}def dataflow(flow):\n    return {PAIRS}.stateful_state_machine(count, name='words')\n"
    app, lines, kept = write(tmp_path, text), tmp_path / "in.txt", tmp_path / "kept"
    lines.write_text("a\nb\n")
    run = [sys.executable, "-m", "megaflow", "run", str(app), "--lines", str(lines), "--state", str(kept)]
    subprocess.run([*run, "--output", f"jsonl:{tmp_path / 'out.jsonl'}"], check=True, capture_output=True)
    before = sorted(os.listdir(kept))
    words = (str(app), "--lines", str(lines), "--state", str(kept))
    assert check(*words).exit_code == 0
    write(tmp_path, text.replace("name='words'", "name='word'"))
    done = check(*words)
    assert done.exit_code == 1 and "did you mean 'word'?" in done.output, done.output
    assert check(*words, "--rename-state", "words=word").exit_code == 0
    assert check(*words[:3], "--state", str(tmp_path / "new")).exit_code == 0 and not (tmp_path / "new").exists()
    assert sorted(os.listdir(kept)) == before
