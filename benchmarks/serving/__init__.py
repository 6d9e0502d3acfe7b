"""How fast the engine serves, and its peers; `python -m benchmarks.serving --help` says how."""
