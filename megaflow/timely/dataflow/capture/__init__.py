"""Capture and replay of streams.

capture      keeps the events of a stream: in memory, in a file, in a socket
replay       turns captured streams into a stream again
event_link, event_format    events in memory, and as bytes
"""
