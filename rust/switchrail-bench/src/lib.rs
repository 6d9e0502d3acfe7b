//! Empty; the benchmarks of the core are in `benches`.
