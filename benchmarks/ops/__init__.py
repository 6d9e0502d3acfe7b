"""Times of the ops' backends and of their peers."""
