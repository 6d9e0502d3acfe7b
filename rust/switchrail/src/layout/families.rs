//! The families, and how each names its layers.
