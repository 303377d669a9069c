"""A worker process: from the lines through the dataflow to the launcher.

process/    the process, the program that it loads, and the dataflow that it runs
reading/    from the splits and partitions of the inputs to batches stamped with epochs
writing/    from the ends of the dataflow to the launcher and to sinks
snapshots/  the worker's state as it is restored and saved
control/    its reports to the coordinator, and the answers on its port
"""
