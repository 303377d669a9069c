"""Launchers, power losses and disk failures in a random order, over the store of durable state."""

import random
from functools import partial

from tests.durable.launchers import Scene

FAULTS = ("crash", "EIO", "ENOSPC", "done-EIO")


def run(seed: int) -> None:
    """Play one seed. Raise AssertionError, or the store's error, if a rule of the store is broken."""
    rng = random.Random(seed)
    play(Scene(seed, kept=rng.choice([1, 1, 2, 3]), naming=seed % 2 == 1), rng)


def play(scene: Scene, rng: random.Random) -> None:
    """Run launchers and disk faults in any order, then check the store."""
    for _ in range(rng.randrange(5, 30)):
        for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
            step = len(scene.disk.steps) + rng.randrange(1, 60)
            overtake = partial(scene.overtake, rng.randrange(4), rng.random() < 0.5)
            scene.disk.happenings[step] = rng.choice([*FAULTS, overtake, scene.lose_power])
        if rng.random() < 0.15:  # for a while writes fail, or every operation fails
            start = len(scene.disk.steps) + rng.randrange(1, 60)
            scene.disk.happenings |= dict.fromkeys(range(start, start + rng.randrange(30)), rng.choice(FAULTS[1:]))
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
    """Let one launcher do one thing, or cut the power."""
    chance = rng.random()
    if chance < 0.15:
        scene.lose_power()
    elif chance < 0.3 or not scene.launchers:
        if rng.random() < 0.5:  # another launcher begins meanwhile
            step = len(scene.disk.steps) + rng.randrange(1, 30)
            scene.disk.happenings[step] = partial(scene.overtake, rng.randrange(2), True)
        scene.begin()
    else:
        newest = scene.launchers[-1]
        scene.checkpoint(newest if rng.random() < 0.7 else rng.choice(scene.launchers), rng.random() < 0.4)
