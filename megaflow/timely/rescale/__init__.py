"""Membership changes: processes that join and leave a running cluster.

messages          every message about membership between workers and between processes
On the coordinating worker:
  change_queue    the one queue of requests, which admits or refuses each
  sequencer       the change that is under way, and what it waits for; change_stages has the stages of each kind
  handover        the transfer of the coordinator's role to another worker
  founders        which membership founded which dataflow
On every worker:
  member          carries out the coordinator's messages and reports back; host: what it needs of its worker
  followed_change     the change under way: the workers that join or leave, and its progress
  grants          capabilities for workers that have joined
  bootstrap_server    sends the progress state to joining workers
  leaver          a leaving worker
For a joining process:
  join_door       the request to join, and the port that receives it
  joiner          a joining worker, from its first connection until it may take part
  catch_up        the progress that the cluster made before the worker joined
"""
