"""Splits: byte ranges of files that workers read. A file is one split, or several if the order within it is irrelevant.

Several workers can then read the lines of a file without coordination.

1. The reader of a split reads the lines that *start* in it. `line_start(file, x)` is the first start of a line at or
   after byte x, so the reader of [start, end) reads the bytes [line_start(start), line_start(end)). Neighbours agree by
   construction, wherever the border lies.
2. A reader's only state is its position, always the start of a record. So the rest of a partly read split is again a
   split, from that position on.
3. `**` enters links to folders, but searches each folder once, under its name without links if it has one there.
   Otherwise a link to a folder above would give each file many names, and several such links would give so many that
   the search never ends. A folder counts as searched by its real path. Inode numbers may be the same for two folders.
4. Several names of one file, such as links, are found as several files. The launcher plans such a file once, see rule
   3 of `megaflow.job.launcher.store.known_files`.
"""

import glob
import os
import shlex
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath
from types import MappingProxyType

from megaflow.control.messages import Split
from megaflow.errors import SourceError
from megaflow.job.formats.raw_file import read_head, reading
from megaflow.job.formats.text_encoding import PLAIN, TextForm, form_of

SPLIT_BYTES_MIN = 4 * 1024  # a smaller split costs more to open than to read
SPLIT_BYTES_MAX = 64 * 1024 * 1024  # so that remaining work can still be given to others
SPLITS_PER_WORKER = 4  # a worker that is slow for a while delays the end by a quarter of its share


def find_files(spec: str, closed: Callable[[str, OSError], object] | None = None) -> list[str]:
    """Return the files that `spec` names, sorted: a file, a directory or a glob. `**` stands for any folders between.

    A directory stands for the files directly in it, except those whose names begin with a dot, like a shell's `*`. `~`
    is a home folder, unless the path exists as written. Raises SourceError if there is no file. `closed` is called for
    each folder that cannot be searched, with the reason. Without `closed`, raises SourceError for such a folder.
    """
    if not os.path.exists(spec):
        spec = os.path.expanduser(spec)
    if os.path.exists(spec) and not os.path.isdir(spec):  # also a name that looks like a glob
        if not os.path.isfile(spec):
            raise SourceError(f"Cannot read lines from {spec!r}: {no_regular_file(spec)}")
        return [spec]
    for folder, error in closed_folders(spec):
        if closed is None:
            raise SourceError(
                f"Cannot read lines from {spec!r}: the folder {folder!r} cannot be searched: {error.strerror}. Give "
                "this process the right to list and search it, or name only other folders."
            ) from error
        closed(folder, error)
    if not os.path.isdir(spec) and not glob.has_magic(spec):
        raise SourceError(f"Cannot read lines from {spec!r}: no such file or directory (from {os.getcwd()!r}).")
    files = sorted({path for path in _paths(spec) if os.path.isfile(path)})
    if not files:
        why = "the directory holds no files" if os.path.isdir(spec) else f"no file matches (from {os.getcwd()!r})"
        raise SourceError(f"Cannot read lines from {spec!r}: {why}.")
    return files


def closed_folders(spec: str) -> Iterator[tuple[str, OSError]]:
    """Yield the folders in which files of `spec` may lie and that cannot be searched, outer ones first, with reasons.

    `matches` passes over them silently. Cost: a look at each folder that `spec` leads through.
    """
    if os.path.isdir(spec):
        yield from _if_closed(spec, is_listed=True)
        return
    path = PurePath(spec)
    for folder, part in reversed([*zip(path.parents, [path, *path.parents], strict=False)]):
        if folder.name != "**":  # if so, it was searched as a part
            below = part if part.name == "**" else folder
            for each in matches(os.path.join(below, "")):
                yield from _if_closed(os.path.dirname(each) or each, glob.has_magic(part.name))


def _if_closed(folder: str, is_listed: bool) -> Iterator[tuple[str, OSError]]:
    """Yield a folder if its files cannot be found by their names or, with `is_listed`, not be listed."""
    try:
        os.stat(os.path.join(folder, "."))
        if is_listed:
            os.scandir(folder).close()
    except FileNotFoundError:  # it was removed meanwhile
        return
    except OSError as error:
        yield folder, error


def _paths(spec: str) -> list[str]:
    """Return the paths in a directory, or those that match a glob."""
    if os.path.isdir(spec):
        return [os.path.join(spec, name) for name in glob.iglob("*", root_dir=spec)]
    return [*matches(spec)]


def matches(pattern: str) -> Iterator[str]:
    """Yield the paths that match a glob like `glob.iglob`, but search each folder once; see rule 3."""
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    pieces: list[list[str]] = [[]]  # the parts between one `**` and the next
    for number, part in enumerate(parts):
        if part == "**" and (number == 0 or parts[number - 1] != "**"):
            pieces.append([])
        elif part != "**" and (part or number in (0, len(parts) - 1)):
            pieces[-1].append(part)
    places = [""]
    for piece in pieces[:-1]:
        begin = "/".join([*piece, ""])
        places = [*_folders_within(_below(places, begin) if begin else places)]
    if pieces[-1] == [""]:
        yield from (os.path.join(place or ".", "") for place in places)
    else:
        yield from _below(places, "/".join(pieces[-1]) or "*")


def _below(folders: Iterable[str], pattern: str) -> Iterator[str]:
    for folder in folders:
        for each in glob.iglob(pattern, root_dir=folder):
            yield os.path.join(folder, each)


def _folders_within(starts: Iterable[str]) -> Iterator[str]:
    """Yield folders and those below them, except hidden ones, each once; see rule 3."""
    searched: set[str] = set()  # real paths
    links = deque(sorted(starts, key=lambda each: (os.path.islink(each.rstrip("/")), each)))
    while links:
        folders = [(first := links.popleft(), os.path.realpath(first))]
        while folders:
            folder, real = folders.pop()
            below = [] if real in searched else _folders_in(folder)
            if real in searched or below is None:
                continue
            searched.add(real)
            yield folder
            for name, is_link in sorted(below):
                if is_link:
                    links.append(os.path.join(folder, name))
                else:
                    folders.append((os.path.join(folder, name), os.path.join(real, name)))


def _folders_in(folder: str) -> list[tuple[str, bool]] | None:
    """Return the names of the folders in a folder, except hidden ones, and whether they are links.

    The list is empty if the folder cannot be listed. Return None if the folder cannot be reached.
    """
    try:
        with os.scandir(folder or ".") as entries:
            return [(each.name, each.is_symlink()) for each in entries if each.name[0] != "." and _is_folder(each)]
    except OSError:
        return [] if os.path.isdir(folder) else None


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle, or through a folder that cannot be searched
        return False


def broken_links(spec: str) -> list[str]:
    """Return the links that `spec` names and whose targets do not exist, sorted. `find_files` leaves them out."""
    path = spec if os.path.exists(spec) else os.path.expanduser(spec)
    return sorted(each for each in _paths(path) if os.path.islink(each) and not os.path.exists(each))


def cut(
    sizes: Iterable[tuple[str, int]], workers: int | None = None, forms: Mapping[str, TextForm] = MappingProxyType({})
) -> list[Split]:
    """Make numbered, non-empty splits of files given as (path, bytes): one per file, which keeps its lines in order.

    With a number of workers, files are cut into a few pieces for each worker, except files that are decoded as a
    stream. `forms` has the forms of the files, by path. A file that is not in it is UTF-8.

    >>> [(s.path, s.start, s.end) for s in cut([("a", 40_000), ("b", 10)])]
    [('a', 0, 40000), ('b', 0, 10)]
    >>> [(s.path, s.start, s.end) for s in cut([("a", 40_000), ("b", 10)], workers=1)]
    [('a', 0, 10003), ('a', 10003, 20006), ('a', 20006, 30009), ('a', 30009, 40000), ('b', 0, 10)]
    """
    files = [(path, size) for path, size in sizes if size > 0]
    ranges = [(path, 0, size) for path, size in files]
    if workers is not None:
        piece = -(-sum(size for _, size in files) // (workers * SPLITS_PER_WORKER))
        piece = max(SPLIT_BYTES_MIN, min(SPLIT_BYTES_MAX, piece))
        steps = ((path, size, size if forms.get(path, PLAIN).is_streamed else piece) for path, size in files)
        ranges = [(path, at, min(at + step, size)) for path, size, step in steps for at in range(0, size, step)]
    found = ((number, each, forms.get(each[0], PLAIN)) for number, each in enumerate(ranges))
    return [Split(number, *each, encoding=form.encoding, compression=form.compression) for number, each, form in found]


def plan_splits(files: Iterable[str], workers: int | None = None, encoding: str = "") -> list[Split]:
    """Make splits of files of this machine, like `cut`. `encoding` "": a file's mark names its encoding, else UTF-8.

    Raises SourceError if a file cannot be examined, hides its size, is not text, or is compressed in a way that cannot
    be read here.
    """
    sizes = [(os.path.abspath(path), size_of(path)) for path in files]
    return cut(sizes, workers, {path: form_of(path, encoding) for path, _ in sizes})


def has_second_names(splits: Iterable[Split]) -> bool:
    """Return whether two paths are names of one file. Cost: one `stat` of each file."""
    paths = {split.path for split in splits}
    found = set[tuple[int, int]]()
    for path in paths:
        with reading(path):
            status = os.stat(path)
        found.add((status.st_dev, status.st_ino))
    return len(found) < len(paths)


def size_of(path: str) -> int:
    """Return a file's size in bytes. Raises SourceError if it is unknown: files under /proc report 0."""
    with reading(path):
        size = os.stat(path).st_size
        if size == 0 and read_head(path):
            raise SourceError(f"Cannot read {path!r} as a file: {no_size(path)}")
    return size


def no_regular_file(path: str) -> str:
    """Return the end of a sentence about a named pipe, a socket or a device, with how to read it.

    >>> no_regular_file("/dev/null")
    'it is a device, not a regular file. Pipe it in: cat /dev/null | megaflow run … --lines -'
    """
    mode = os.stat(path).st_mode
    kind = "named pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    read = "nc -U" if stat.S_ISSOCK(mode) else "cat"
    return f"it is a {kind}, not a regular file. Pipe it in: {read} {shlex.quote(path)} | megaflow run … --lines -"


def no_size(path: str) -> str:
    """Return the end of a sentence about a system file whose size is not that of its content."""
    return f"the system does not report its length. Pipe it in: cat {shlex.quote(path)} | megaflow run … --lines -"
