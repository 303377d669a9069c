"""Runs wherever a job is steered from: questions, commands, plans and policies."""
