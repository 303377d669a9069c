"""Faults planted in what a job decides: in the controller, the sources, the launcher. Runs of whole jobs must notice.

Transcripts of the controller show its answers one by one; what is wrong here shows only when all parts run together.
"""

import pytest

from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found, one_quick

FAULTS = {
    "what a leaver returns is given to nobody": Fault(
        "LinesToRead.learn", "held.clear()\nself._pool.put(splits)", "held.clear()"
    ),
    "what is taken back is given on before it has come": Fault(
        "LinesToRead.go_on",
        "self._revoked |= revoked",
        "self._revoked |= revoked\nself._pool.put(self._held[each].pop(n) for each in revoked for n in revoked[each])",
    ),
    "what is taken back is given to nobody": Fault(
        "LinesToRead.learn",
        "self._pool.put(splits)\nif source in self._owed:\n    self._owed.discard(source)\n    self._cut += splits",
        "pass",
    ),
    "the next coordinator counts epochs from the one before last": Fault(
        "Controller._hand_over", "self.epoch", "self.epoch - 1"
    ),
    "the end does not wait for a change of the membership": Fault(
        "Controller._end_or_wait", "self._changes.under_way", "False"
    ),
    "a batch enters before the one before it is taken in": Fault("Commits.is_next", "query != commit.query", "True"),
    "a batch is taken in when one worker has its part": Fault(
        "Commits.taken", "workers.discard(worker)", "workers.clear()"
    ),
    "lines are over when the first coordinator has taken its own": Fault(
        "LineQueue.end_pushed", "PushedEnded(elsewhere)", "PushedEnded(False)"
    ),
    "the launcher's lines go on to the process that leaves": Fault("LinePusher.move", "self._worker = worker", "pass"),
    "a leaver returns what it has read ahead as read": Fault(
        "LineQueue.remainders", "len(self._next) if self._from_split else 0", "0"
    ),
    "a source obeys before control has passed the command": Fault(
        "LineSource.run", "self._waiting[0][0] < tick", "self._waiting[0][0] <= tick"
    ),
    "the launcher does not wait for the outputs of newcomers": Fault(
        "EpochMerge.join", "self._closed[worker] = self._least", "self._closed[worker] = float('inf')"
    ),
    "what is kept for the launcher holds no epoch open": Fault(
        "JobOutput.run",
        "self._kept.append((mint(self._output, time), batch))",
        "held = mint(self._output, time)\nheld.release()\nself._kept.append((held, batch))",
    ),
    "an epoch is written before all workers have closed it": Fault(
        "EpochMerge.close", "least <= self._least", "(least := closed.epoch or least) <= self._least"
    ),
}
FAULTS_OF_CRASHES = {
    "the launcher does not say that the job has failed": Fault("Loop._judge", "raise error", "pass"),
}
FAULTS_OF_CHECKPOINTS = {
    "splits that nobody holds are lost": Fault("LinesToRead.begin_cut", "list(self._pool.splits)", "[]"),
    "splits that are on their way back are lost": Fault("LinesToRead.learn", "self._cut += splits", "pass"),
    "splits that are taken back later count twice": Fault("LinesToRead.learn", "source in self._owed", "True"),
    "a source says that it has read what it looked up ahead": Fault(
        "LineQueue.remainders", "len(self._next) if self._from_split else 0", "0"
    ),
    "a source says where it is before control has passed the checkpoint": Fault(
        "LineSource.run", "self._waiting[0][0] < tick", "self._waiting[0][0] <= tick"
    ),
    "what was abandoned is followed": Fault(
        "Checkpoints._fail", "self._due = now + self._durable.every_seconds", "self._since = one.number"
    ),
    "the next coordinator counts checkpoints anew": Fault("Checkpoints.state", "self._number", "1"),
    "a hand-over does not wait for the checkpoint under way": Fault(
        "Controller._is_at_rest", "self._checkpoints.under_way", "False"
    ),
    "control begins anew": Fault(
        "Controller.__init__",
        "durable.epoch + 1",
        "0",
        (Fault("WorkerProgram._found", "durable.epoch + 1", "0"),),
    ),
    "timers that fired at the end are kept": Fault("Journal._cut", "bin in self._firing", "False"),
    "a process that joins reads the commit that its life began with": Fault(
        "WorkerProgram.build", "replace(spec.durable, commit=None)", "spec.durable"
    ),
    "a worker's part is complete when one operator has written": Fault(
        "CutPacker.take", "self._missing.discard(cut.operator)", "self._missing.clear()"
    ),
}
FAULTS_OF_LAUNCHERS = {
    "a commit comes before the output is synced": Fault("FileWriter.sync", "self._file.sync()", "None"),
    "a commit comes before the output's name is": Fault("FileWriter.sync", "self._file.sync_name()", "None"),
    "a commit says that the output is as long as it is when it is written": Fault(
        "Checkpointing._commit_if_complete",
        "self._output.lengths(draft.length)",
        "self._output.lengths(self._output._writer._file.size())",
    ),
    "the output's mark is an epoch late": Fault(
        "Checkpointing.take", "float('inf') if at_end else epoch", "float('inf') if at_end else epoch + 1"
    ),
    "the output's mark is an epoch early": Fault(
        "Checkpointing.take", "float('inf') if at_end else epoch", "float('inf') if at_end else epoch - 1"
    ),
    "a job that goes on does not cut the output back": Fault("resume", "writer.cut_back(committed)", "None"),
    "a life that follows a loss does not cut the output back": Fault(
        "Supervision._recover", "self.output.cut_back(keeper.length)", "None"
    ),
    "a job that is stopped leaves more than is committed": Fault(
        "Checkpointing.end", "self._output.cut_back(self._length)", "None"
    ),
    "a life that follows a loss reads what the one before began with": Fault(
        "go_on", "latest.checkpoint > since", "False"
    ),
    "a job that goes on deals its bins round": Fault("resume", "first_owners(owners, count, may_be_new=True)", "()"),
    "a program's fault is taken for a loss": Fault(
        "is_loss", "not isinstance(error, PeerFailed | ProtocolError | StoreUnfit | StoreDamaged)", "True"
    ),
    "a job has ended before that is committed": Fault("Loop.life", "self._checkpoints.is_waiting", "False"),
    "a commit that failed is told as one that is durable": Fault(
        "StoreKeeper._fail", 'CommitFailed(commit.checkpoint, reason.rstrip("."))', "Committed(commit.checkpoint)"
    ),
}

FAULTS_OF_MEMORY = {
    "a key that was touched is remembered": Fault("Remains.roll_back", "(each.keys for each in since)", "[]"),
    "what was touched before a cut that was abandoned is remembered": Fault(
        "Remains.roll_back", "each.number > checkpoint", "False"
    ),
    "what nobody has noted is remembered": Fault("Remains.roll_back", "self.bins = {}", "pass"),
    "a key that was touched is not read again": Fault("Memory.roll_back", "recovery.recall(heir, touched)", "{}"),
    "timers are not read again": Fault("Memory.restore", "recovery.timers(heir, here)", "Restored({}, {})"),
    "a bin that nobody remembers is not read": Fault(
        "Memory.restore", "recovery.restore(heir, frozenset(bins) - here)", "Restored({}, {})"
    ),
    "a life that follows a loss deals its bins round": Fault(
        "go_on", "first_owners(owners, len(kept), kept)", "tuple(bins or () for bins in kept)"
    ),
    "lost bins go to nobody": Fault("ChildSpec.kept", "enumerate(self.part.kept)", "enumerate(self.part.kept, 1)"),
    "lost bins have two owners": Fault(
        "ChildSpec.kept",
        "isinstance(self.part, Founder)",
        "isinstance(self.part, Founder) and self.part.process == 0",
    ),
    "a job that is to shrink starts one in the place of a lost one": Fault(
        "Children.begin_anew", "not self._is_lost(child)", "True"
    ),
}


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_is_found_within_400_jobs(name: str) -> None:
    check_found(FAULTS[name], "jobs", 400)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_CRASHES)
def test_a_planted_fault_is_found_within_200_crashes(name: str) -> None:
    check_found(FAULTS_OF_CRASHES[name], "crashes")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_CHECKPOINTS)
def test_a_planted_fault_is_found_within_200_durable_jobs(name: str) -> None:
    check_found(FAULTS_OF_CHECKPOINTS[name], "durable jobs")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_LAUNCHERS)
def test_a_planted_fault_of_a_launcher_is_found_within_200_durable_jobs(name: str) -> None:
    check_found(FAULTS_OF_LAUNCHERS[name], "durable jobs")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_MEMORY)
def test_a_planted_fault_of_a_memory_is_found_within_200_jobs_that_lose_processes(name: str) -> None:
    check_found(FAULTS_OF_MEMORY[name], "lost processes")


ALL_FAULTS = FAULTS | FAULTS_OF_CRASHES | FAULTS_OF_CHECKPOINTS | FAULTS_OF_LAUNCHERS | FAULTS_OF_MEMORY


@pytest.mark.parametrize("name", ALL_FAULTS)
def test_what_a_fault_of_jobs_makes_wrong_is_there_once(name: str) -> None:
    planted(ALL_FAULTS[name])
