"""Lines from Spark Structured Streaming, fed into a running job.

`SparkFeed` runs in the launcher. For each micro-batch of the query

1. the coordinator tells the ingest ports of the workers,
2. every Spark task stages its partition at one of them (`megaflow.spark.push`),
3. the coordinator is asked to commit the attempts that Spark reports as successful, one a
   partition, and answers when the workers can take more.

Staged lines that are not committed never enter the stream, and a batch is committed once, so
retried tasks and replayed batches neither add nor lose a line while the job lives. The
checkpoint is the job's and goes with it. If the job has a store it is in there and stays
(`megaflow.spark.kept_query`), and what the coordinator answers means that the batch is durable.

Each partition is staged at one worker, which keeps its order. The lines of a batch enter the stream when all of the
one before have (see `megaflow.control.coordinator.spark_commits`); meanwhile Spark stages it, so between two batches
that costs a tick or two, some 10 ms. If the specification says `unordered` they need not wait. Measured in turns with
twelve batches of 100,000 lines, in order and unordered: 143 and 142 thousand lines/s as rows in one process, 176 and
195 in two, 305 and 315 as Arrow in two, where runs of one kind differed by a third and more.

The coordinator may change, but not while a batch is being staged. The old one says where the next one is, which knows
what was committed; if the old one has left when it is asked, the launcher has been told where the next one is (`move`).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from megaflow.control.client.conversation import Conversation
from megaflow.errors import SourceLost
from megaflow.quick_dataclass import dataclass
from megaflow.spark.fed_query import Contact, FedQuery
from megaflow.spark.kept_query import KeptQuery
from megaflow.spark.preflight import check_spark, folder_of_a_session
from megaflow.spark.push import choose_transfer
from megaflow.spark.query_spec import RowFrames, SparkSpec

POLL_SECONDS = 0.1  # how late a stop or the end of the query is noticed

log = logging.getLogger("megaflow.spark")


@dataclass(eq=False, repr=False)
class SparkFeed:
    """The queries that feed a job: one of lines, or one for each input of rows.

    `lines` is a spec, for which a Spark session is started and ended, or a streaming DataFrame of the caller's session;
    or of rows a RowFrames of such, of which one may be a batch DataFrame; or one of these as a KeptQuery. `on_change`
    is called once, on a thread of the feed's own, when all queries have ended or one has failed; from then on `done` is
    true and `error` says why if one failed. `report` is told, on the same thread, how the lines leave Spark.
    """

    _lines: SparkSpec | RowFrames | Any
    _coordinator: tuple[str, int]  # host, port
    _secret: bytes
    _on_change: Callable[[], None] = lambda: None
    _report: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._kept = self._lines if isinstance(self._lines, KeptQuery) else None
        lines = self._lines if self._kept is None else self._kept.lines
        self._contact = Contact(self._coordinator, self._secret)
        inputs = {name: lines.frames[name] for name in lines.names} if isinstance(lines, RowFrames) else {None: lines}
        assert self._kept is None or len(inputs) == 1, "a store keeps one query"
        self.queries = [FedQuery(source, self._contact, name, self._kept) for name, source in inputs.items()]
        self._what = "rows" if isinstance(lines, RowFrames) else "lines"
        self.error: Exception | None = None  # why the query failed; written by the feed's thread, before `done`
        self.done = False  # whether the query has ended or failed; written by the feed's thread
        self._thread = threading.Thread(target=self._run, name="megaflow-spark", daemon=True)

    def start(self) -> None:
        """Begin, without blocking."""
        self._thread.start()

    def move(self, coordinator: tuple[str, int]) -> None:
        """Learn where the coordinator is from now on. Any thread."""
        self._contact.coordinator = coordinator

    def stop(self) -> None:
        """Ask the queries to end, without blocking; what is committed stays. Any thread, any time, more than once."""
        self._contact.stopping.set()

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the session is shut down and its files are gone; False if the time was too short."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with ExitStack() as stack:
                try:
                    self._feed(stack)
                except Exception as error:
                    self.error = self.queries[0].explain(error)
                self.done = True
                self._on_change()
        except Exception:
            # The queries are over and reported; only the cleaning up went wrong.
            log.warning("the Spark session did not end cleanly", exc_info=True)

    def _feed(self, stack: ExitStack) -> None:
        """Run the queries to their end, leaving to `stack` what is to be cleaned up."""
        specs = [each.source for each in self.queries if isinstance(each.source, SparkSpec)]
        for spec in specs:
            check_spark(spec)
        from megaflow.spark import spark_session as spark  # the first import of pyspark

        transfer, how = choose_transfer(what=self._what)
        self._report(how)
        folder = stack.enter_context(folder_of_a_session())
        talks = [each.converse() for each in self.queries]
        for talk in talks:
            stack.callback(talk.close)
        held, checkpoints = list[int](), [str(folder / f"checkpoint-{each.id}") for each in self.queries]
        if self._kept is not None:
            held.append(stack.enter_context(self._kept.held(self._contact.stopping.wait, self._report)))
            checkpoints = [self._kept.way.as_uri()]
        session = None
        if specs:
            session = stack.enter_context(spark.spark_session(folder, held))
        try:
            frames = [each.open(session) for each in self.queries]
            session = frames[0].sparkSession
            for each, frame, talk, checkpoint in zip(self.queries, frames, talks, checkpoints, strict=True):
                each.start(frame, talk, transfer, checkpoint)
            self._attend(talks)
        except Exception as error:
            if session is not None and spark.java_ended(session, error):
                raise SourceLost(f"{self.queries[0].name}: Spark's Java process has ended unexpectedly") from error
            for each in self.queries:
                each.stop()
            raise

    def _attend(self, talks: Sequence[Conversation]) -> None:
        """Wait until all queries are over, and tell of each; if one fails the others end, too. Raises why it failed."""
        stopping, running = self._contact.stopping, dict(zip(self.queries, talks, strict=True))
        while running:
            for each, talk in [(each, talk) for each, talk in running.items() if not each.is_active]:
                del running[each]
                failure = each.failure()
                if failure is not None and not stopping.is_set():
                    raise each.explain(failure)
                # A kept query that is stopped has not ended: it goes on later.
                if self._kept is None or not stopping.is_set():
                    each.tell_ended(talk)
            if running and stopping.wait(POLL_SECONDS):
                for each in running:
                    each.stop()
