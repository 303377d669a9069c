"""megaflow: stateful streams whose state moves between workers while the stream runs."""

from megaflow import timely  # first, or importing a floor alone would run in a circle (see test_floor_plan)
from megaflow.bins import stable_hash
from megaflow.routing import Bootstrap, Map, Move
from megaflow.run.launch import run
from megaflow.stream import Stream
from megaflow.timely.communication.codec import register
from megaflow.timers import Timers

__version__ = "0.1.0.dev0"

__all__ = ["Bootstrap", "Map", "Move", "Stream", "Timers", "__version__", "register", "run", "stable_hash", "timely"]
