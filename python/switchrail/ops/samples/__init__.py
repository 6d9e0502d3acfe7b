"""Generators of random numbers, batches and calls, which the `inputs.py` of all ops share.

Tests, the tuner and the benchmarks call ops with these samples.
"""
