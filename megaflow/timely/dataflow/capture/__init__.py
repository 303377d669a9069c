"""Capture and replay of streams.

capture      keeps what a stream carries: in memory, in a file, in a socket
replay       captured streams as a stream again
event_link, event_format    events in memory, and as bytes
"""
