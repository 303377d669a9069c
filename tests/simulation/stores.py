"""Launchers, power losses and failing disks in an order drawn from a seed, over the store of durable state."""

import random
from functools import partial

from tests.durable.launchers import Scene

FAULTS = ("crash", "EIO", "ENOSPC", "done-EIO")


def run(seed: int) -> None:
    """Play one seed; raises AssertionError, or what the store says, if something is not as it must be."""
    rng = random.Random(seed)
    scene = Scene(seed, kept=rng.choice([1, 1, 2, 3]))
    for _ in range(rng.randrange(5, 30)):
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            step = len(scene.disk.steps) + rng.randrange(1, 60)
            scene.disk.happenings[step] = rng.choice([*FAULTS, partial(scene.overtake, rng.randrange(5))])
        if rng.random() < 0.1:
            scene.disk.capacity = scene.disk.used() + rng.randrange(2000)
        act(scene, rng)
        if rng.random() < 0.5:
            scene.disk.capacity = None
        scene.check()
    if rng.random() < 0.5:
        scene.lose_power()
    scene.check_end()


def act(scene: Scene, rng: random.Random) -> None:
    """Let one launcher do one thing, or the power fail."""
    chance = rng.random()
    if chance < 0.1:
        scene.lose_power()
    elif chance < 0.25 or not scene.launchers:
        scene.begin()
    else:
        newest = scene.launchers[-1]
        scene.checkpoint(newest if rng.random() < 0.7 else rng.choice(scene.launchers), rng.random() < 0.4)
