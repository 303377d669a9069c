"""Running counts of the words in a stream of lines."""


def count(word, n, total):                   # key, value, state (None at first)
    total = (total or 0) + n
    return total, [(word, total)]            # new state (None: forget the key), outputs


def dataflow(flow):
    return (flow.lines()
                .flat_map(lambda line: [(word, 1) for word in line.split()])
                .stateful_state_machine(count))
