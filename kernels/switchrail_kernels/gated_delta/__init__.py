"""Kernels of the gated delta rule."""
