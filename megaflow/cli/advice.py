"""What recommendations, decisions and their outcomes look like: as text on a screen, and as records for `--json`."""

from typing import Any

from megaflow.control.client.autoscale import Change
from megaflow.control.client.ds2 import Recommendation
from megaflow.control.client.hysteresis import Decision
from megaflow.control.client.text import joined_text, moved_text, removed_text, table_text


def recommendation_record(advice: Recommendation) -> dict[str, Any]:
    """Return a recommendation for `--json`: rates a second, utilizations as shares from 0 to 1."""
    sample = advice.sample
    return {
        "seconds": sample.seconds,
        "lines": {"wanted": advice.rate, "offered": sample.offered, "done": sample.done, "waiting": sample.waiting,
                  "unbounded": sample.unbounded},
        "operators": [
            {"name": need.operator, "offered": need.offered, "true_rate": need.true_rate,
             "utilization": need.utilization, "workers": need.workers}
            for need in advice.needs
        ],
        "workers": {"now": sample.workers, "needed": advice.workers, "utilization": advice.utilization,
                    "busy": {str(worker): share for worker, share in sample.busy.items()}},
        "processes": {"now": advice.now, "recommended": advice.processes},
        "reasons": [*advice.facts, advice.verdict, *advice.remarks],
    }  # fmt: skip


def recommendation_text(advice: Recommendation) -> str:
    """Return a recommendation with its reasoning, and the command that follows it."""
    rows = [
        [need.operator, f"{need.offered:.0f}", "-" if need.true_rate is None else f"{need.true_rate:.0f}",
         f"{need.utilization:.0%}", f"{need.workers:.2f}"]
        for need in advice.needs
    ]  # fmt: skip
    table = [table_text(["operator", "offered/s", "true rate", "utilization", "workers needed"], rows)] if rows else []
    return "\n".join([*table, *advice.facts, advice.verdict, *advice.remarks, *_what_to_do(advice)])


def _what_to_do(advice: Recommendation) -> list[str]:
    wanted, now = advice.processes, advice.now
    if wanted == now:
        return [f"recommended: {processes_text(now)}, as now"]
    head = f"recommended: {processes_text(wanted)} instead of {now}:"
    if wanted > now:
        return [head, f"  megaflow control add-workers {wanted - now} --balance"]
    newest_first = advice.sample.processes[: wanted - 1 : -1]
    return [head, *(f"  megaflow control remove-workers --id {workers[0]}" for workers in newest_first)]


def decision_record(decision: Decision) -> dict[str, Any]:
    """Return a decision for `--json`."""
    advice = decision.recommendation
    return {
        "action": decision.action,
        "processes": decision.processes,
        "why": decision.why,
        "recommendation": None if advice is None else recommendation_record(advice),
    }


def decision_text(decision: Decision) -> str:
    """Return a decision as a line; one to act with everything that it was made from.

    >>> decision_text(Decision("wait", 2, "bins are moving: nothing is judged by that"))
    'wait, 2 processes: bins are moving: nothing is judged by that'
    """
    head = f"{decision.action}, {processes_text(decision.processes)}: {decision.why}"
    advice = decision.recommendation
    if advice is None or decision.action not in ("grow", "shrink"):
        return head
    head = f"{decision.action} from {advice.now} to {processes_text(decision.processes)}: {decision.why}"
    return "\n".join([head, *(f"  {fact}" for fact in (*advice.facts, *advice.remarks))])


def change_record(change: Change) -> dict[str, Any]:
    """Return what came of a decision for `--json`."""
    return {
        "joins": list(change.joins),
        "left": list(change.left),
        "moved": change.moved,
        "failed": list(change.failed),
    }


def outcome_text(change: Change) -> str:
    """Return what came of a decision.

    >>> outcome_text(Change(failed=("too late",)))
    'not done: too late'
    """
    parts = [joined_text(join) for join in change.joins] + [removed_text(left) for left in change.left]
    if change.moved is not None and change.moved["steps"]:
        parts.append(moved_text(change.moved))
    parts += [f"not done: {reason}" for reason in change.failed]
    return "\n".join(parts)


def processes_text(count: int) -> str:
    """Return "1 process" or "2 processes"."""
    return "1 process" if count == 1 else f"{count} processes"
