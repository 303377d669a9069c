"""The command line: the only package that prints.

main                `megaflow run`, `megaflow graph`, and the group `megaflow control`
steering, scaling   the commands of `megaflow control`
drawing             the pictures of `megaflow graph`
options             what the commands share
text, json_records  what they print
"""
