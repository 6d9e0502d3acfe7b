//! Shared-memory primitives, which loom's models replace when loom checks the commit protocol.

#[cfg(not(loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use std::sync::{Arc, PoisonError};

/// An `Arc` that can be replaced, with wait-free reads.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct Cell<T>(arc_swap::ArcSwap<T>);

#[cfg(not(loom))]
impl<T> Cell<T> {
    pub fn new(value: T) -> Self {
        Self(arc_swap::ArcSwap::from_pointee(value))
    }

    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    pub fn store(&self, value: Arc<T>) {
        self.0.store(value);
    }
}

/// Loom's model of the cell: each load and each store is one step, between which other threads may run.
#[cfg(loom)]
#[derive(Debug)]
pub(super) struct Cell<T>(Mutex<Arc<T>>);

#[cfg(loom)]
impl<T> Cell<T> {
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Arc::new(value)))
    }

    pub fn load(&self) -> Arc<T> {
        Arc::clone(&lock(&self.0))
    }

    pub fn store(&self, value: Arc<T>) {
        *lock(&self.0) = value;
    }
}

/// Locks a mutex and ignores poisoning: a panic can't leave the data that these mutexes guard inconsistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
