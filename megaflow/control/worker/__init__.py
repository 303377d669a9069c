"""Runs in every worker of a job: what it tells the coordinator, and who answers on its port."""
