"""The version of megaflow: from the tag of a clone, from an sdist, and without either."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

import megaflow
from hatch_build import version_of
from tests.test_floor_plan import ROOT

CHANGES = "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2026-12-01\n\n## 0.1.0 - 2026-11-27\n"
AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    away = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *AUTHOR, *words], cwd=folder, env=away, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(folder: Path) -> str:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "a change")
    return git(folder, "rev-parse", "--short=7", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with a changelog in its only commit."""
    folder = tmp_path / "clone"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    commit(folder)
    return folder


def test_a_tag_gives_the_version_and_later_commits_add_to_it(clone: Path) -> None:
    git(clone, "tag", "--annotate", "v0.1.0", "--message", "0.1.0")
    git(clone, "tag", "nightly")
    assert version_of(clone) == "0.1.0"
    commit(clone)
    later = commit(clone)
    assert version_of(clone) == f"0.1.0+2.g{later}"
    git(clone, "tag", "v0.2.0")
    assert version_of(clone) == "0.2.0", "also a lightweight tag"


def test_a_shallow_clone_without_tags_has_the_newest_version(clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "v0.1.0")
    last = commit(clone)
    git(tmp_path, "clone", "--quiet", "--depth=1", "--no-tags", clone.as_uri(), "shallow")
    assert version_of(tmp_path / "shallow") == f"0.2.0+untagged.g{last}"


def test_sources_without_git_have_the_newest_version(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = clone / "vendored"
    inside.mkdir()
    (inside / "CHANGELOG.md").write_text(CHANGES, encoding="utf-8")
    git(clone, "tag", "v7.0.0")
    assert version_of(inside) == "0.2.0+untagged", "the clone around it is that of another project"
    monkeypatch.setenv("PATH", str(inside))
    assert version_of(clone) == "0.2.0+untagged", "git is not installed"


def test_an_sdist_keeps_the_version_that_it_was_built_with(clone: Path) -> None:
    git(clone, "tag", "v7.0.0")
    (clone / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: megaflow\nVersion: 0.1.0\n\nVersion: 9\n")
    assert version_of(clone) == "0.1.0"


def test_versions_are_ordered_as_their_commits_are(clone: Path) -> None:
    git(clone, "tag", "v0.1.0")
    released = version_of(clone)
    commit(clone)
    assert Version("0.1.0") == Version(released) < Version(version_of(clone)) < Version("0.1.1.dev0")


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased" and len(headings) > 1
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", heading) for heading in headings[1:])
    versions = [Version(heading.split()[0]) for heading in headings[1:]]
    assert versions == sorted(versions, reverse=True)


def test_the_command_and_the_package_name_the_installed_version() -> None:
    shown = subprocess.run([sys.executable, "-m", "megaflow", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"megaflow, version {metadata.version('megaflow')}\n"
    assert megaflow.__version__ == metadata.version("megaflow")


def test_a_package_that_is_not_installed_has_no_version() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import megaflow; sys.stdout.write(megaflow.__version__)"
    found = subprocess.run([sys.executable, "-P", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "0+unknown"
