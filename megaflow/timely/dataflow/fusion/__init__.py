"""Stateless operators, alone or in a row, each run as one generated function.

stage        what a stateless operator does to a batch, and how its function runs
partition    which operators become one, decided from the dataflow's shape
codegen      writes the text of the one function
apply        compiles it and gives it to the operators when the dataflow starts
"""
