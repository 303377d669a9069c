"""Running counts of words, by workers whose number grows while they count, and which share the bins.

python apps/rescaling_wordcount.py [ROUNDS [WORKERS]] [-w W] [-n PROCESSES -p PROCESS [-j 0 --nn ADDRESSES]]

In the middle of the middle round worker 0 waits until there are WORKERS. The program is that of section 4.2 of
Selvatici's report on rescaling timely dataflow: worker 0 sends a Bootstrap and moves bins from inside its wait loop,
which holds the round open. Here the engine has sent the routing to the newcomers by then. So the Bootstrap changes
nothing and may be left out, and the bins may move as soon as `worker.peer_ids` lists their new owners.
"""

from collections import Counter
from collections.abc import Callable

from apps.draws import numbers
from megaflow import Bootstrap, Map
from megaflow.timely import InputHandle, ProbeHandle, Worker, execute_from_args

BINS = 64
LINES, WORDS = 20, 10  # in a round, in a line


def text(rounds: int) -> list[list[str]]:
    """Draw the lines of each round."""
    drawn = numbers()
    return [
        [" ".join(f"word{next(drawn) % 100}" for _ in range(WORDS)) for _ in range(LINES)] for _ in range(rounds)
    ]


def count(word: str, one: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
    """Add one; the fold of the stateful operator."""
    more = (total or 0) + one
    return more, [(word, more)]


def main(worker: Worker) -> Counter[str]:
    """Return the latest counts that came out on this worker."""
    rounds = int(worker.args[0]) if worker.args else 10
    wanted = int(worker.args[1]) if len(worker.args) > 1 else worker.peers
    lines: InputHandle[str] = InputHandle()
    control: InputHandle[Bootstrap | Map] = InputHandle()
    probe, latest = ProbeHandle(), Counter[str]()
    with worker.dataflow("wordcount") as scope:
        (
            scope.input_from(lines)
            .exchange(len)
            .flat_map(lambda line: [(word, 1) for word in line.split()])
            .stateful_state_machine(count, control=scope.input_from(control), bins=BINS)
            .inspect(lambda output: latest.update({output[0]: output[1] - latest[output[0]]}))
            .probe_with(probe)
        )
    known = set(worker.peer_ids)

    def wait(condition: Callable[[], bool]) -> None:
        """Step while the condition holds; on worker 0, handle workers that join meanwhile."""
        while condition():
            worker.step_or_park(0.1)
            new = [peer for peer in worker.peer_ids if peer not in known]
            known.update(new)
            if new and worker.index == 0:
                owners = worker.peer_ids
                share = Map(tuple(owners[bin % len(owners)] for bin in range(BINS)))
                control.send_batch([*(Bootstrap(0, peer) for peer in new), share])
                control.flush()

    if not worker.bootstrap():  # one that joins later only lends a hand
        for number, drawn in enumerate(text(rounds)):
            if worker.index == 0:
                lines.send_batch(drawn[::2])
                if number == rounds // 2:
                    wait(lambda: worker.peers < wanted)
                lines.send_batch(drawn[1::2])
            for handle in (lines, control):
                handle.advance_to(number + 1)
            wait(lambda: probe.less_than(number + 1))  # noqa: B023 (called in this round only)
    for handle in (lines, control):
        handle.close()
    worker.step_while(lambda: not probe.done())
    print("".join(f"worker {worker.index}: {word} {total}\n" for word, total in latest.items()), end="", flush=True)
    return latest


if __name__ == "__main__":
    execute_from_args(main)
