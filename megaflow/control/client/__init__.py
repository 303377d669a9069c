"""Client side of steering, in each process that steers a job: questions, commands, plans and policies.

conversation        asks the coordinator, even after it has moved
commands            questions, commands, and the execution of plans
move_request, planner, load_balance    from a request to a table, and from a table to steps
autoscale, rate_sample, ds2, hysteresis    sample, recommend, decide, carry out
"""
