"""Stateless operators in a row, run as one generated function.

stage        what a stateless operator does to a batch, and how it is run alone or in a group
partition    which operators become one, decided from the dataflow's shape
codegen      the text of the one function
apply        compiles it and puts it in the operators' place, as the dataflow starts
"""
