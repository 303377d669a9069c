"""The types of the names that this package loads on first use."""

from megaflow.job.launcher.store.commit_draft import CommitDraft as CommitDraft
from megaflow.job.launcher.store.commit_draft import ToCommit as ToCommit
from megaflow.job.launcher.store.commit_draft import without_tokens as without_tokens
from megaflow.job.launcher.store.known_files import read_once as read_once
from megaflow.job.launcher.store.resumption import go_on as go_on
from megaflow.job.launcher.store.resumption import open_store as open_store
from megaflow.job.launcher.store.resumption import resume as resume
from megaflow.job.launcher.store.resumption import resumption_text as resumption_text
from megaflow.job.launcher.store.store_keeper import StoreKeeper as StoreKeeper
