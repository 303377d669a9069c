"""The types of this front door, whose names are loaded lazily."""

from megaflow.job.launcher.run.spark_processor import transformWithState as transformWithState
from megaflow.job.launcher.run.spark_processor import transformWithStateInPandas as transformWithStateInPandas
from megaflow.job.launcher.run.spark_run import Run as Run
from megaflow.job.launcher.run.spark_run import run as run
from megaflow.job.launcher.run.spark_stateful import FrameJob as FrameJob
from megaflow.job.launcher.run.spark_stateful import stateful as stateful
from megaflow.job.spark_sources import register as register
from megaflow.spark.stateful_timers import RowTimers as RowTimers
