"""Check that all processes of a job run the same code, before a process takes part.

The engine compares the shapes of dataflows. But `n + 1` and `n + 10` have the same shape, and the results of two
versions would mix unnoticed.
1. The fingerprint of a process contains the app's file and function, the arguments after `--`, and a digest of each
   module beside the app, computed from the bytes that were run (see `megaflow.job.worker.process.source_record`). It is
   taken once the process has built its dataflow, so modules that a fold imports later do not count.
2. Each process shows its fingerprint to the coordinator, which answers with the difference. A joiner waits for the
   answer before it reports that it is ready. If the code differs it ends, and nothing has changed. A joiner that may
   run other code does not ask. Once it coordinates, its code is the job's code.
3. Founders start together and do not wait. But a founder's mail with its code leaves before anything that lets the
   coordinator end the job, and the answer arrives before the permission to end. So a difference fails the job. As
   founders start from the same files, only files that both have loaded are compared: one worker may import more.
4. Functions that travel pickled (notebooks) have no fingerprint. Each process compares the files of the modules that
   they use with the launcher's files; see `megaflow.job.worker.process.program_loading`.
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
    """Mail to the coordinator: the code of the sender's process, None if unknown; `CodeJudged` is the answer."""

    code: Fingerprint | None


@dataclass(frozen=True, slots=True)
class CodeJudged:
    """The answer: how the code differs from that of the coordinator's process, in words; None if it does not."""

    difference: str | None


class CodeCheck:
    """One worker's part in the comparison. Everything runs on its thread."""

    def __init__(self, worker: Worker, code: Fingerprint | None) -> None:
        """`code` is the code of this worker's process."""
        self.code = code
        self._worker = worker
        self._judged = False
        worker.on_mail(TOPIC, self._hear)

    def show(self) -> None:
        """Show the coordinator this process's code. A joiner then steps on while the answer `is_awaited`.

        If the code differs from the job's, a later step raises: in a joiner JoinDenied, in a founder ConfigMismatch.
        """
        self._worker.post(self._worker.membership.coordinator, TOPIC, CodeShown(self.code))

    @property
    def is_awaited(self) -> bool:
        """Whether this worker joins and has no answer yet."""
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
