"""Decoder layers compiled by torch.compile, one kind at a time."""
