"""Every worker greets every worker, over a channel of messages: the communication layer alone, without a dataflow.

python apps/comm_hello.py [-w WORKERS] [-n PROCESSES -p PROCESS]
"""

from megaflow.timely import ChannelAllocator, initialize_from_args


def main(allocator: ChannelAllocator) -> int:
    """Return this worker's index, once all have greeted it."""
    print(f"worker {allocator.index} of {allocator.peers} started\n", end="", flush=True)
    pushers, puller = allocator.allocate()
    for index, pusher in enumerate(pushers):
        pusher.push(f"hello, {index}")
        pusher.done()
    received = 0
    while received < allocator.peers:  # count the messages: no call reports that all have come
        message = puller.pull()
        if message is None:
            allocator.park()
        else:
            print(f"worker {allocator.index}: received: <{message}>\n", end="", flush=True)
            received += 1
    return allocator.index


if __name__ == "__main__":
    for result in initialize_from_args(main):
        print(f"result: {result}", flush=True)
