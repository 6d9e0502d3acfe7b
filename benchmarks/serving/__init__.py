"""Throughput and latency of the engine and its peers; see `python -m benchmarks.serving --help`."""
