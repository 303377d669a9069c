"""The version of megaflow, which hatchling reads here when it builds or installs the package.

1. An sdist has its version in `PKG-INFO`, so a wheel built from it has the same one.
2. In a clone, tags such as `v0.1.0` decide. At the tag the version is `0.1.0`, three commits later `0.1.0+3.g144a771`.
3. Without a tag, as in a shallow clone, the version is the newest in `CHANGELOG.md`: `0.1.0+untagged.g144a771`.
4. Without git, the version is `0.1.0+untagged`. Registries refuse versions with a `+`, so only a tagged commit can be
   published by accident.
"""

import re
import subprocess
from pathlib import Path


def git(root: Path, *words: str) -> str:
    """Return the answer of git; "" if there is no clone, no git, or no answer."""
    if not (root / ".git").exists():             # the folder may lie in the clone of another project
        return ""
    try:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def version_of(root: Path) -> str:
    """Return the version of the sources in this folder, by the rules above."""
    info = root / "PKG-INFO"
    if info.exists() and (built := re.search(r"^Version: (.+)$", info.read_text("utf-8"), re.MULTILINE)):
        return built[1]
    described = git(root, "describe", "--tags", "--long", "--abbrev=7", "--match", "v[0-9]*")
    if found := re.fullmatch(r"v(.+)-(\d+)-(g\w+)", described):
        return found[1] if found[2] == "0" else f"{found[1]}+{found[2]}.{found[3]}"
    released = re.search(r"^## (\d+\.\d+\.\d+)\b", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert released is not None, "CHANGELOG.md names no version"
    commit = git(root, "rev-parse", "--short=7", "HEAD")
    return f"{released[1]}+untagged" + (f".g{commit}" if commit else "")


__version__ = version_of(Path(__file__).resolve().parent)
