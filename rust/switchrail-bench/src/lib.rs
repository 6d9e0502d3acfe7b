//! Empty: the core's benchmarks are in `benches`.
