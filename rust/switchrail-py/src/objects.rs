//! Python objects: the one place that stores and calls them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::{PyTraverseError, PyVisit, intern, prelude::*};
use switchrail::{BackendId, RoutePlan};

use crate::backend::Registration;

/// Objects by the id of the registration that they stand behind. It belongs to exactly one pyclass, which forwards its `__traverse__` and `__clear__` here.
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

/// The instances of the backends in a route plan, and the bound method of each, `run`. It belongs to `BoundPlan`.
///
/// Nothing in it changes, so it has no `__clear__`: a cycle through it is broken in the instance's own attributes.
pub struct Calls {
    instances: HashMap<BackendId, Py<PyAny>>,
    /// Laid out as the plan's cells are.
    methods: Box<[Option<Py<PyAny>>]>,
    layers: usize,
}

impl Calls {
    /// Has each backend of a plan constructed, from its registration and the object behind it; native ones have none.
    pub fn build(
        plan: &RoutePlan,
        objects: Vec<Option<Py<PyAny>>>,
        build: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let mut instances = HashMap::new();
        let mut methods = HashMap::new();
        for (registration, object) in plan.backends().iter().zip(objects) {
            let Some(object) = object else { continue };
            let instance = build.call1((Registration(Arc::clone(registration)), object))?;
            methods.insert(registration.id, instance.getattr("run")?);
            instances.insert(registration.id, instance.unbind());
        }
        let method = |cell: &Option<BackendId>| Some(methods.get(&(*cell)?)?.clone().unbind());
        Ok(Self {
            instances,
            methods: plan.cells().iter().map(method).collect(),
            layers: plan.layout().layers().len(),
        })
    }

    /// The bound method of a layer, in the table that begins at `start`.
    #[inline]
    pub fn get(&self, start: usize, layer: usize) -> Option<&Py<PyAny>> {
        if layer >= self.layers {
            return None;
        }
        self.methods[start + layer].as_ref()
    }

    /// Another reference to the instance of a backend in the plan; none where it is native.
    pub fn instance(&self, py: Python<'_>, id: BackendId) -> Option<Py<PyAny>> {
        self.instances.get(&id).map(|instance| instance.clone_ref(py))
    }

    /// Shows the objects to the garbage collector.
    pub fn traverse(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.instances
            .values()
            .try_for_each(|instance| visit.call(instance))?;
        self.methods
            .iter()
            .flatten()
            .try_for_each(|call| visit.call(call))
    }
}

/// A layer object's own id: its `layer_id`, else its `layer_idx`. Nothing else of it is looked at.
pub fn own_id<'py>(layer: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    for name in [intern!(layer.py(), "layer_id"), intern!(layer.py(), "layer_idx")] {
        if let Some(id) = layer.getattr_opt(name)?.filter(|id| !id.is_none()) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}
