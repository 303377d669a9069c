"""The page of real jobs: from its address to the last state, through moves, restarts, and hostile visitors."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import megaflow
from megaflow.errors import UsageError
from tests.cluster.counts import check_numbered, write_numbered
from tests.cluster.processes import END_SECONDS, ROOT, WORDCOUNT, Process, Run, wait_until
from tests.cluster.test_rescaling import COUNT, SLOW
from tests.web.hostile import REFUSED, SCRIPT, requests
from tests.web.serving import Visitor, parsed, visitor_of

pytestmark = pytest.mark.cluster

ADDRESS = re.compile(r"megaflow: watch the job at (\S+)\n")
METRICS = re.compile(r"megaflow: metrics of the job are at (\S+)metrics\n")
EVIL = SLOW.replace("bins=32", f"bins=32, name={SCRIPT!r}")


def printed_page(process: Process, seconds: float = END_SECONDS, pattern: re.Pattern[str] = ADDRESS) -> Visitor:
    """Return a visitor of the page whose address a command prints within so many seconds."""
    wait_until(lambda: any(map(pattern.fullmatch, process.errors)) or process.poll() is not None, seconds)
    found = [match[1] for line in process.errors if (match := pattern.fullmatch(line))]
    assert found, process.errors
    return visitor_of(found[0])


def begin(start: Callable[..., Run], folder: Path, *words: str, code: str = COUNT) -> Run:
    text, app = write_numbered(folder / "text.txt", 300_000), folder / "app.py"
    app.write_text(code)
    return start(
        str(app), "--lines", str(text), "--rate", "800", "--processes", "2", "--name", "watched",
        "--output", f"jsonl:{folder / 'out.jsonl'}", *words,
    )  # fmt: skip


def owners(document: dict[str, object]) -> set[str]:
    return {str(key) for key, worker in document["workers"].items() if worker.get("bins")}  # type: ignore[attr-defined]


def test_a_page_shows_its_job_and_ends_with_it(start: Callable[..., Run], text: Path, tmp_path: Path) -> None:
    out = f"jsonl:{tmp_path / 'out.jsonl'}"
    run = start(WORDCOUNT, "--lines", str(text), "--rate", "1000", "--output", out, "--web")
    page = printed_page(run.process)
    assert page.request().status == 200
    with page.viewer() as viewer:
        viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
        wait_until(lambda: page.request("/readyz").status == 200)
        ended = viewer.shows(lambda document: document["status"]["state"] == "ended")
        assert ended["about"]["program"] == "wordcount.py"
        farewell = viewer.next()
        assert farewell is not None and farewell.event == "ended"
    code, _, said = run.end()
    assert code == 0, said
    with pytest.raises(ConnectionRefusedError):
        page.connect()


def test_a_page_tells_why_its_job_has_failed(start: Callable[..., Run], tmp_path: Path) -> None:
    check = "    assert not pathlib.Path(__file__).with_name('fail').exists()\n    total ="
    run = begin(start, tmp_path, "--web", code="import pathlib\n" + COUNT.replace("    total =", check, 1))
    with printed_page(run.process).viewer() as viewer:
        viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
        (tmp_path / "fail").touch()
        farewell = viewer.until(lambda message: message.event == "ended").data["text"]
    assert farewell.startswith("The job has failed: ") and "AssertionError" in farewell


def test_a_page_with_control_steers_its_job(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path, "--web", "0", "--web-control", "--state", str(tmp_path / "state"))
    page = printed_page(run.process)
    assert page.request(f"/?token={page.token}").status == 200
    with page.viewer() as viewer:
        viewer.shows(lambda document: owners(document) == {"0", "1"} if "workers" in document else False)
        status, record = page.command("move", bins="0-3", to=1, strategy="all-at-once")
        assert status == 200 and record["result"]["bins"] <= 4
        status, record = page.command("drain", worker=0, strategy="all-at-once")
        assert status == 200, record
        viewer.shows(lambda document: owners(document) == {"1"})
        status, record = page.command("add", count=1, balance=False)
        assert (status, record["result"]["failed"]) == (200, []), record
        viewer.shows(lambda document: "2" in document["workers"])
        assert page.command("remove", worker=0)[0] == 200
        viewer.shows(lambda document: set(document["workers"]) == {"1", "2"})
        assert page.command("checkpoint", name="seen")[0] == 200
        assert page.command("checkpoint", name="seen again")[0] == 400
        assert page.command("remove", worker=77)[0] == 409
        assert page.command("stop") == (200, {"result": {}})
        viewer.shows(lambda document: document["status"]["state"] == "ended")
    code, _, said = run.end()
    assert code == 0, said


@pytest.mark.slow
def test_control_web_shows_a_job_that_runs_without_a_page(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path)
    run.reading()
    closed, shown = (run.megaflow("control", "web", *words) for words in ((), ("--web-control",)))
    try:
        with printed_page(closed).viewer() as viewer:
            viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
            closed.send_signal(signal.SIGINT)
            assert closed.end().code == 130
            while (message := viewer.next()) is not None:
                last = message
            assert (last.event, last.data["text"]) == ("ended", "The page has been closed. The job goes on.")
        page = printed_page(shown)
        with page.viewer() as viewer:
            viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
            assert page.command("stop")[0] == 200
            viewer.shows(lambda document: document["status"]["state"] == "ended")
        ended = shown.end()
        assert (ended.code, ended.errors.splitlines()[-1]) == (0, "megaflow: job 'watched' has ended")
    finally:
        closed.finish()
        shown.finish()
    assert run.end()[0] == 0
    assert run.control("web", "--job", "watched").returncode == 1


@pytest.mark.slow
def test_control_web_notices_the_end_of_a_job_without_viewers(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path)
    run.reading()
    shown = run.megaflow("control", "web", "--json")
    try:
        page = printed_page(shown)
        assert f'"web_url": "http://127.0.0.1:{page.port}/"' in shown.read_line()
        assert run.control("stop").returncode == 0
        assert shown.end().code == 0
    finally:
        shown.finish()


@pytest.mark.slow
def test_control_web_reaches_a_job_by_its_address(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "a secret of the tests")
    run = begin(start, tmp_path)
    address = run.reading()["workers"][0]["address"]
    shown = run.megaflow("control", "web", "--connect", address)
    try:
        with printed_page(shown).viewer() as viewer:
            document = viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
            assert document["about"]["job"] == "watched" and document["about"]["target"] == f"--connect {address}"
        assert run.control("stop").returncode == 0
        ended = shown.end()
        assert (ended.code, ended.errors.splitlines()[-1]) == (0, "megaflow: job 'watched' has ended")
    finally:
        shown.finish()


def test_a_job_without_a_folder_for_its_file_has_a_page(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "a secret of the tests")
    monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", "/proc/there is none")
    page = printed_page(begin(start, tmp_path, "--web", "--web-control").process)
    with page.viewer() as viewer:
        document = viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
        assert document["about"]["target"].startswith("--connect 127.0.0.1:")
        assert page.command("stop")[0] == 200
        viewer.shows(lambda document: document["status"]["state"] == "ended")


@pytest.mark.slow
def test_a_page_outlasts_a_restart_of_its_job(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path, "--web", "--state", str(tmp_path / "state"), "--restarts", "3")
    before = run.reading()
    beside = run.megaflow("control", "web")
    try:
        with printed_page(run.process).viewer() as own, printed_page(beside).viewer() as other:
            for viewer in (own, other):
                viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
            os.kill(pid := before["workers"][1]["pid"], signal.SIGKILL)
            for viewer in (own, other):
                viewer.shows(lambda document: document["workers"].get("1", {}).get("pid", pid) != pid)
                document = viewer.shows(lambda document: document["status"]["state"] == "running")
                assert any(each["kind"] == "restart" for each in document["timeline"].values()), document["timeline"]
        wait_until(lambda: printed_page(run.process).request("/readyz").status == 200)
        assert run.control("stop").returncode == 0
        assert beside.end().code == 0
    finally:
        beside.finish()
    assert run.end()[0] == 0


@pytest.mark.slow
def test_ctrl_c_ends_a_job_with_viewers_cleanly(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path, "--web")
    run.reading()
    with printed_page(run.process).viewer() as viewer:
        viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
        run.process.send_signal(signal.SIGINT)
        viewer.shows(lambda document: document["status"]["state"] == "ended")
        code, _, said = run.end()
    assert code == 130 and not any("Traceback" in line for line in said), said


@pytest.mark.slow
def test_hostile_visitors_leave_job_and_page_unharmed(start: Callable[..., Run], tmp_path: Path) -> None:
    text, app, out = write_numbered(tmp_path / "text.txt", 90_000), tmp_path / "app.py", tmp_path / "out.jsonl"
    app.write_text(EVIL)
    words = "--lines", str(text), "--processes", "2", "--output", f"jsonl:{out}", "--web", "--web-control"
    run = start(str(app), *words)
    page = printed_page(run.process)
    run.reading()
    with page.viewer() as viewer, ThreadPoolExecutor(16) as visitors:
        document = viewer.shows(lambda document: bool(document.get("operators")))
        assert SCRIPT in document["operators"]["0"]["name"]
        table = list(requests(page.port, page.token))
        statuses = visitors.map(lambda each: parsed(page.raw(each.data)).status, table)
        given = {each.name: status for each, status in zip(table, statuses) if status not in (*REFUSED, 409, 503)}
        assert len(table) >= 200 and given == {}
        assert viewer.shows(lambda document: True)["status"]["state"] == "running"
        (tmp_path / "fast").touch()
        viewer.shows(lambda document: document["status"]["state"] == "ended")
    code, _, said = run.end()
    assert code == 0 and not any("Traceback" in line or SCRIPT in line for line in said), said
    check_numbered(out, text, said)


@pytest.mark.slow
def test_metrics_have_a_port_of_their_own(start: Callable[..., Run], tmp_path: Path) -> None:
    run = begin(start, tmp_path, "--metrics", "0")
    page = printed_page(run.process, pattern=METRICS)
    assert [page.request(path).status for path in ("/", "/events", "/metrics", "/livez")] == [404, 404, 200, 200]
    assert run.control("stop").returncode == 0
    assert run.end()[0] == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--web", "{taken}"), "--web {taken}: Address already in use. Choose another port"),
        (("--metrics", "{taken}"), "--metrics {taken}: Address already in use"),
        (("--web", "no.such.host.invalid:80"), "--web no.such.host.invalid:80: "),
        (("--web", "192.0.2.1:0"), "--web 192.0.2.1:0: Cannot assign requested address"),
        (("--web", "http"), "--web http: must be PORT or HOST:PORT"),
        (("--web", "99999"), "--web 99999: must be PORT or HOST:PORT"),
        (("--metrics", ""), "--metrics : must be PORT or HOST:PORT"),
        (("--web-control",), "--web-control is only for jobs with a page. Add --web."),
    ],
)
def test_wrong_options_start_no_process(
    start: Callable[..., Run], text: Path, words: tuple[str, ...], reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        run = start(WORDCOUNT, "--lines", str(text), *(word.format(taken=port) for word in words))
        code, output, said = run.end()
    assert (code, output, len(said)) == (2, "", 1), said
    assert reason.format(taken=port) in said[0]


def test_a_page_needs_file_descriptors_for_its_visitors(tmp_path: Path, text: Path) -> None:
    words = shlex.join([sys.executable, "-m", "megaflow", "run", WORDCOUNT, "--lines", str(text), "--output", "none"])
    for option, code in (("", 0), (" --web", 1)):
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        command = ["sh", "-c", f"ulimit -n 100; exec {words}{option}"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        assert ("Too few file descriptors" in done.stderr) is (code == 1)


def test_a_token_that_is_too_short_starts_no_process(
    start: Callable[..., Run], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFLOW_WEB_TOKEN", "short")
    code, output, said = start(WORDCOUNT, "--lines", str(text), "--web").end()
    assert (code, output) == (2, "") and "MEGAFLOW_WEB_TOKEN must have" in said[0]


def test_without_the_extra_the_error_names_it(tmp_path: Path, text: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['aiohttp'] = None\n")
    command = [sys.executable, "-m", "megaflow", "run", WORDCOUNT, "--lines", str(text), "--web"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'megaflow[web]'" in done.stderr and "Traceback" not in done.stderr


def test_a_started_job_has_the_address_of_its_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    seen = threading.Event()

    def lines() -> Iterator[str]:
        yield from ("a rose", "is")
        seen.wait()
        yield "a rose"

    def dataflow(flow: megaflow.Flow) -> object:
        return flow.lines().count_by_value()

    with megaflow.start(dataflow, lines=lines(), web=0, web_control=True, output="none") as job:
        assert job.web_url is not None
        page = visitor_of(job.web_url)
        assert page.token and page.request("/livez").status == 200
        with page.viewer() as viewer:
            viewer.shows(lambda document: document.get("status", {}).get("state") == "running")
            seen.set()
            viewer.shows(lambda document: document["status"]["state"] == "ended")
    with pytest.raises(ConnectionRefusedError):
        page.connect()
    with megaflow.start(dataflow, lines=["a"], output="none") as job:
        assert job.web_url is None


def test_a_started_job_with_a_wrong_address_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for words in ({"web": "x"}, {"web": -1}, {"web": True}, {"metrics": "a b:1"}, {"web_control": True}):
        with pytest.raises(UsageError, match=f"^{next(iter(words))}"):
            megaflow.start(lambda flow: flow.lines(), lines=["a"], **words)
    assert megaflow.jobs() == []
