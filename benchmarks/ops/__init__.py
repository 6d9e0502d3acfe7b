"""Times the ops' backends and other libraries' functions (peers); see `python -m benchmarks.ops --help`."""
