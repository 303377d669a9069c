"""What the events of a job look like as lines on a screen, and as records."""

from datetime import date, datetime
from typing import Any

from megaflow.cli.json_records import plain
from megaflow.control import job_events
from megaflow.control.job_events import JobEvent
from megaflow.control.wording import printable, quantity, ranges_text, workers_text
from megaflow.timely.order import grouped

BINS_LENGTH_MAX = 60  # characters of the bins in a line


def day_of(event: JobEvent) -> date:
    """Return the local day of an event."""
    return date.fromtimestamp(event.time)


def event_line(event: JobEvent, day: date) -> str:
    """Return an event as a line, with the local time of day; also with its date, unless that is `day`."""
    time = datetime.fromtimestamp(event.time)
    begin = "" if time.date() == day else f"{time.date()} "
    return f"{begin}{time.strftime('%H:%M:%S.%f')[:-3]}  {printable(body_text(event.body))}"


def event_record(event: JobEvent) -> dict[str, Any]:
    """Return an event as a record of `--json`. Its "event" is the name of the class, in words.

    >>> event_record(JobEvent(0, 7, 1.5, job_events.WorkersLeft((2, 3))))
    {'event': 'workers-left', 'attempt': 0, 'number': 7, 'time': 1.5, 'workers': [2, 3]}
    """
    name = type(event.body).__name__
    words = "".join(f"-{each.lower()}" if each.isupper() else each for each in name).removeprefix("-")
    return {"event": words, "attempt": event.attempt, "number": event.number, "time": event.time, **plain(event.body)}


def body_text(body: job_events.Body) -> str:
    """Return what has happened.

    >>> body_text(job_events.StepBegun(9, ((0, 0, 2), (1, 0, 2), (5, 0, 2))))
    'bins 0-1,5 move from worker 0 to worker 2 at epoch 9'
    >>> body_text(job_events.CheckpointCommitted(3, 2_500_000, 0.25))
    'checkpoint 3 is committed: 2,500,000 bytes in 0.25 s'
    >>> body_text(job_events.Waiting(""))
    'the job no longer waits for another system'
    """
    match body:
        case job_events.CoordinatorStarted(worker, workers, taken_over):
            of = f"of {quantity(len(workers), 'worker')}"
            return f"worker {worker} {'takes over as' if taken_over else 'is the'} coordinator {of}"
        case job_events.PlanBegun(plan, strategy, bins, runner, removes, resumed):
            then = "" if removes is None else f", then worker {removes} leaves"
            begins = "goes on" if resumed else "begins"
            return f"plan {plan} {begins}: {quantity(bins, 'bin')}, {strategy}{then} ({runner})"
        case job_events.StepBegun(epoch, moves):
            return f"{moves_text(moves)} at epoch {epoch}"
        case job_events.BinsArrived(operator, _, worker, bins, size, keys, seconds):
            held = f"{quantity(keys, 'key')}, {size:,} bytes, {seconds * 1000:.1f} ms"
            return f"worker {worker} has {bins_text(bins)} of {operator!r}: {held}"
        case job_events.StepDone(report):
            took = f"{quantity(report.bins, 'bin')} in {report.seconds:.3f} s"
            return f"the step at epoch {report.epoch} is complete: {took}"
        case job_events.JoinBegun(processes):
            return f"{quantity(processes, 'process')} {'is' if processes == 1 else 'are'} being started"
        case job_events.WorkersJoined(workers, address):
            return f"{workers_text(workers)} {has(workers)} joined from {address}"
        case job_events.WorkerReady(worker, seconds):
            return f"worker {worker} knows the routing table; its records waited for at most {seconds * 1000:.1f} ms"
        case job_events.LeaveBegun(worker):
            return f"worker {worker} is leaving"
        case job_events.WorkersLeft(workers):
            return f"{workers_text(workers)} {has(workers)} left"
        case job_events.ChangeFailed(workers, reason):
            who = workers_text(workers) if workers else "a new process"
            return f"{who} did not join or leave: {reason}"
        case job_events.CheckpointStarted(checkpoint, epoch, names):
            named = f", named {', '.join(names)}" if names else ""
            return f"checkpoint {checkpoint} begins, of all epochs before {epoch}{named}"
        case job_events.CheckpointCommitted(checkpoint, size, seconds):
            return f"checkpoint {checkpoint} is committed: {size:,} bytes in {seconds:.2f} s"
        case job_events.CheckpointFailed(checkpoint, reason):
            return f"checkpoint {checkpoint} failed: {reason}"
        case job_events.RequestRefused(command, reason):
            return f"{command} was refused: {reason}"
        case job_events.StopRequested():
            return "a stop was requested"
        case job_events.InputEnded():
            return "the input has ended"
        case job_events.Recovering(text):
            return f"the job has lost a process and resumes ({text})"
        case job_events.Waiting(text):
            return text or "the job no longer waits for another system"
        case job_events.EventsLost(count):
            return f"{quantity(count, 'event')} before this {'is' if count == 1 else 'are'} no longer kept"


def moves_text(moves: tuple[tuple[int, int, int], ...]) -> str:
    """Return the bins that change owners."""
    ways = grouped(((source, target), bin) for bin, source, target in moves)
    if len(ways) == 1:
        (source, target), bins = next(iter(ways.items()))
        return f"{bins_text(bins)} {'moves' if len(bins) == 1 else 'move'} from worker {source} to worker {target}"
    workers = {each for way in ways for each in way}
    return f"{quantity(len(moves), 'bin')} move between {quantity(len(workers), 'worker')}"


def bins_text(bins: tuple[int, ...] | list[int]) -> str:
    """Return bins as ranges, or their number if there are many ranges."""
    ranges = ranges_text(sorted(bins))
    return f"bin{'s' * (len(bins) > 1)} {ranges}" if len(ranges) <= BINS_LENGTH_MAX else f"{len(bins):,} bins"


def has(workers: tuple[int, ...]) -> str:
    """Return the verb for these workers."""
    return "have" if len(workers) > 1 else "has"
