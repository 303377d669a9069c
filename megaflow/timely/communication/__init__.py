"""Bytes and channels between workers: this layer moves messages and knows no time.

allocator, channel    a worker's interface to its transport; the purposes and lanes of messages
local             the transport among the threads of one process
tcp_fabric        the transport among processes; tcp_allocator is one worker's end of it
tcp, poller, wire    sockets, the selector that polls them, and frames
address           addresses as users write them
acceptor, handshake, secret    connections until each side has proved that it knows the secret
rendezvous, peers    how the processes of a cluster connect, and the standing of each
role_handlers, client    connections that are not peers, at the port and at the other end
codec/            values to bytes and back
"""
