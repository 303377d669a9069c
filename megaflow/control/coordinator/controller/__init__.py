"""The coordinator's decisions, and the shell around them.

controller      the decisions, a state machine of values
drain_detector  whether everything that was read has been processed
lookups         clients' questions for the state of a key, which the key's owner answers
job_status      the status report, and the state that the next coordinator receives
event_feed      what has happened, for those who watch the job
driver          the shell: sockets, the clock, and the handle of the control stream
"""
