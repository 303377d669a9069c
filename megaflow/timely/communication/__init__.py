"""Bytes and channels between workers: this floor moves messages and knows no time.

allocator, channel    what a worker asks of its transport; what a message is for, and the lane it travels on
local             the transport among the threads of one process
tcp_fabric        the transport among processes; tcp_allocator is one worker's end of it
tcp, poller, wire    sockets, the selector that polls them, and frames
acceptor, handshake, secret    connections until each side has proved what it is
waiting_room, complaints    who is at the door and has to make room; what is logged of those who were shut out
rendezvous, peers    how the processes of a cluster meet, and how each stands
role_handlers, client    connections that are not peers, on the port and at the other end
codec/            values to bytes and back
"""
