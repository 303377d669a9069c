"""Files whose paths have changed since a store recorded them, as in a volume that is mounted elsewhere.

1. `--relocate OLD=NEW` maps each recorded path that is OLD or in the folder OLD. If several match, the longest OLD
   counts. Paths in a store are absolute; a relative path would mean another file in a copy of the store.
2. Nothing else is taken on trust. An input must have the fingerprint of the bytes that the job read, an output that of
   the bytes that it wrote (`megaflow.job.launcher.outputs.output_file`, rule 7).
3. The first commit of the job has the new paths. So the same command can be repeated: a pair whose NEW alone is in the
   store changes nothing. If neither is there, the pair is an error.
4. An output is known by its path without symbolic links. Stores of earlier versions may have paths with links.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from megaflow.durable.commits import Commit
from megaflow.errors import StoreError, UsageError
from megaflow.timely.communication.codec.decode import decode


def file_of(output: str) -> str:
    """Return the path of an output's file, from the output's name in a store; "" if it is no file.

    >>> file_of("late=jsonl:/data/late.jsonl"), file_of("-")
    ('/data/late.jsonl', '')
    """
    head, _, path = output.partition(":")
    return path if head.rpartition("=")[2] in ("jsonl", "csv") else ""


def relocations(given: Iterable[str | tuple[str, str]], flag: str = "--relocate") -> tuple[tuple[str, str], ...]:
    """Return the pairs of a flag, each OLD=NEW or a pair, as absolute paths. Raises UsageError.

    >>> relocations(["/mnt/a/=/mnt/b"])
    (('/mnt/a', '/mnt/b'),)
    """
    pairs: dict[str, str] = {}
    for each in given:
        old, _, new = each.partition("=") if isinstance(each, str) else (each[0], "", each[1])
        if not old or not new:
            raise UsageError(f"{flag} {each}: must be OLD=NEW, the path of a file or folder before and now.")
        if pairs.setdefault(os.path.abspath(old), os.path.abspath(new)) != os.path.abspath(new):
            raise UsageError(f"{flag} {each}: {old} is named twice. Name it once.")
    return tuple(pairs.items())


def relocated(path: str, moved: Sequence[tuple[str, str]]) -> str:
    """Return the present path of a file.

    >>> relocated("/mnt/a/x", [("/mnt", "/m"), ("/mnt/a", "/b")]), relocated("/mnt/ab", [("/mnt/a", "/b")])
    ('/b/x', '/mnt/ab')
    """
    for old, new in sorted(moved, key=lambda pair: -len(pair[0])):
        if _is_under(path, old):
            return os.path.normpath(new + path[len(old.rstrip("/")) :])
    return path


def is_named(path: str, moved: Sequence[tuple[str, str]]) -> bool:
    """Return whether a pair names a file, or its folder, as it was before."""
    return any(_is_under(path, old) for old, _ in moved)


def relocate(commit: Commit, moved: Sequence[tuple[str, str]], store: str) -> Commit:
    """Return a commit with the present paths of its files. Raises StoreError if a pair matches none of them."""
    splits = tuple(replace(each, path=relocated(each.path, moved)) for each in commit.splits)
    recorded: dict[tuple[str, str], str] = {}  # input and path now -> path before
    for before, now in zip(commit.splits, splits):
        if (other := recorded.setdefault((now.input, now.path), before.path)) != before.path:
            raise StoreError(
                f"--relocate: {other!r} and {before.path!r} would both become {now.path!r}. Name a folder that has no "
                "file of the store."
            )
    outputs = []
    for each in commit.outputs:
        if os.path.isabs(path := file_of(each.output)):
            moved_to = os.path.realpath(relocated(path, moved))
            each = replace(each, output=each.output.removesuffix(path) + moved_to)
        outputs.append(each)
    known = {each.path for each in commit.splits} | {file_of(each.output) for each in commit.outputs}
    paths = sorted(known.union(_followed(commit)) - {""})
    for old, new in moved:
        if not any(_is_under(path, each) for path in paths for each in (old, new)):
            names = ", ".join(map(repr, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
            raise StoreError(
                f"--relocate {old}={new}: The store {store} has no file named {old!r}, and none in such a folder. "
                f"{f'It has {names}.' if names else 'It has no files at all.'}"
            )
    return replace(commit, splits=splits, outputs=tuple(outputs))


def _followed(commit: Commit) -> Iterator[str]:
    """Yield the absolute path of each position that begins with one, as the positions in followed files do."""
    for each in commit.partitions:
        match decode(each.position) if each.position is not None else None:
            case (str(path), *_) if os.path.isabs(path):
                yield path


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
