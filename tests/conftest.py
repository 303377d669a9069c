"""Settings of all tests: hypothesis without deadlines, because machines are busy; fusion on, off, or both.

The quick acceptance cases of the engine run in both modes, without fusion as slow tests. With `--fusion=off` everything
runs without fusion. Processes that a test starts inherit the choice.
"""

import gc
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from megaflow.timely.dataflow.signature import SWITCH
from tests.examples import ALL, EXAMPLES, FIFTH
from tests.model.spin import NO_SPIN
from tests.parts import Durations, OnePart, deselect, parse_part
from tests.rotation import PLACES, SHARES, cases_of
from tests.scheduling import Scheduling
from tests.timely.test_engine_cases import CASES

for profile, examples in {ALL: EXAMPLES, FIFTH: EXAMPLES // 5}.items():
    settings.register_profile(
        profile, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(FIFTH)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started this in the background; some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup did; some tests close a terminal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

NEEDS_JAVA = pytest.mark.skipif(shutil.which("java") is None, reason="there is no java on PATH, and Spark needs one")
SLOW_SPARK = pytest.mark.timeout(2700)  # Java starts up to seven times on two cores, of a busy machine
QUICK = ("timely/", "simulation/")  # folders whose cases run twice


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fusion", choices=["both", "on", "off"], default="both", help="engine cases: both; off: all off")
    help = "a number in hexadecimal: run only that quarter of the slow tests of many seeds; without it, all"
    parser.addoption("--rotation", type=partial(int, base=16), help=help)
    parser.addoption("--part", type=parse_part, help="3/8: run only the third of eight parts of about the same length")
    parser.addoption("--measure", action="store_true", help="write how long tests take to tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("measure"):
        if config.getoption("part"):
            raise pytest.UsageError("--measure changes the parts: leave out --part, and measure all tests in one run.")
        config.pluginmanager.register(Durations())
    if part := config.getoption("part"):
        config.pluginmanager.register(OnePart(*part))


@cache
def cases() -> set[str]:
    """Return the tests of the acceptance cases: file::name."""
    return {place for _, places in CASES.values() for place in places if place.startswith(QUICK)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = metafunc.module.__name__.removeprefix("tests.").replace(".", "/")
    slow = any(mark.name in ("slow", "cluster") for mark in metafunc.definition.iter_markers())
    if metafunc.config.getoption("fusion") == "both" and f"{file}.py::{metafunc.function.__name__}" in cases():
        off = pytest.param("off", marks=pytest.mark.slow)
        metafunc.parametrize("fused", ["on"] if slow else ["on", off], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the pages of the documentation first. At the end, the other test processes would have to wait for them.

    A test of many seeds is slow, apart from the first and every fifth of them. Tests of Spark need Java.
    """
    items.sort(key=lambda item: not item.nodeid.startswith("tests/test_docs.py"))
    for item in items:
        values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if isinstance(seed := values.get("seed"), int) and seed % 5:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("spark"):
            item.add_marker(NEEDS_JAVA)
            if item.get_closest_marker("slow"):
                item.add_marker(SLOW_SPARK)
    rotation = config.getoption("rotation")
    if rotation is not None:
        rotating = {item.nodeid for item in items if item.nodeid.startswith(PLACES) and "slow" in item.keywords}
        waiting = rotating - cases_of(rotation, (item.nodeid for item in items if item.nodeid in rotating))
        deselect(config, items, waiting)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


def pytest_collection_finish() -> None:
    """Exclude all that is imported by now from garbage collections, because some tests need dozens of them."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which tests were skipped, and why: a letter s among thousands of dots is easy to miss."""
    reports = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple))
    for reason, count in sorted(reasons.items()):
        what = "properties of the models in tests/model" if NO_SPIN in reason else "skipped"
        terminalreporter.write_line(f"NOT CHECKED: {count} {what}; {reason.removeprefix('Skipped: ')}")
    rotation = terminalreporter.config.getoption("rotation")
    if rotation is not None:
        terminalreporter.write_line(
            f"NOT CHECKED: slow tests of many seeds and faults outside rotation {rotation:x}, which is share "
            f"{rotation % SHARES + 1} of {SHARES}; make soak runs them all"
        )
    failed = any("tests/simulation/" in report.nodeid for report in terminalreporter.getreports("failed"))
    if failed and os.environ.get("PYTHONHASHSEED") != "0":
        terminalreporter.write_line("a seed of a simulation is the same run everywhere only with PYTHONHASHSEED=0")


@pytest.fixture(autouse=True, scope="session")
def runtime_folder_of_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give this test process a folder for files of running jobs. Jobs of the other test processes are not seen there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(autouse=True)
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether dataflows are fused. Also keep what a test changes in this process from the next test."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # a command that loads a program puts its folder there
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # a program that fails replaces it
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # each process gets its own seed
    wanted = getattr(request, "param", request.config.getoption("fusion"))
    if wanted == "off" and request.node.get_closest_marker("about_fusion") is None:
        monkeypatch.setenv(SWITCH, "off")
    elif SWITCH in os.environ:
        monkeypatch.delenv(SWITCH)
