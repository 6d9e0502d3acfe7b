"""Triton kernels for switchrail, registered like any vendor's plugin."""
