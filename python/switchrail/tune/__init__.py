"""Times backends on a device, so that route plans can choose the fastest; see `switchrail.times`."""

from switchrail.tune.grid import SIZES, Batch, Size, batches, sizes_of
from switchrail.tune.timing import ATTEMPTS, Timing, machine, tune, way_of

__all__ = ["ATTEMPTS", "SIZES", "Batch", "Size", "Timing", "batches", "machine", "sizes_of", "tune", "way_of"]
