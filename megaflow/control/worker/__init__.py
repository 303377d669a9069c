"""Runs in every worker of a job: what it tells the coordinator, and who answers on its port.

agent               reports to the coordinator; tries what is in bins that are to move
port_roles          the launcher's, the clients' and Spark's connections
"""
