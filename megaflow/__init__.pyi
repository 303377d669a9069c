"""The types of the front door, whose names are loaded lazily."""

from megaflow import timely as timely
from megaflow.job.kept_states import read_state as read_state
from megaflow.job.launcher.python_function import run as run
from megaflow.job.worker.flow import Flow as Flow
from megaflow.megaphone.bins import stable_hash as stable_hash
from megaflow.megaphone.routing import Bootstrap as Bootstrap
from megaflow.megaphone.routing import Map as Map
from megaflow.megaphone.routing import Move as Move
from megaflow.megaphone.timers import Timers as Timers
from megaflow.stream import Stream as Stream
from megaflow.timely.communication.codec.encode import register as register

__version__: str
