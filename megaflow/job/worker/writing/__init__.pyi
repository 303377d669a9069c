"""The types of the names that this package loads on first use."""

from megaflow.job.worker.writing.open_outbox import OpenOutbox as OpenOutbox
from megaflow.job.worker.writing.open_sink import OpenSink as OpenSink
