"""Spark masters that are invalid, do not answer, or have another version: one sentence before Spark starts."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from pyspark.version import __version__

from megaflow.errors import ClusterError, UsageError
from megaflow.spark.masters import check_master, check_name
from megaflow.spark.spark_errors import start_failure


@pytest.mark.parametrize(
    "master",
    ["", "local", "local[2]", "local[*,4]", "local-cluster[2,2,1024]", "spark://h:7077", "spark://h:1,i:2", "k8s://h"],
)
def test_a_master_of_spark_s_is_let_through(master: str) -> None:
    check_name(master, {})
    check_name("yarn", {"HADOOP_CONF_DIR": "/etc/hadoop"})


@pytest.mark.parametrize(
    ("master", "why"),
    [
        ("foo", "Spark has no master 'foo'. It must be local[N], spark://HOST:PORT, "),
        ("local[x]", "Spark has no master 'local[x]'."),
        ("local-cluster[1,2]", "Spark has no master 'local-cluster[1,2]'."),
        ("mesos://h:5050", "Spark has no master 'mesos://h:5050'."),
        ("h:7077", "Did you mean spark://h:7077?"),
        ("local(4)", "Did you mean local[4]?"),
        ("spark://h", "'h' has no port. Write spark://h:7077."),
        ("yarn", "Set HADOOP_CONF_DIR or YARN_CONF_DIR"),
    ],
)
def test_an_unknown_master_is_refused_in_one_sentence(master: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as error:
        check_name(master, {})
    assert str(error.value).startswith(f"--on spark:{master}: ") and "\n" not in str(error.value)


@contextmanager
def master_with_page(version: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Listens like a master, with its web page; gives its address and an environment that names the page."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        html = f"<title>Spark Master at spark://{place}</title>\n<span class='x'></span>"
        html += f'<span class="version" style="margin: 5px;">{version}</span>'

        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(html.encode())

            def log_message(self, *_: object) -> None:
                pass

        with HTTPServer(("127.0.0.1", 0), Page) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield f"spark://{place}", {"SPARK_MASTER_WEBUI_PORT": str(server.server_port)}
            finally:
                server.shutdown()
                thread.join()


def test_a_master_of_another_version_is_named_with_both() -> None:
    with master_with_page("3.5.1") as (master, environ):
        why = f"The master runs Spark 3.5.1, but this Python has PySpark {__version__}. Install pyspark==3.5.1"
        with pytest.raises(ClusterError, match=re.escape(f"--on spark:{master}: {why}")):
            check_master(master, environ)


def test_a_master_of_the_same_version_or_without_a_page_is_taken() -> None:
    with master_with_page(__version__) as (master, environ):
        check_master(master, environ)
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))  # and does not listen
            check_master(master, {"SPARK_MASTER_WEBUI_PORT": str(bound.getsockname()[1])})


def test_a_session_that_does_not_start_says_why_in_one_line() -> None:
    log = "ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up."
    trace = "An error occurred while calling None.x.\n: java.lang.IllegalStateException: stopped\n\tat java.x"
    failure = str(start_failure("spark://h:1", trace, log, "4.3.0"))
    assert failure.startswith("Spark did not start on spark://h:1: The master does not answer.") and "4.3.0" in failure
    assert str(start_failure("local[2]", trace, "", "4.3.0")) == "Spark did not start on local[2]: stopped"
