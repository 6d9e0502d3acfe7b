"""Random samples of calls, for the conformance suite, the tuner, the benchmarks and tests.

Each op's `inputs.py` makes its samples with these parts.
"""
