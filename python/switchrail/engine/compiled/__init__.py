"""Decoder layers that torch.compile has compiled, a kind at a time."""
