"""The parts of compiled decoder layers: operations in plain torch, torch operators and opaque modules."""
