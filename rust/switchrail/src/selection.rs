//! Decides which of the discovered plugins may be loaded.
