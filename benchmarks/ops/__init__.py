"""Times of the ops' backends and of other libraries' functions (peers)."""
