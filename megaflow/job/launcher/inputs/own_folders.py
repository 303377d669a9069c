"""Folders that the job itself writes, `--state` and `--profile`. Their files must not be input of the job.

Otherwise a job with `**` in its input reads its own checkpoints: at the next run, or while it runs with `--follow`.

1. The check comes before the job writes anything, so the folder need not exist. Therefore the check asks whether the
   input would find files with the names that the job gives to its files. The folder may be inside an input of other
   files: `**/*.log` finds no file of a store.
2. The system compares the folders, so a folder with several names, such as a link, is recognized. If the folder does
   not exist, the nearest existing folder above it is compared, and the names below that are matched.
"""

import glob
import os
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.job.files.splits import matches
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.launcher.inputs.line_options import split_options
from megaflow.job.spec import JobSpec
from megaflow.spark import launching

STORE_FILES: Final = (
    "lock", "lock.next", "000000000001.commit", "000000000001.commit.0.tmp", "i1-w0-000001.seg",
    "i1-w0-000001.seg.0.tmp", "i1-launcher-000001.seg",
)  # fmt: skip
"""One of each kind, see `megaflow.durable`."""
PROFILE_FILES: Final = ("operators.txt", "operators.json", "calls.txt", "worker-0.json", "worker-0.pstats")
"""Likewise, see `megaflow.job.profile.report`."""


def check_own_folders(spec: JobSpec, lines: Any, job_input: JobInput) -> None:
    """Raise UsageError if the input finds files that the job writes. `lines` are as for `find_input`.

    Cost: nothing without such folders. Searches the folders of an input only if its pattern could match such files.
    """
    profile = None if spec.profile is None else spec.profile.folder
    for folder, option, names in ((spec.state, "--state", STORE_FILES), (profile, "--profile", PROFILE_FILES)):
        if folder is None:
            continue
        given = lines.values() if isinstance(lines, Mapping) else (lines,)
        found = [f"--lines {each!r}" for each in map(_path_of, given) if each and would_read(each, folder, names)]
        found += [str(each) for each in job_input.spark_specs if launching.would_read(each, folder, names)]
        if found:
            raise UsageError(
                f"{option} {folder}: The job would read its own files in this folder as input ({found[0]}). Name a "
                "folder outside of the input, or an input that leaves this folder out."
            )


def _path_of(lines: Any) -> str:
    """Return the path or pattern of an input. "" if it is not one of files, or Spark reads it."""
    path = split_options(os.fspath(lines))[0] if isinstance(lines, str | os.PathLike) else ""
    return "" if path == "-" or path.startswith("spark:") else path


def would_read(spec: str, folder: str, names: Collection[str]) -> bool:
    """Return whether `find_files` would find a file with one of these names in a folder, which need not exist."""
    given = spec if os.path.exists(spec) else os.path.expanduser(spec)
    is_name = os.path.exists(given) or not glob.has_magic(given)
    pattern = glob.escape(given) if is_name else given
    above, below = os.path.realpath(folder), list[str]()
    while not os.path.isdir(above) and os.path.dirname(above) != above:
        above, name = os.path.split(above)
        below.insert(0, name)
    paths = [[*below, name] for name in names]
    as_folder = is_name and not os.path.isfile(given) and _reaches(os.path.join(pattern, "*"), above, paths)
    return as_folder or _reaches(pattern, above, paths)


def _reaches(pattern: str, folder: str, paths: Sequence[Sequence[str]]) -> bool:
    """Return whether a glob finds one of the paths below a folder, which exists."""
    parts = pattern.split("/")
    parts += ["*"] if parts[-1] == "**" else []
    for number in range(len(parts)):
        rest = parts[number - 1 :] if number and parts[number - 1] == "**" else parts[number:]
        if any(_fits(path, rest) for path in paths):
            begin = "".join(f"{part}/" for part in parts[:number]) or "./"
            if any(_is_same(each, folder) for each in matches(begin)):
                return True
    return False


def _fits(path: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern.

    >>> _fits(["st", "lock"], ["**", "*"]), _fits(["st", "lock"], ["*"]), _fits([".st", "lock"], ["**", "l*"])
    (True, False, False)
    """
    if not (path and pattern):
        return not (path or pattern)
    is_hidden = path[0].startswith(".")
    if pattern[0] == "**":
        return _fits(path, pattern[1:]) or (not is_hidden and _fits(path[1:], pattern))
    is_found = fnmatchcase(path[0], pattern[0]) and (pattern[0].startswith(".") or not is_hidden)
    return is_found and _fits(path[1:], pattern[1:])


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
