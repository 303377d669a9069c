"""Runs wherever a job is steered from: questions, commands, plans and policies.

conversation        asks the coordinator, wherever it is by then
commands            questions, commands, and plans carried out
move_request, planner, load_balance    from a request to a table, and from a table to steps
autoscale, rate_sample, ds2, hysteresis    sample, recommend, decide, carry out
"""
