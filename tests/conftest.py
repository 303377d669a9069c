"""What all tests share: hypothesis must not judge by the clock, machines are busy; fusion on, off, or both.

The engine's acceptance cases run in both modes, those of them that are quick; with `--fusion=off` everything runs
without. Processes that a test starts inherit the choice.
"""

import os
import signal
from functools import cache

import pytest
from hypothesis import HealthCheck, settings

from megaflow.timely.dataflow.signature import SWITCH
from tests.model.spin import NO_SPIN
from tests.timely.test_engine_cases import CASES

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started this in the background; some tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup did; some tests close a terminal
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

QUICK = ("timely/", "simulation/")  # where cases are run twice


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fusion", choices=["both", "on", "off"], default="both", help="engine cases: both; off: all off")


@cache
def cases() -> set[str]:
    """The tests of the acceptance cases: file::name."""
    return {place for _, places in CASES.values() for place in places if place.startswith(QUICK)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    file = metafunc.module.__name__.removeprefix("tests.").replace(".", "/")
    slow = any(mark.name in ("slow", "cluster") for mark in metafunc.definition.iter_markers())
    if metafunc.config.getoption("fusion") == "both" and f"{file}.py::{metafunc.function.__name__}" in cases():
        metafunc.parametrize("fused", ["on"] if slow else ["on", "off"], indirect=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say aloud that models were not checked: a letter s among thousands of dots is silence."""
    unchecked = sum(NO_SPIN in str(report.longrepr) for report in terminalreporter.getreports("skipped"))
    if unchecked:
        terminalreporter.write_line(f"NOT CHECKED: {unchecked} properties of the models in tests/model; {NO_SPIN}")
    failed = any("tests/simulation/" in report.nodeid for report in terminalreporter.getreports("failed"))
    if failed and os.environ.get("PYTHONHASHSEED") != "0":
        terminalreporter.write_line("a seed of a simulation is the same run everywhere only with PYTHONHASHSEED=0")


@pytest.fixture(autouse=True)
def fused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether dataflows are fused."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)  # processes that a test starts agree whatever each has
    wanted = getattr(request, "param", request.config.getoption("fusion"))
    if wanted == "off" and request.node.get_closest_marker("about_fusion") is None:
        monkeypatch.setenv(SWITCH, "off")
    elif SWITCH in os.environ:
        monkeypatch.delenv(SWITCH)
