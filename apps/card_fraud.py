"""Fraud rules per card over payments in CSV, by several features of a card's past. Payments must come in order.

    megaflow run apps/card_fraud.py --lines payments.csv --processes 2

The first line names the columns, `id,card,seconds,cents,country`; the payments of a card are in one file, oldest first.
An output is `(id, card, rule)`, one for each rule that a payment breaks:

    burst      the fifth payment within BURST_SECONDS, or a later one
    large      more than LARGE times the mean of the previous payments, if there are at least three
    abroad     from another country than the previous one, less than TRAVEL_SECONDS ago
    tested     TESTED times as much as the previous one, which was of less than a dollar: a test of the card
"""

from typing import Any

from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

BURST, BURST_SECONDS = 5, 600
LARGE, KNOWN = 10, 3
TRAVEL_SECONDS = 3600
TESTED, SMALL_CENTS = 100, 100

Payment = tuple[str, int, int, str]  # id, seconds, cents, country
Card = tuple[int, int, tuple[int, ...], Payment | None]  # payments, their cents, seconds of the latest ones, the last


def judge(card: str, payment: Payment, state: Card | None) -> tuple[Card, list[tuple[str, str, str]]]:
    """Return the card's features after a payment, and the rules that the payment breaks."""
    count, total, times, last = state or (0, 0, (), None)
    name, seconds, cents, country = payment
    times = (*(each for each in times if seconds - each < BURST_SECONDS), seconds)[-BURST:]
    broken = []
    if len(times) == BURST:
        broken.append("burst")
    if count >= KNOWN and cents * count > LARGE * total:
        broken.append("large")
    if last is not None and country != last[3] and seconds - last[1] < TRAVEL_SECONDS:
        broken.append("abroad")
    if last is not None and last[2] < SMALL_CENTS and cents >= TESTED * last[2]:
        broken.append("tested")
    return (count + 1, total + cents, times, payment), [(name, card, rule) for rule in broken]


def of_card(row: dict[str, str]) -> tuple[str, Payment]:
    """Return the card of a row, and its payment."""
    return row["card"], (row["id"], int(row["seconds"]), int(row["cents"]), row["country"])


def dataflow(flow: Flow) -> Stream[Any]:
    return flow.csv().map(of_card).stateful_state_machine(judge)
