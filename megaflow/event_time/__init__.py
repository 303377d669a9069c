"""Event time, above the operators with state: windows of streams whose records have timestamps.

windows        the kinds of windows, and their bounds
accumulators   accumulations of the records of a window
windowed       the operator of a windowed stream
aggregations   the aggregates of such a stream
panes          one key's windows of one size: its panes
sessions       one key's sessions: its intervals
kept_windows   whether a program can continue with the windows of a store
"""
