"""Kernels of paged softmax attention."""
