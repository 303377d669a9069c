"""Spark's masters: their names, whether one answers, and its version. Checked before a session starts.

A session tries for more than a minute to reach a master that does not exist or has another version, and then fails with
a Java traceback. A master does not report its version to drivers, but its web page shows it. If that page is not at its
usual port, the version is unknown, and `spark_errors.start_failure` words the error of the session.
"""

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from megaflow.errors import ClusterError, UsageError, naming
from megaflow.timely.communication.address import parse_address

MASTER_SECONDS: Final = 10.0  # for a master to accept a connection
PAGE_SECONDS: Final = 1.0  # for its page
PAGE_PORT: Final = "8080"  # unless SPARK_MASTER_WEBUI_PORT is set
PAGE_BYTES: Final = 1 << 20
NAMES: Final = (
    r"local", r"local\[(\d+|\*)(,\d+)?\]", r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]", r"spark://.+",
    r"yarn", r"k8s://.+",
)  # fmt: skip
KNOWN: Final = "local[N], spark://HOST:PORT, yarn or k8s://HOST:PORT"
HADOOP: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def check_name(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise UsageError for a master that Spark does not know. "" means no master.

    >>> check_name("spark:host:7077")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: --on spark:spark:host:7077: Spark has no master 'spark:host:7077'. Did you mean spark://host:7077?
    """
    if master and not any(re.fullmatch(name, master) for name in NAMES):
        meant = meant_by(master)
        remedy = f"Did you mean {meant}?" if meant else f"It must be {KNOWN}."
        raise UsageError(f"--on spark:{master}: Spark has no master {master!r}. {remedy}")
    if master.startswith("spark://"):
        for place in master.removeprefix("spark://").split(","):
            if not re.fullmatch(r".+:\d+", place):
                raise UsageError(f"--on spark:{master}: {place!r} has no port. Write spark://{place}:7077.")
    if master == "yarn" and not any(name in environ for name in HADOOP):
        raise UsageError(f"--on spark:yarn: Set {' or '.join(HADOOP)} to the folder that describes the cluster.")


def meant_by(master: str) -> str:
    """Return the master that a wrong name probably stands for. "" if that is unclear.

    >>> meant_by("host:7077"), meant_by("local(4)"), meant_by("local4"), meant_by("Local[2]"), meant_by("mesos://h:1")
    ('spark://host:7077', 'local[4]', 'local[4]', 'local[2]', '')
    """
    if match := re.fullmatch(r"(?:spark:/?/?)?([\w.-]+:\d+)", master):
        return f"spark://{match[1]}"
    if match := re.fullmatch(r"local\W?(\d+|\*)\W?", master, re.IGNORECASE):
        return f"local[{match[1]}]"
    return ""


def check_master(master: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ClusterError if no standalone master answers at any of its addresses, or one has another version."""
    if not master.startswith("spark://"):
        return
    troubles = []
    for place in master.removeprefix("spark://").split(","):
        try:
            host, port = parse_address(place)
            with socket.create_connection((host, port), MASTER_SECONDS):
                break
        except OSError as error:
            troubles.append(f"{place} ({error.strerror or error})")
    else:
        raise ClusterError(f"--on spark:{master}: No Spark master answers at {', '.join(troubles)}.")
    from pyspark.version import __version__ as own

    found = version_on(page_of(host, environ.get("SPARK_MASTER_WEBUI_PORT") or PAGE_PORT), place)
    if found and release(found) != release(own):
        raise ClusterError(
            f"--on spark:{master}: The master runs Spark {found}, but this Python has PySpark {own}. Install "
            f"pyspark=={found}, or use a master of version {release(own)}."
        )


def page_of(host: str, port: str) -> str:
    """Return the web page of a master. "" if it does not answer quickly."""
    name = f"[{host}]" if ":" in host else host
    import urllib.request  # only when needed: it takes a while

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with contextlib.suppress(OSError, ValueError), opener.open(f"http://{name}:{port}/", timeout=PAGE_SECONDS) as page:
        return str(page.read(PAGE_BYTES), "utf-8", "replace")
    return ""


def version_on(page: str, place: str) -> str:
    """Return the version that the web page of a master shows. "" if this is not its page.

    >>> version_on('<title>Spark Master at spark://h:7077</title> <span class="version">4.0.1</span>', "h:7077")
    '4.0.1'
    """
    if f"Spark Master at spark://{place}<" not in page.replace("\n", ""):
        return ""
    match = re.search(r'class="version"[^>]*>\s*([\d.]+)[^<]*<', page)
    return match[1] if match else ""


def release(version: str) -> str:
    """Return the part of a version that must be equal.

    >>> release("4.0.1")
    '4.0'
    """
    return ".".join(version.split(".")[:2])


def reachable_driver(master: str) -> dict[str, str]:
    """Return the settings that tell executors where the driver is: the address that faces the master.

    >>> reachable_driver("spark://127.0.0.1:7077")["spark.driver.host"]
    '127.0.0.1'
    """
    host = urlsplit(master.partition(",")[0]).hostname
    if host is None:
        return {}
    with naming(UsageError, f"--on spark:{master}: Cannot reach {host}"):
        found = socket.getaddrinfo(host, 7077, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])  # on a datagram socket this sends nothing
            own = probe.getsockname()[0]
    return {"spark.driver.host": own, "spark.driver.bindAddress": own}
