"""Steering in every worker of a job.

agent                reports to the coordinator; tries the contents of bins before they move
connection_handlers  the connections of the launcher and the clients
"""
