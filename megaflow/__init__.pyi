"""The types of the front door, whose names are loaded lazily."""

from megaflow import connect as connect
from megaflow import spark as spark
from megaflow import timely as timely
from megaflow.event_time.windows import EarlyWindow as EarlyWindow
from megaflow.event_time.windows import Window as Window
from megaflow.event_time.windows import WindowResult as WindowResult
from megaflow.event_time.windows import session as session
from megaflow.event_time.windows import sliding as sliding
from megaflow.event_time.windows import tumbling as tumbling
from megaflow.job.formats.text_lines import Line as Line
from megaflow.job.kept_states import read_state as read_state
from megaflow.job.launcher.run.job_control import JobControl as JobControl
from megaflow.job.launcher.run.job_control import RunningJob as RunningJob
from megaflow.job.launcher.run.job_control import jobs as jobs
from megaflow.job.launcher.run.python_function import run as run
from megaflow.job.launcher.run.python_function import start as start
from megaflow.job.launcher.run.started_job import JobHandle as JobHandle
from megaflow.job.worker.process.flow import Flow as Flow
from megaflow.megaphone.base.bins import stable_hash as stable_hash
from megaflow.megaphone.base.routing import Bootstrap as Bootstrap
from megaflow.megaphone.base.routing import Map as Map
from megaflow.megaphone.base.routing import Move as Move
from megaflow.megaphone.base.timers import Timers as Timers
from megaflow.stream import EventStream as EventStream
from megaflow.stream import Stream as Stream
from megaflow.stream import WindowedStream as WindowedStream
from megaflow.timely.communication.codec.encode import register as register

__version__: str
