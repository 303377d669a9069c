"""The scenes of `stores`, played in a real folder instead of on a simulated disk."""

import contextlib
import random
import tempfile

from tests.durable.launchers import Scene
from tests.durable.real_disk import RealDisk
from tests.simulation.stores import play


def run(seed: int) -> None:
    """Play one seed. Raise as `stores.run` does."""
    with tempfile.TemporaryDirectory() as path, contextlib.closing(RealDisk(path)) as disk:
        play(Scene(seed, kept=1 + seed % 3, disk=disk), random.Random(seed))
