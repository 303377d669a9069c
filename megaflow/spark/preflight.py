"""What can be known before Spark starts: no Java, an old one, no such folder; which files of this machine it reads."""

import glob
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from urllib.parse import unquote, urlsplit

from megaflow.errors import SourceError
from megaflow.spark.query_spec import FILE_FORMATS, SparkSpec

JAVA_VERSION_MIN = 17
HIDDEN = (".", "_")  # how the names of files and folders begin that Spark leaves out
REMEDY = (
    "install one (Debian, Ubuntu: apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) "
    "or point JAVA_HOME to it, or read files without Spark: --lines 'FOLDER/*.txt'"
)


def check_spark(spec: SparkSpec) -> None:
    """Raise SourceError if there is no Java for Spark, or the spec names a local folder that is not there."""
    find_java()
    if spec.format not in FILE_FORMATS or re.match(r"[A-Za-z][\w+.-]+:", spec.path):
        return
    if os.path.isfile(spec.path):
        raise SourceError(
            f"{spec}: Spark's streams read folders, and {spec.path} is a file; name its folder, "
            f"or read it without Spark: --lines {spec.path}"
        )
    if not glob.has_magic(spec.path) and "{" not in spec.path and not os.path.isdir(spec.path):
        raise SourceError(f"{spec}: there is no folder {os.path.abspath(spec.path)}")


def local_files(spec: SparkSpec) -> Iterator[str]:
    """Yield the files of this machine that Spark might read: those that are there, at any depth of its folders."""
    path = unquote(urlsplit(spec.path).path) if spec.path.startswith("file:") else re.sub(r"{.*?}", "*", spec.path)
    wanted = next((value for name, value in spec.options.items() if name.lower() == "pathglobfilter"), "*")
    for place in glob.iglob(path):
        if os.path.isfile(place):
            yield place
        for folder, folders, names in os.walk(place):
            folders[:] = [name for name in folders if not name.startswith(HIDDEN)]
            yield from (
                os.path.join(folder, name) for name in names if fnmatch(name, wanted) and not name.startswith(HIDDEN)
            )


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the java that Spark's scripts take: in JAVA_HOME, else on PATH.

    Starts no Spark. Raises SourceError, one line with the remedy, if there is none or it is too old.
    """
    home = environ.get("JAVA_HOME")
    if home:
        java, where = os.path.join(home, "bin", "java"), f"JAVA_HOME is {home}"
    else:
        java, where = shutil.which("java", path=environ.get("PATH", "")) or "", "JAVA_HOME is not set"
    need = f"Spark needs Java {JAVA_VERSION_MIN} or newer"
    if not java or not os.access(java, os.X_OK):
        raise SourceError(f"{need} and there is none ({where}): {REMEDY}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"{need} and {java} fails ({error}): {REMEDY}") from error
    version = java_version(told.stderr + told.stdout)
    if version < JAVA_VERSION_MIN:
        found = f"is Java {version}" if version else "does not tell its version"
        raise SourceError(f"{need} and {java} {found}: {REMEDY}")
    return java


def java_version(text: str) -> int:
    """Return the major version in what `java -version` prints, 0 if it is not there.

    >>> java_version('openjdk version "17.0.15" 2025-04-15')
    17
    >>> java_version('java version "1.8.0_401"')
    8
    >>> java_version("java: not found")
    0
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else 0
