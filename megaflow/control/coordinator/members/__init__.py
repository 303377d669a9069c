"""Processes that join and leave.

joins                processes that are joining, and when the coordinator stops waiting for them
membership_requests  requests to add or remove processes, or to give tables
"""
