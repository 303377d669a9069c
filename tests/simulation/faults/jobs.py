"""Faults of whole jobs: input, output, launchers, lost processes and stores."""

from tests.simulation.planting import Fault

RESTORED = {
    "an older store is not noticed": Fault("compare", "newest > at", "False"),
    "an older outside system is not noticed": Fault("compare", "newest < known", "False"),
    "a checkpoint that is there in part is not noticed": Fault(
        "compare", "newest == known and not tokens.issuperset(dict(standing.tokens).get(sink, ()))", "False"
    ),
    "a checkpoint of the same number is not told from another": Fault(
        "compare",
        "0 < known < newest < at or (newest == at and are_known and not tokens <= standing.newest)", "False",
        (Fault(
            "compare", "newest == known and not tokens.issuperset(dict(standing.tokens).get(sink, ()))", "False"
        ),),
    ),
    "a commit does not know what was delivered": Fault(
        "after_deliveries", "latest.checkpoint if sink in waited else before.get(sink, 0)", "before.get(sink, 0)"
    ),
    "what was not delivered counts as delivered": Fault(
        "after_deliveries", "latest.checkpoint if sink in waited else before.get(sink, 0)", "latest.checkpoint"
    ),
    "a store has another lineage at each start": Fault("begin", "renews or not newest.lineage", "True"),
    "sinks do not learn the lineage": Fault(
        "OpenSink._open",
        "SinkPlace(self.name, keeper.worker, keeper.job, is_durable, lineage, joined)",
        "SinkPlace(self.name, keeper.worker, keeper.job, is_durable)",
    ),
    "a delivery does not look for the last one": Fault("OpenSink._expect", "n > self._unknown_until", "False"),
    "the last deliveries stay those of the start": Fault(
        "Checkpoints.answered", "deliveries_of(one.number, one.tokens)", "{}"
    ),
}

STORES = {
    "a commit is acknowledged before its name is durable": Fault(
        "Store.commit", "self._folder.sync_names()", "None"
    ),
    "a segment is reported before its name is durable": Fault("Store.put", "self._folder.sync_names()", "None"),
    "a file is linked before it is synced": Fault("Store._set_aside", "self._folder.sync(file)", "None"),
    "a failed sync is tried again on the same file": Fault(
        "Store._set_aside",
        "self._folder.sync(file)",
        "try:\n    self._folder.sync(file)\nexcept OSError:\n    self._folder.sync(file)",
    ),
    "a failed sync of the folder is tried again": Fault(
        "Store.commit",
        "self._folder.sync_names()",
        "try:\n    self._folder.sync_names()\nexcept OSError:\n    self._folder.sync_names()",
    ),
    "a commit of another launcher is taken for one's own": Fault("Store.commit", "return False", "return True"),
    "a commit in doubt is given up": Fault("Store.commit", "CommitInDoubt(...)", "OSError()"),
    "a commit in doubt is taken for one that failed": Fault(
        "Incarnation.commit", "raise _doubt(self._number, error) from error", "raise"
    ),
    "a launcher that slept does not look for a higher commit": Fault(
        "Incarnation._check_highest", "highest > number", "False"
    ),
    "the store is cleaned before the incarnation is committed": Fault(
        "begin",
        "incarnation.commit(begun)",
        "(incarnation._doom_what_is_left(), incarnation.collect(), incarnation.commit(begun))",
    ),
    "segments in flight are collected": Fault(
        "Incarnation.collect",
        "self._doomed.difference_update(...)",
        "self._doomed.update(name for name in self._store.list() if name.endswith('.seg'))\n"
        "self._doomed.difference_update(*(names for _, names in self._commits.values()))",
    ),
    "what a worker has in flight is collected with what it wrote before": Fault(
        "Incarnation._doom_abandoned", "int(found[3]) < first.get(found[2], 0)", "True"
    ),
    "what a successor has in flight is collected": Fault(
        "Incarnation._doom_what_is_left", "int(segment[1]) < self.latest.incarnation", "True"
    ),
    "segments go though a kept commit names them": Fault(
        "Incarnation.collect", "self._doomed.difference_update(...)", "None"
    ),
    "a commit goes though its checkpoint has a name": Fault(
        "Incarnation.collect", "self.latest.others", "self.latest.kept"
    ),
    "a name stays with a commit that is repeated": Fault("Incarnation.commit", "self._repeats(commit, of)", "False"),
    "a new incarnation forgets the names": Fault("Incarnation.commit", "self.latest.named", "()"),
    "commits with names are not known to who begins": Fault("read_commits", "commits[0].others", "commits[0].kept"),
    "segments go before the commits that name them": Fault(
        "Incarnation.collect", "self._store.delete(map(commit_name, old))", "None"
    ),
    "commits go before one that does not name them is durable": Fault(
        "Incarnation.commit",
        "self._settle()",
        "(self._settle(), self._store.delete(map(commit_name, self._commits.keys() - {self.latest.number})))",
    ),
    "an incarnation begins without a commit": Fault("begin", "incarnation.commit(begun)", "None"),
}

FOLDERS = {
    "a file is renamed instead of linked": Fault(
        "LocalFolder.link",
        "os.link(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)",
        "os.replace(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)",
    ),
}

TWO_INPUTS = {
    "a job that goes on forgets whose lines are left": Fault(
        "resumed_input",
        "Split(each.number, each.path, each.start, end, each.input, each.skip, maxima=each.maxima, "
        "print=each.fingerprint)",
        "Split(each.number, each.path, each.start, end, '', each.skip, print=each.fingerprint)",
    ),
    "a checkpoint forgets whose lines are left": Fault(
        "OpenSplits.rest", "each.rest(lines if each is untaken else 0)",
        "__import__('dataclasses').replace(rest, input='left') "
        "if (rest := each.rest(lines if each is untaken else 0)) else None",
    ),
}  # fmt: skip

MOVED_FILES = {
    "a renamed file is taken for a new one": Fault("_find_by_inode", "match.names[file] = here[0]", "None"),
    "another name of a file is taken for a new one": Fault("_links", "known != file", "False"),
    "a compressed file is taken for a new one": Fault(
        "_continue_compressed", "match.names[file], match.texts[file] = copy, record", "None"
    ),
    "a compressed file goes on at the place of its original": Fault("copy_of_text", "said.skip or said.start", "0"),
    "the prints of what was read to its end are forgotten": Fault(
        "JobStanding.state", "lines.state", "replace(lines.state, read={})"
    ),
    "a position has no print": Fault("SplitReader._rest_from", "self._print(start)", "self._print(0)"),
    "a commit reads the print of a name": Fault(
        "InputPositions.remainders",
        "self._read.get(split.number, SplitEnd(split.print if split.start == split.end else GONE))",
        "SplitEnd(__import__('megaflow.job.formats.raw_file').job.formats.raw_file.print_of(split.path, split.end))",
    ),
}

INTERLEAVED = {
    "inputs are read in turn, whatever their event time": Fault(
        "in_order", "sorted((each for each in turns if each in bounds), key=bounds.__getitem__)",
        "(each for each in turns if each in bounds)",
    ),
    "the fastest input is read first": Fault(
        "in_order", "sorted((each for each in turns if each in bounds), key=bounds.__getitem__)",
        "sorted((each for each in turns if each in bounds), key=lambda each: -bounds[each])",
    ),
    "a file of which nothing was seen has no bound": Fault(
        "ReadingTurns._look", "not active", "not bounds",
        (Fault("ReadingTurns._look", "active and not bounds", "False"),),
    ),
    "workers are told no limits": Fault("InputFronts.due", "limits == self._told", "True"),
    "files above their limits are read": Fault(
        "ReadingTurns._is_above", "self._bounds.get(lane, NEVER) > self.limits.get(input, INFINITE)", "False"
    ),
    "an input that is read to its end limits the others for ever": Fault(
        "InputFronts.due", "held & self._fronts.keys()", "self._fronts.keys()",
        (Fault("InputFronts.due", "now - self._rose[each] < STILL_SECONDS", "True"),),
    ),
    "the files of an input are read all at once": Fault(
        "OpenSplits.read", "return reader, batch", "return (reader, batch, some.rotate(-1))[:2]"
    ),
}  # fmt: skip

JOBS = {
    "what a leaver returns is given to nobody": Fault(
        "LinesToRead.learn",
        "self.state.held.pop(source, None)\nself._put_back(splits)",
        "self.state.held.pop(source, None)",
    ),
    "what is taken back is given on before it has come": Fault(
        "LinesToRead.go_on",
        "self._revoked |= revoked",
        "self._revoked |= revoked\nself.pool.put(self.state.held[e].pop(n) for e in revoked for n in revoked[e])",
    ),
    "what is taken back is given to nobody": Fault(
        "LinesToRead.learn",
        "self._put_back(splits)\nif source in self._owed:\n    self._owed.discard(source)\n    self._cut += splits",
        "pass",
    ),
    "a worker is not told to open a file that no process has found": Fault(
        "LinesToRead._pass_on", "commands.append(reading_messages.StayWithPartition(holder, number))", "pass"
    ),
    "a worker hands back no file that it does not find": Fault("OpenSplits._all", "self._missing.values()", "()"),
    "the next coordinator counts epochs from the one before last": Fault(
        "JobStanding.state", "stream.epoch", "stream.epoch - 1"
    ),
    "the end does not wait for a change of the membership": Fault(
        "Controller._end_or_wait", "self._is_changing", "False"
    ),
    "a batch enters before the one before it is taken in": Fault("Commits.is_next", "query != own", "True"),
    "a batch is taken in when one worker has its part": Fault(
        "Commits.taken", "workers.discard(worker)", "workers.clear()"
    ),
    "lines are over when the first coordinator has taken its own": Fault(
        "LineQueue.end_pushed", "PushedEnded(elsewhere)", "PushedEnded(False)"
    ),
    "the launcher's lines go on to the process that leaves": Fault("LinePusher.move", "self._worker = worker", "pass"),
    "a leaver returns what it has read ahead as read": Fault(
        "OpenSplits.rest", "lines if each is untaken else 0", "0"
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

CRASHES = {
    "the launcher does not say that the job has failed": Fault("Loop._judge", "raise error", "pass"),
}

CHECKPOINTS = {
    "splits that nobody holds are lost": Fault("LinesToRead.begin_cut", "list(self.pool.splits)", "[]"),
    "splits that are on their way back are lost": Fault("LinesToRead.learn", "self._cut += splits", "pass"),
    "splits that are taken back later count twice": Fault("LinesToRead.learn", "source in self._owed", "True"),
    "a source says that it has read what it looked up ahead": Fault(
        "OpenSplits.rest", "lines if each is untaken else 0", "0"
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
    "a process that joins reads the commit that its attempt began with": Fault(
        "WorkerProgram.build", "replace(spec.durable, commit=None)", "spec.durable"
    ),
    "a worker's part is complete when one operator has written": Fault(
        "CutPacker.take", "self._missing.discard(cut.operator)", "self._missing.clear()"
    ),
}

LAUNCHERS = {
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
    "an attempt that follows a loss does not cut the output back": Fault(
        "Supervision._recover", "self.parts.output.cut_back(keeper.length)", "None"
    ),
    "a job that is stopped leaves more than is committed": Fault(
        "Checkpointing.end", "self._output.cut_back(last.length)", "None"
    ),
    "an attempt that follows a loss reads what the one before began with": Fault(
        "go_on", "latest.checkpoint > since", "False"
    ),
    "a job that goes on deals its bins round": Fault("resume", "first_owners(owners, count, may_be_new=True)", "()"),
    "a program's fault is taken for a loss": Fault("is_loss", "isinstance(error, FINAL)", "False"),
    "a job has ended before that is committed": Fault("Loop.turns", "self._checkpoints.is_waiting", "False"),
    "a commit that failed is told as one that is durable": Fault(
        "StoreKeeper._fail", 'CommitFailed(commit.checkpoint, reason.rstrip("."))', "Committed(commit.checkpoint)"
    ),
}

LOST_PROCESSES = {
    "a key that was touched is remembered": Fault("RetainedBins.roll_back", "(each.keys for each in since)", "[]"),
    "what was touched before a cut that was abandoned is remembered": Fault(
        "RetainedBins.roll_back", "each.number > checkpoint", "False"
    ),
    "what nobody has noted is remembered": Fault("RetainedBins.roll_back", "self.bins = {}", "pass"),
    "a key that was touched is not read again": Fault(
        "LocalRecovery.roll_back", "recovery.recall(descriptor, touched)", "{}"
    ),
    "timers are not read again": Fault(
        "LocalRecovery.restore", "recovery.timers(descriptor, here)", "Restored({}, {})"
    ),
    "a bin that nobody remembers is not read": Fault(
        "LocalRecovery.restore", "recovery.restore(descriptor, frozenset(bins) - here)", "Restored({}, {})"
    ),
    "an attempt that follows a loss deals its bins round": Fault(
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

SINKS = {
    "a token is committed before its checkpoint is": Fault(
        "OpenSink._cut", "self._settle()", "self._settle()\nself.has_committed(self._number)"
    ),
    "a record of the checkpoint's epoch or later is in its token": Fault(
        "WriteOperator._may_write", "not self._cuts or time < self._cuts[0][0]", "True"
    ),
    "what an earlier run had prepared is not committed": Fault("WorkerSinks.restored", "number, mine", "number, ()"),
    "what is to be delivered is removed before it is": Fault("Commit.files", "self.tokens", "()"),
    "what was prepared for an abandoned checkpoint is forgotten": Fault(
        "OpenSink._settle", "len(self.tokens)", "len([token for token in self.tokens if token.checkpoint == self.done])"
    ),
    "what a worker has prepared that leaves is in no checkpoint": Fault(
        "Checkpoints.learn", "token not in self._in_last", "False"
    ),
    "what a worker has prepared that has left is committed by nobody": Fault(
        "Checkpoints.answered", "one.adopted if worker == first else ()", "()"
    ),
    "a worker that leaves prepares nothing": Fault("WriteOperator._read_commands", "self._is_leaving = True", "pass"),
    "a worker that leaves does not wait until what it has is told": Fault(
        "WriteOperator.run", "self.outlet.hand_over()", "(self.outlet.hand_over(), True)[1]"
    ),
    "a stop does not wait until all is committed": Fault(
        "Checkpointing.settle", "set(draft.ready.committers)", "set()"
    ),
    "what is committed at the end waits in the store": Fault("Checkpointing.end", "not self._undelivered", "False"),
}

SOURCES = {
    "a partition stays with a worker that does not find it": Fault(
        "Partitions._look_elsewhere", "self._revoke(holder, (number,))", "pass"
    ),
    "a worker is not told that no process finds its partition": Fault(
        "Partitions._look_elsewhere", "self._stream.issue(reading_messages.StayWithPartition(holder, number))", "pass"
    ),
    "a partition goes back to a worker that does not find it": Fault(
        "Partitions._give", "(worker in tried, loads[worker], worker)", "(worker not in tried, loads[worker], worker)"
    ),
    "a partition is handed back behind what was looked up ahead": Fault(
        "PartitionReader.rest", "self._before if untaken else self._position", "self._position"
    ),
    "a resume does not know which partitions were wholly read": Fault(
        "CommitDraft.commit", "each.number not in left", "False"
    ),
    "the next coordinator knows no partition": Fault(
        "JobStanding.state", "lines.partitions.state", "replace(lines.partitions.state, known={})"
    ),
    "a partition that is named no more is forgotten before it is read": Fault(
        "Partitions._forget", "partition.number not in self.state.holders", "True"
    ),
    "a partition is forgotten that is named": Fault("Partitions._forget", "partition.partition not in named", "True"),
    "who asks a source forgets how a partition is encoded that is being read": Fault(
        "Discovery._found", "is_known(name, encoded)", "False"
    ),
    "the next run does not read on where a partition has ended": Fault(
        "Partitions.found", "known.ended_in not in (0, ANEW, self._run)", "False"
    ),
    "a recovery reads on where a partition has ended": Fault(
        "Partitions.found", "known.ended_in not in (0, ANEW, self._run)", "known.ended_in"
    ),
    "a file that has the name of a removed one is not read": Fault(
        "Partitions.found", "known is None or (known.ended_in == ANEW and known.number not in self._unsettled)",
        "known is None",
    ),
    "a partition that is gone is taken for one that was read": Fault(
        "Partitions._end", "replace(partition, position=None, maxima=())",
        "replace(partition, position=None, maxima=(), ended_in=0)",
    ),
    "the last partition that is gone is forgotten as one that was read": Fault(
        "Partitions._forget", "partition.ended_in != ANEW", "True"
    ),
    "an end is lost that is reported while a checkpoint is under way": Fault(
        "CommitDraft.commit", "ends.get(each.number, each)", "each"
    ),
    "a partition goes on from where it was opened, not from its end": Fault(
        "OpenPartitions.read", "reader.rest()", "reader.unread"
    ),
    "a partition that is idle is forgotten by a checkpoint": Fault(
        "OpenPartitions._readers", "(reader for reader, _ in self._idle.values())", "()"
    ),
}

DURABLE_SPARK = {
    "a batch is answered before it is durable": Fault("Commits._is_durable", "self.state.durable is None", "True"),
    "a batch is answered when a checkpoint is committed, be it of an earlier epoch": Fault(
        "Checkpoints.answered", "self._commits.kept(one.spark)", "self._commits.kept(self._commits.newest)"
    ),
    "what a source has not taken in is in no segment": Fault(
        "LineSource._tell_position", "self.queue.untaken()", "None"
    ),
    "what a source has looked up ahead is in no segment": Fault(
        "LineQueue.untaken", "self._next if self.partition[0] == 'spark' else ()", "()"
    ),
    "the chunk that is half taken is kept whole": Fault(
        "OpenLines.rest", "self._text[self._position:]", "self._text"
    ),
    "what is left is nobody's after a restart": Fault(
        "WorkerProgram._reading", "self._queue.staging.restore(self._kept.restaged())", "pass"
    ),
    "a batch that is replayed after its commit enters again": Fault(
        "StateBackend.durable",
        """replace(
            new, committed=commit.checkpoint, epoch=commit.time, next_worker=commit.next_worker, whole=whole,
            spark=commit.spark, untaken=untaken, partitions=commit.partitions, finished=commit.finished,
            watermark=commit.watermark, clock=commit.clock, bound=commit.bound, furthest=commit.furthest,
        )""",
        "replace(new, committed=commit.checkpoint, epoch=commit.time, next_worker=commit.next_worker, whole=whole)",
    ),
    "the next coordinator does not know what is durable": Fault(
        "JobStanding.state", "changes.commits.state", "replace(changes.commits.state, durable=None)"
    ),
}

SEVERAL_QUERIES = {
    "rows enter before those of the first query": Fault("Commits.is_next", "query not in request.after", "True"),
    "what is left of a query comes back once for each query": Fault("_parts", "each.query in (query, '')", "True"),
    "what is left of one query alone comes back": Fault("Controller._start", "self._restored", "self._restored[:1]"),
}

TWO_LAUNCHERS = {
    "a commit of the other launcher is taken for its own": Fault("Store.commit", "return False", "return True"),
}

WHOLE_BATCHES = {
    "a source goes on to later epochs while it reads a whole batch": Fault(
        "LineSource._obey", "time if command.is_whole and self.queue.has_staged else None", "None"
    ),
    "a whole batch enters at the source's own epoch": Fault(
        "LineSource.run", "self._read_whole(self._whole)", "self._read_whole(max(self._whole, (tick or 1) - 1))"
    ),
    "a batch's watermark is issued before the batch": Fault(
        "Commits.issue", "self._stream.issue(commit, *self._raised(commit.watermark))",
        "[self._stream.issue(each) for each in (*self._raised(commit.watermark), commit)][-1]"
    ),
    "a checkpoint has no watermark that a query has given": Fault(
        "Watermarks.micros", "(self._micros, self._commits.state.watermark)", "(self._micros,)"
    ),
    "timers fire at the end although the query may continue": Fault(
        "Watermarks.at_end", "self.end.commands(stops) if self._commits.state.watermark is None else []",
        "[Watermark(INFINITE, 0, by_stop=stops)]"
    ),
}
