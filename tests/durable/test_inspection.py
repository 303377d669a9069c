"""Inspecting a store while its job runs, and when it is damaged."""

import pytest

from megaflow.durable.inspection import inspect, verify
from tests.durable.launchers import Scene
from tests.words import says


def scene_with(checkpoints: int, kept: int = 2) -> Scene:
    scene = Scene(kept=kept)
    scene.begin()
    for number in range(checkpoints):
        scene.checkpoint(scene.launchers[0], whole=number % 2 == 0)
    return scene


def test_what_counts_is_shown_oldest_first() -> None:
    scene = scene_with(5)
    content = verify(scene.open())
    assert [commit.checkpoint for commit in content.commits] == [4, 5]
    assert (content.bytes, content.unnamed, content.damage) == (scene.disk.used(), (), ())


@pytest.mark.parametrize("look", [inspect, verify])
@pytest.mark.parametrize("checkpoints", [1, 2, 5])
def test_a_job_may_go_on_at_any_moment_and_nothing_is_called_damaged(look: object, checkpoints: int) -> None:
    assert callable(look)
    counted = scene_with(4)
    begun = len(counted.disk.steps)
    look(counted.open())
    for step in range(begun + 1, len(counted.disk.steps) + 1):
        scene = scene_with(4)

        def go_on(scene: Scene = scene) -> None:
            for _ in range(checkpoints):
                scene.checkpoint(scene.launchers[0], whole=True)

        scene.disk.happenings[step] = go_on
        content = look(scene.open())
        assert not content.damage and content.commits, f"step {step}"


def test_each_segment_is_read_once_and_told() -> None:
    scene = scene_with(4)
    told: list[str] = []
    content = verify(scene.open(), lambda segment: told.append(segment.name))
    assert sorted(told) == sorted({segment.name for commit in content.commits for segment in commit.segments})


def test_what_is_missing_is_named_by_who_names_it() -> None:
    scene = scene_with(4)
    newest, older = sorted((name for name in scene.disk.names if name.endswith(".commit")), reverse=True)
    segment = max(name for name in scene.disk.names if name.endswith(".seg"))
    del scene.disk.names[older], scene.disk.names[segment]
    found = verify(scene.open()).damage
    assert [says(each, newest, missing, "backup") for each, missing in zip(found, (older, segment))] == [True, True]


def test_a_file_that_no_commit_names_is_shown() -> None:
    scene = scene_with(1)
    scene.launchers[0].cut(whole=False)
    assert inspect(scene.open()).unnamed == ("i1-w0-000002.seg", "i1-w1-000002.seg")
