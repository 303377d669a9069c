"""Messages of Spark's Java process and a job's log."""

import logging
import signal
import socket
import threading
from pathlib import Path

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway
from py4j.protocol import Py4JError
from pyspark import SparkConf

from megaflow.errors import SourceError
from megaflow.spark.spark_session import _java_process, kept_signals, quiet_connections


def close_whatever_connects(server: socket.socket) -> None:
    """A Java process that dies while each command is on its way."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(1024)


def test_a_connection_to_java_that_breaks_is_an_error_and_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "megaflow.spark")
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=close_whatever_connects, args=(server,))
        thread.start()
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=server.getsockname()[1]))
        with quiet_connections():
            with pytest.raises(Py4JError):
                gateway.jvm.java.lang.System.nanoTime()
            logging.getLogger().error("others may go on")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    told = [(record.name, record.levelname) for record in caplog.records if record.name in ("root", "megaflow.spark")]
    assert ("root", "ERROR") in told and told.count(("root", "ERROR")) == 1
    assert ("megaflow.spark", "DEBUG") in told


def test_ctrl_c_stays_the_launcher_s_when_a_context_is_made_in_its_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with kept_signals():
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # as a SparkContext does, with a handler of its own
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.spark
def test_a_wrong_master_is_told_in_spark_s_words(tmp_path: Path) -> None:
    started = _java_process(SparkConf().setMaster("loca[4]"), tmp_path / "log", ())
    with pytest.raises(SourceError, match=r"did not start: .*[Mm]aster.* local$"), started:
        pytest.fail("it started")
