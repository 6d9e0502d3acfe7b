"""Random calls of ops for tests, tuner and benchmarks, made by the `inputs.py` of each op."""
