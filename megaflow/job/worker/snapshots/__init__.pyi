"""The types of the names that this package loads on first use."""

from megaflow.job.worker.snapshots.cut_keeper import WRITER as WRITER
from megaflow.job.worker.snapshots.cut_packer import OutboxCut as OutboxCut
from megaflow.job.worker.snapshots.cut_packer import OutboxWritten as OutboxWritten
from megaflow.job.worker.snapshots.local_recovery import LocalRecovery as LocalRecovery
from megaflow.job.worker.snapshots.local_recovery import kept_bins as kept_bins
from megaflow.job.worker.snapshots.state_backend import StateBackend as StateBackend
from megaflow.job.worker.snapshots.state_backend import open_folder as open_folder
