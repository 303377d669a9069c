"""The changes of an operator since its last checkpoint, and how they are written.

journal          the keys that have changed, and the moment of a cut
full_snapshots   which bins a checkpoint writes whole, so that a store stays small
snapshot_writer  the part of a cut that is still to be written
retained_bins    the memory of an operator after its job has lost a process, and the part that may be kept

A name below is loaded from its module when it is first used, so a job without `--state` loads none of them. Its type is
in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.megaphone.snapshot.journal": ("Journal",),
    "megaflow.megaphone.snapshot.retained_bins": ("RetainedBins",),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
