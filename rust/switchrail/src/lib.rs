//! Plugin discovery, backend registry and layer routing for attention kernels.
