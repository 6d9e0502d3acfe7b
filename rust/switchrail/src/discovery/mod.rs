//! Finds the distributions on a path and the plugins in them.
