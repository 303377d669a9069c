"""Checks before Spark starts: Java, its version, folders. Also the local files that Spark reads, and where it writes.
"""

import contextlib
import fcntl
import glob
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from urllib.parse import unquote, urlsplit

from megaflow.errors import SourceError
from megaflow.own_files import close_own, open_own
from megaflow.spark.query_spec import FILE_FORMATS, SparkSpec

FOLDER = "megaflow-spark-"
LOCKED_SECONDS = 60.0  # a living process has locked its folder by this age
JAVA_VERSION_MIN = 17
HIDDEN = (".", "_")  # first characters of the names of files and folders that Spark leaves out
REMEDY = (
    "Install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or point "
    "JAVA_HOME to it. Without Spark, read files by --lines 'FOLDER/*.txt'."
)


@contextlib.contextmanager
def folder_of_a_session() -> Iterator[Path]:
    """Yield a folder for the temporary files of a session. It is removed after the block.

    The folder is locked meanwhile, by the kernel. This user's unlocked folders belong to killed processes and are
    removed now.
    """
    with temporary_folder(FOLDER) as folder, locked(folder):
        with contextlib.suppress(OSError):
            own = os.stat(folder)
            for entry in os.scandir(os.path.dirname(folder)):
                other = entry.stat(follow_symlinks=False)
                is_ours = entry.name.startswith(FOLDER) and other.st_uid == own.st_uid and stat.S_ISDIR(other.st_mode)
                if is_ours and other.st_mtime < own.st_mtime - LOCKED_SECONDS:
                    with contextlib.suppress(BlockingIOError), locked(entry.path):
                        shutil.rmtree(entry.path, ignore_errors=True)
        yield Path(folder)


@contextlib.contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Yield a new folder that is removed after the block, and unlike TemporaryDirectory not by a fork that exits."""
    folder = tempfile.mkdtemp(prefix=prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock a folder during the block. Raises BlockingIOError if it is already locked, and other OSErrors."""
    file = open_own(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        close_own(file)


def check_spark(spec: SparkSpec) -> None:
    """Raise SourceError if Spark cannot start here, or if the spec names a local folder that does not exist."""
    check_installation()
    if spec.format not in FILE_FORMATS or re.match(r"[A-Za-z][\w+.-]+:", spec.path):
        return
    if os.path.isfile(spec.path):
        raise SourceError(
            f"{spec}: Spark's streams read folders, but {spec.path} is a file. Name its folder, or read it "
            f"without Spark: --lines {spec.path}"
        )
    if not glob.has_magic(spec.path) and "{" not in spec.path and not os.path.isdir(spec.path):
        raise SourceError(f"{spec}: There is no folder {os.path.abspath(spec.path)}.")


def local_files(spec: SparkSpec) -> Iterator[str]:
    """Yield the existing files of this machine that Spark might read, at any depth of its folders."""
    path, wanted = _places_and_names(spec)
    for place in glob.iglob(path):
        if os.path.isfile(place):
            yield place
        for folder, folders, names in os.walk(place):
            folders[:] = [name for name in folders if not name.startswith(HIDDEN)]
            yield from (
                os.path.join(folder, name) for name in names if fnmatch(name, wanted) and not name.startswith(HIDDEN)
            )


def would_read(spec: SparkSpec, folder: str, names: Iterable[str]) -> bool:
    """Return whether Spark might read files with one of these names in a folder of this machine, which need not exist.
    """
    path, wanted = _places_and_names(spec)
    if not any(fnmatch(name, wanted) for name in names):
        return False
    for place in glob.iglob(path):
        parts = os.path.relpath(os.path.realpath(folder), os.path.realpath(place)).split("/")
        if os.path.isdir(place) and not any(part.startswith(HIDDEN) for part in parts if part != "."):
            return True
    return False


def _places_and_names(spec: SparkSpec) -> tuple[str, str]:
    """Return globs of the folders of this machine that Spark searches, and of the names of the files that it reads."""
    path = unquote(urlsplit(spec.path).path) if spec.path.startswith("file:") else re.sub(r"{.*?}", "*", spec.path)
    return path, next((value for name, value in spec.options.items() if name.lower() == "pathglobfilter"), "*")


def check_installation(environ: Mapping[str, str] = os.environ) -> None:
    """Raise SourceError if there is no Java for Spark, or if SPARK_HOME has another Spark than this Python."""
    find_java(environ)
    home = environ.get("SPARK_HOME")
    if not home or "PYSPARK_GATEWAY_PORT" in environ:  # spark-submit has started Java
        return
    from pyspark.version import __version__ as own

    if not os.path.exists(os.path.join(home, "bin", "spark-submit")):
        raise SourceError(f"SPARK_HOME={home}: There is no Spark (bin/spark-submit) in this folder. Unset SPARK_HOME.")
    found = spark_version(glob.glob(os.path.join(glob.escape(home), "jars", "spark-core_*.jar")))
    if found and found.split(".")[:2] != own.split(".")[:2]:
        raise SourceError(
            f"SPARK_HOME={home} has Spark {found}, but this Python has PySpark {own}. Unset SPARK_HOME, or install "
            f"pyspark=={found}."
        )


def spark_version(jars: Iterable[str]) -> str:
    """Return the version in the names of Spark's files. "" if there is none.

    >>> spark_version(["/opt/spark/jars/spark-core_2.13-4.0.1.jar"]), spark_version([])
    ('4.0.1', '')
    """
    matches = (re.search(r"spark-core_[\d.]+-(\d+\.\d+[^-]*?)(?:-.*)?\.jar$", jar) for jar in jars)
    return next((match[1] for match in matches if match), "")


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the java that Spark's scripts use: in JAVA_HOME, else on PATH.

    Does not start Spark. Raises SourceError, one line with the remedy, if there is none or it is too old.
    """
    home = environ.get("JAVA_HOME")
    if home:
        java, where = os.path.join(home, "bin", "java"), f"JAVA_HOME is {home}"
    else:
        java, where = shutil.which("java", path=environ.get("PATH", "")) or "", "JAVA_HOME is not set"
    need = f"Spark needs Java {JAVA_VERSION_MIN} or newer"
    if not java or not os.access(java, os.X_OK):
        raise SourceError(f"{need}, but there is none ({where}). {REMEDY}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{need}, but {java} fails ({error}). {REMEDY}") from error
    version = java_version(told.stderr + told.stdout)
    if version < JAVA_VERSION_MIN:
        found = f"is Java {version}" if version else "does not report its version"
        raise SourceError(f"{need}, but {java} {found}. {REMEDY}")
    return java


def java_version(text: str) -> int:
    """Return the major version in the output of `java -version`, 0 if it is not there.

    >>> java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> java_version('java version "1.8.0_401"')
    8
    >>> java_version("java: not found")
    0
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0
