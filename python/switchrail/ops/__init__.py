"""The ops: each one's contract, reference and plain-torch backend."""
