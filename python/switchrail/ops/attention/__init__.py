"""Causal softmax attention, multi-head or grouped-query, over a paged cache."""
