"""Event time, above the operators with state: windows of streams whose records have timestamps.

windows        which windows there are, and what bounds they have
accumulators   what is made of the records of a window
windowed       the operator of a windowed stream
aggregations   what such a stream can be aggregated to
panes          one key's windows of one size: its panes
sessions       one key's sessions: its intervals
kept_windows   whether windows can go on with those of a store
"""
