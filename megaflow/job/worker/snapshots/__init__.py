"""The state of one worker, as it is restored and saved.

state_backend   the states with which operators start, and their cuts
cut_packer      the blocks of cuts as segments
cut_keeper      the thread that writes them
local_recovery  states kept in memory across a restart, when the process survives the loss of others

A name below is loaded from its module when it is first used, so a job without `--state` loads none of them. Its type is
in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.job.worker.snapshots.cut_keeper": ("WRITER",),
    "megaflow.job.worker.snapshots.cut_packer": ("OutboxCut", "OutboxWritten"),
    "megaflow.job.worker.snapshots.local_recovery": ("LocalRecovery", "kept_bins"),
    "megaflow.job.worker.snapshots.state_backend": ("StateBackend", "open_folder"),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
