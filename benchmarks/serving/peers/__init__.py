"""The part of a peer that runs in a process of its own; it imports nothing of this repository."""
