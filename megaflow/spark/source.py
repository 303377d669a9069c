"""Lines from Spark Structured Streaming, fed into a running job.

`SparkFeed` runs in the launcher. For each micro-batch of the query:

1. The coordinator returns the ingest ports of the workers.
2. Every Spark task stages its partition at one of them (`megaflow.spark.push`).
3. The feed asks the coordinator to commit the attempts that Spark reports as successful, one per partition. The
   coordinator answers when the workers can receive more.

Staged lines that are not committed never enter the stream, and a batch is committed once. So retried tasks and replayed
batches neither add nor lose a line while the job lives. The checkpoint belongs to the job and is removed with it. If
the job has a store, the checkpoint is in the store and stays (`megaflow.spark.kept_query`). An answer of the
coordinator then means that the batch is durable. Each query has its own checkpoint and its own position in the store,
so a resumed job continues each query where it was.

Each partition is staged at one worker, which keeps its order. The lines of a batch enter the stream when all lines of
the previous batch have (see `megaflow.control.coordinator.reading.spark_commits`). Spark stages a batch while the
previous one enters, so this order costs a tick or two between two batches, about 10 ms. With `unordered` in the
specification, lines do not wait for the previous batch.

Measured in turns with twelve batches of 100,000 lines, in order and unordered: 143 and 142 thousand lines/s as rows in
one process, 176 and 195 in two, 305 and 315 as Arrow in two. Runs of one kind differed by a third and more.

Rows of different queries are not ordered by each other. The rows of a batch DataFrame that is `first` enter before all
others:
- The other queries start when the first one is over. Its only batch is then answered, so it was issued before.
- The commits of the others name the first query. So the coordinator issues them only when sources have taken in all of
  the first query's rows. The others' rows have later epochs.
- If the store has the first query's batch, a job that resumes does not start this query again. The coordinator issues
  the rest of that batch before it accepts a commit. If the store lacks it, the query runs again before the others.

The coordinator may change, but not while a batch is being staged. The old coordinator names the next one, which knows
what was committed. If the old one has left when the feed asks it, the launcher already knows the next one (`move`).
"""

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from megaflow.control.client.conversation import Conversation
from megaflow.control.wording import Notice
from megaflow.durable.commits import is_of_a_batch
from megaflow.errors import Outage, SourceLost
from megaflow.quick_dataclass import dataclass
from megaflow.spark.fed_query import Contact, FedQuery
from megaflow.spark.kept_query import KeptFeed, held_lock, location_of
from megaflow.spark.preflight import check_spark, folder_of_a_session
from megaflow.spark.push import choose_transfer
from megaflow.spark.query_spec import TRIGGER_SECONDS, RowFrames, SparkSpec, TimeMode, sources_of

POLL_SECONDS = 0.1  # the delay until a stop or the end of the query is noticed

log = logging.getLogger("megaflow.spark")


@dataclass(eq=False, repr=False)
class SparkFeed:
    """The queries that feed a job: one of lines, or one for each input of rows.

    `lines` is one of these:
    - a spec, for which a Spark session is started and ended, or a streaming DataFrame of the caller's session;
    - for rows, a RowFrames of these, in which a frame may also be a batch DataFrame;
    - one of these as a KeptFeed.

    `on_change` is called once, on the feed's own thread, when all queries have ended or one has failed. From then on
    `done` is true, and `error` has the reason if one failed. `report` is called on the same thread with how the lines
    leave Spark.
    """

    _lines: SparkSpec | RowFrames | Any
    _coordinator: tuple[str, int]  # host, port
    _secret: bytes
    _on_change: Callable[[], None] = lambda: None
    _report: Callable[[str], None] = lambda text: None
    _job: str = ""  # its name, for Spark's pages

    def __post_init__(self) -> None:
        self._kept = self._lines if isinstance(self._lines, KeptFeed) else None
        lines = self._lines if self._kept is None else self._kept.lines
        self._contact = Contact(self._coordinator, self._secret, self._job)
        kept = {} if self._kept is None else self._kept.queries
        rows = lines if isinstance(lines, RowFrames) else None
        trigger, first = (TRIGGER_SECONDS, "") if rows is None else (rows.trigger_seconds, rows.first)
        mode: TimeMode = "" if rows is None else rows.time_mode
        self.queries = [
            FedQuery(source, self._contact, name or None, kept.get(name), trigger, mode)
            for name, source in sources_of(lines).items()
        ]
        self._first = [each for each in self.queries if first and each.input == first]
        self._others = [each for each in self.queries if each not in self._first]
        for each in self._others:
            each.after = tuple(one.id for one in self._first)
        self._what = "lines" if rows is None else "rows"
        self.error: Exception | None = None  # why the query failed; written by the feed's thread, before `done`
        self.done = False  # whether the query has ended or failed; written by the feed's thread
        self._thread = threading.Thread(target=self._run, name="megaflow-spark", daemon=True)

    def start(self) -> None:
        """Start the queries without blocking."""
        self._thread.start()

    def move(self, coordinator: tuple[str, int]) -> None:
        """Set the address of the coordinator from now on. Any thread may call it."""
        self._contact.coordinator = coordinator

    def stop(self) -> None:
        """Ask the queries to end, without blocking. Committed batches stay. Any thread, any time, more than once."""
        self._contact.stopping.set()

    def waits_text(self) -> str:
        """Return what the job waits for until Spark sends lines, and since when; "" for nothing. Any thread."""
        if self.done or self._contact.stopping.is_set():
            return ""
        return "; ".join(filter(None, dict.fromkeys(each.waits for each in self.queries)))

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the session is shut down and its files are gone. Return False if the time was too short."""
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for each in self.queries:
            if not each.is_over:
                each.awaits("it starts and opens the query")
        try:
            with ExitStack() as stack:
                try:
                    self._feed(stack)
                except Exception as error:
                    self.error = self.queries[0].explain(error)
                self.done = True
                self._on_change()
        except Exception:
            # The queries are over and reported; only the cleanup has failed.
            log.warning("the Spark session did not end cleanly", exc_info=True)

    def _feed(self, stack: ExitStack) -> None:
        """Run the queries to their end. `stack` gets the cleanup."""
        specs = [each.source for each in self.queries if isinstance(each.source, SparkSpec)]
        for spec in specs:
            check_spark(spec)
        from megaflow.spark import spark_session as spark  # the first import of pyspark

        transfer, how = choose_transfer(what=self._what)
        self._report(Notice(how))
        if any(each.trigger_seconds is not None for each in specs):
            self._report(Notice(
                f"the job reads new {self._what} until it is stopped; with the option trigger=availableNow it reads "
                "those that exist now, and ends"
            ))  # fmt: skip
        folder = stack.enter_context(folder_of_a_session())
        talks = {each: each.converse() for each in self.queries}
        for talk in talks.values():
            stack.callback(talk.close)
        held = list[int]()
        if self._kept is not None:
            lock = held_lock(self._kept.folder, self._contact.stopping.wait, self._report)
            held.append(stack.enter_context(lock))
        session = None
        if specs:
            session = stack.enter_context(spark.spark_session(folder, held, report=self._report))
        try:
            frames = {each: each.open(session) for each in self.queries}
            session = frames[self.queries[0]].sparkSession
            for each in self._others if self._first else ():
                each.awaits("other rows come first")
            for group in self._first, self._others:
                for each in group:
                    if not (each.is_over or self._contact.stopping.is_set()):  # the first query may be unfinished then
                        each.start(frames[each], talks[each], transfer, checkpoint_of(each, folder))
                self._attend({each: talks[each] for each in group}, partial(spark.is_stopped, session.sparkContext))
        except Exception as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            if session is not None and (over := spark.why_over(session, cause)):
                over = f"{self.queries[0].name}: {over}"
                if specs:
                    raise SourceLost(over) from error
                raise Outage(f"{over}. Create a new session, and its DataFrames again") from error
            for each in self.queries:
                each.stop()
            raise

    def _attend(self, running: dict[FedQuery, Conversation], is_stopped: Callable[[], bool]) -> None:
        """Wait until these queries are over, and report each. If one fails, the others also end. Raises its error.

        `is_stopped`: the session is. Spark then ends queries without an error.
        """
        stopping = self._contact.stopping
        while running:
            for each, talk in list(running.items()):
                is_active = each.is_active  # first: it raises if Java has ended
                failure = each.batch_error if is_active else each.failure()
                if not (is_active or stopping.is_set()) and is_stopped():
                    raise SourceLost(f"{each.name}: its session is stopped")
                if failure is not None and not stopping.is_set():
                    raise each.explain(failure)
                if not stopping.is_set():
                    each.raise_watermark(talk)
                if is_active:
                    continue
                del running[each]
                # A kept query that is stopped has not ended: it resumes later.
                if self._kept is None or not stopping.is_set():
                    each.tell_ended(talk)
            if running and stopping.wait(POLL_SECONDS):
                for each in running:
                    each.stop()


def checkpoint_of(query: FedQuery, folder: Path) -> str:
    """Return where Spark keeps the record of a query, if it does; `folder` is the session's."""
    if query.kept is None or is_of_a_batch(query.id):
        return str(folder / f"checkpoint-{query.id}")
    return location_of(query.kept.way)
