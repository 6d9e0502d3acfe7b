"""The parts of peers that run in their own process; they import nothing from this repository."""
