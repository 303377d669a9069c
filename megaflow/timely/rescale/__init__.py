"""Membership changes: processes that join and leave a running cluster.

messages          all that workers and processes say to each other about it
The coordinating worker:
  change_queue    the one queue of requests, where each is admitted or refused
  sequencer       which change is under way, and what it waits for; change_stages has the stages of each kind
  handover        how another worker comes to coordinate
  founders        which membership founded which dataflow
Every worker:
  member          follows the coordinator's word, and says when it has; host: what it needs of its worker
  followed_change     the change under way: who joins or leaves, and how far it is
  grants          capabilities for workers that have joined
  bootstrap_server    hands joining workers the progress state
  leaver          a worker on its way out
A process on its way in:
  join_client, join_server    asks to join; the port that is asked
  joiner          from the first connection until it may take part
  catch_up        the progress that was made before it came
"""
