"""Bridges: Switchrail's dispatch within models and engines of other libraries."""
