"""Fraud rules per card by the time of its payments, which come out of order: event timers put them in order.

    megaflow run apps/card_fraud_timed.py --lines 'payments/*.jsonl'

Payments are JSON lines, `{"id": 7, "card": "c1", "seconds": 1700000000, "country": "CH"}`. Those of one card have
different seconds. In each file, a payment may come OUT_OF_ORDER seconds behind later ones. Each payment waits, as the
payload of a timer, until no earlier one can come. An output is `(id, card, rule)`, for each rule that it breaks:

    burst      it is the third within BURST_SECONDS, or a later one
    abroad     it is from another country than the previous one, less than TRAVEL_SECONDS ago
    late       it came too late to be judged, and does not count for others
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from megaflow import Timers
from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

BURST, BURST_SECONDS = 3, 60
TRAVEL_SECONDS = 3600
OUT_OF_ORDER = 30  # seconds
CAME, DUE, FORGET = "came", "due", "forget"  # what becomes of a payment: the last two are brought by timers


class Payment(NamedTuple):
    id: int
    seconds: int
    country: str


Recent = list[Payment]  # of one card, by time: those less than TRAVEL_SECONDS before the last one


def judge(
    card: str, time: int, events: Iterable[tuple[str, Payment]], recent: Recent | None, timers: Timers
) -> tuple[Recent | None, list[tuple[int, str, str]]]:
    """Let payments wait for their time, and judge those whose time has come."""
    alerts = []
    for what, payment in events:
        if what == CAME and timers.watermark is not None and payment.seconds < timers.watermark:
            alerts.append((payment.id, card, "late"))
        elif what == CAME:
            timers.at_event(payment.seconds, (DUE, payment))
        elif what == DUE:
            recent = [each for each in recent or () if payment.seconds - each.seconds < TRAVEL_SECONDS]
            if recent and recent[-1].country != payment.country:
                alerts.append((payment.id, card, "abroad"))
            recent.append(payment)
            if sum(payment.seconds - each.seconds < BURST_SECONDS for each in recent) >= BURST:
                alerts.append((payment.id, card, "burst"))
            timers.at_event(payment.seconds + TRAVEL_SECONDS, (FORGET, payment))
        elif recent and recent[-1] == payment:  # none has come since
            recent = None
    return recent, alerts


def of_card(line: dict[str, Any]) -> tuple[str, tuple[str, Payment]]:
    """Return the card of a payment, and a note that it has come."""
    return line["card"], (CAME, Payment(line["id"], line["seconds"], line["country"]))


def dataflow(flow: Flow) -> Stream[Any]:
    payments = flow.json_lines().event_time(lambda line: line["seconds"], OUT_OF_ORDER)
    return payments.map(of_card).stateful_unary(judge)
