//! Python objects, by the id of the registration that they stand behind: the one place that stores and calls them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{PyTraverseError, PyVisit, prelude::*};
use switchrail::BackendId;

/// Objects by id. It belongs to exactly one pyclass, which forwards its `__traverse__` and `__clear__` here.
///
/// The lock is held for look-ups and insertions alone: no Python code runs under it, and what is removed is dropped
/// after it is released.
#[derive(Default)]
pub struct Objects(Mutex<HashMap<BackendId, Py<PyAny>>>);

impl Objects {
    /// Keeps an object.
    pub fn insert(&self, id: BackendId, object: Py<PyAny>) {
        let replaced = self.lock().insert(id, object);
        drop(replaced);
    }

    /// Another reference to an object.
    pub fn get(&self, py: Python<'_>, id: BackendId) -> Option<Py<PyAny>> {
        self.lock().get(&id).map(|object| object.clone_ref(py))
    }

    /// Takes objects out. The caller drops them.
    #[must_use]
    pub fn remove(&self, ids: impl IntoIterator<Item = BackendId>) -> Vec<Py<PyAny>> {
        let mut objects = self.lock();
        ids.into_iter().filter_map(|id| objects.remove(&id)).collect()
    }

    /// Takes everything out. The caller drops it.
    #[must_use]
    pub fn take(&self) -> HashMap<BackendId, Py<PyAny>> {
        std::mem::take(&mut *self.lock())
    }

    /// Shows the objects to the garbage collector. Where another thread holds the lock (which takes free threading) it
    /// shows none: they then count as in use until the next collection.
    pub fn traverse(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.0.try_lock() {
            Ok(objects) => objects.values().try_for_each(|object| visit.call(object)),
            Err(_) => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BackendId, Py<PyAny>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
