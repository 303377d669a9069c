"""Two launchers on one real folder, in an order drawn from a seed; power is not lost there."""

import contextlib
import random
import tempfile

from megaflow.durable.local_folder import LocalFolder
from megaflow.durable.store import FolderStore
from megaflow.errors import StoreFenced
from tests.durable.launchers import History, Launcher, check_kept


def run(seed: int) -> None:
    """Play one seed; raises AssertionError, or what the store says, if something is not as it must be."""
    rng = random.Random(seed)
    history = History()
    with tempfile.TemporaryDirectory() as path, contextlib.ExitStack() as opened:

        def open_store() -> FolderStore:
            folder = LocalFolder(path)
            opened.callback(folder.close_folder)
            return FolderStore(folder)

        def begin() -> Launcher:
            return Launcher(history, open_store, kept=1)

        launchers = [begin()]
        for _ in range(rng.randrange(2, 8)):
            if rng.random() < 0.4:
                launchers.append(begin())
            launcher = rng.choice(launchers)
            try:
                assert launcher.checkpoint(rng.random() < 0.5)
            except StoreFenced:
                launchers.remove(launcher)
            check_kept(open_store())
