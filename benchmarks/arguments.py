"""The command line of benchmarks that run as `python -m benchmarks.NAME`."""

import argparse


def make_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring as it is."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
