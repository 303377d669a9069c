"""The store of a durable job in the launcher.

store_keeper     takes the store over, and commits checkpoints
resumption       how a job with a store starts
first_owners     the bins with which each worker starts
input_positions  how far each input file was read
known_files      files of the input that the store has under other names
moved_logs       followed files that were copied to another volume
commit_draft     the parts of a checkpoint on its way to its commit

A name below is loaded from its module when it is first used, so a job without `--state` loads none of them, except
`known_files` if its input has two names of one file. The types of these names are in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.job.launcher.store.commit_draft": ("CommitDraft", "ToCommit", "without_tokens"),
    "megaflow.job.launcher.store.known_files": ("read_once",),
    "megaflow.job.launcher.store.resumption": ("go_on", "open_store", "resume", "resumption_text"),
    "megaflow.job.launcher.store.store_keeper": ("StoreKeeper",),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
