"""Whether the processes of a job run the same code: compared before one takes part.

The dataflow's shape is compared by the engine, but `n + 1` and `n + 10` have the same shape, and the results of two
versions would mix unseen.
1. The fingerprint of a process has the app's file and function, the arguments after `--`, and a digest of each module
   beside the app, by the bytes that were run (see `megaflow.job.worker.source_record`). It is taken when the process
   has built its dataflow: what a fold imports later does not count.
2. Each process shows its own to the coordinator, which says what differs. One that joins waits for that before it says
   that it is ready, and ends otherwise, so nothing has changed; unless other code is allowed to it: then it does not
   ask. From the moment that it coordinates, its code is the job's.
3. Founders start together and do not wait: the mail in which one shows its code leaves before anything that lets the
   coordinator end the job, and the answer comes before the word that the founder may end. So the job fails. As they
   start from the same files, only such as both have loaded are compared: one worker may import what others do not.
4. Functions that travel pickled (notebooks) have no fingerprint, and are compared with nothing.
"""

from typing import Any

from megaflow.durable.commits import Fingerprint
from megaflow.errors import ConfigMismatch, JoinDenied
from megaflow.job.program_code import difference
from megaflow.program import Worker
from megaflow.quick_dataclass import dataclass

TOPIC = "code"


@dataclass(frozen=True, slots=True)
class CodeShown:
    """Mail to the coordinator: what the sender's process runs, None if that cannot be told; `CodeJudged` answers."""

    code: Fingerprint | None


@dataclass(frozen=True, slots=True)
class CodeJudged:
    """The answer: how that differs from what the coordinator's process runs, in words; None: it does not."""

    difference: str | None


class CodeCheck:
    """One worker's part in the comparison. All runs on its thread."""

    def __init__(self, worker: Worker, code: Fingerprint | None) -> None:
        """`code` is what this worker's process runs."""
        self.code = code
        self._worker = worker
        self._judged = False
        worker.on_mail(TOPIC, self._hear)

    def show(self) -> None:
        """Show the coordinator what this process runs; whoever joins is to step on while its answer `is_awaited`.

        If it is not what the job runs a step raises JoinDenied, in a founder, which does not wait, ConfigMismatch.
        """
        self._worker.post(self._worker.membership.coordinator, TOPIC, CodeShown(self.code))

    @property
    def is_awaited(self) -> bool:
        """Whether this worker joins, and has no answer."""
        return self._worker.rescaling.joining and not self._judged

    def _hear(self, source: int, body: Any) -> None:
        match body:
            case CodeShown(code):
                founder = source in self._worker.membership.workers
                self._worker.post(source, TOPIC, CodeJudged(difference(code, self.code, common_only=founder)))
            case CodeJudged(None):
                self._judged = True
            case CodeJudged(reason) if self._worker.rescaling.joining:
                raise JoinDenied(
                    f"This process cannot join: its code differs from the job's: {reason}. Start it with the "
                    "job's files and arguments, or add --allow-other-code to upgrade the job process by process."
                )
            case CodeJudged(reason):
                raise ConfigMismatch(
                    f"Worker {self._worker.index} loaded other code than worker {source}: {reason}. A file "
                    "changed while the job started: start the job again."
                )
