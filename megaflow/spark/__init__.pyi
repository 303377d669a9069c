"""The types of this front door, whose names are loaded lazily."""

from megaflow.job.launcher.spark_run import Run as Run
from megaflow.job.launcher.spark_run import run as run
