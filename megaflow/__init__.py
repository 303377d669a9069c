"""megaflow: stateful streams whose state moves between workers while the stream runs."""

from megaflow import timely  # first, or importing a floor alone would run in a circle (see test_floor_plan)
from megaflow.job.launcher.python_function import run
from megaflow.megaphone.bins import stable_hash
from megaflow.megaphone.routing import Bootstrap, Map, Move
from megaflow.megaphone.timers import Timers
from megaflow.stream import Stream
from megaflow.timely.communication.codec.values import register

__version__ = "0.1.0.dev0"

__all__ = ["Bootstrap", "Map", "Move", "Stream", "Timers", "__version__", "register", "run", "stable_hash", "timely"]
