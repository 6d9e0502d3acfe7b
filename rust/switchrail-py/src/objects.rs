//! Stores the Python objects of registrations, and the instances that are built from them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::{PyTraverseError, PyVisit, intern, prelude::*};
use switchrail::{BackendId, RoutePlan};

use crate::backend::Registration;

/// The Python objects of registrations, by id. Belongs to exactly one pyclass, which forwards its
/// `__traverse__` and `__clear__` here.
///
/// The lock is held only for lookups and insertions. No Python code runs while it is held, and removed
/// objects are dropped after it is released.
#[derive(Default)]
pub struct Objects(Mutex<HashMap<BackendId, Py<PyAny>>>);

impl Objects {
    /// Stores an object.
    pub fn insert(&self, id: BackendId, object: Py<PyAny>) {
        let replaced = self.lock().insert(id, object);
        drop(replaced);
    }

    /// A new reference to an object.
    pub fn get(&self, py: Python<'_>, id: BackendId) -> Option<Py<PyAny>> {
        self.lock().get(&id).map(|object| object.clone_ref(py))
    }

    /// Removes objects and returns them for the caller to drop.
    #[must_use]
    pub fn remove(&self, ids: impl IntoIterator<Item = BackendId>) -> Vec<Py<PyAny>> {
        let mut objects = self.lock();
        ids.into_iter().filter_map(|id| objects.remove(&id)).collect()
    }

    /// Removes all objects and returns them for the caller to drop.
    #[must_use]
    pub fn take(&self) -> HashMap<BackendId, Py<PyAny>> {
        std::mem::take(&mut *self.lock())
    }

    /// Visits the objects for the garbage collector. If another thread holds the lock (only possible with
    /// free threading), it visits none; the objects then seem to be in use until the next collection.
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

/// The instances of a route plan's backends, and the bound `run` method of each. Belongs to a `BoundPlan`.
///
/// Being immutable, it has no `__clear__`. The collector breaks cycles through it at the instances' own
/// attributes.
pub struct Calls {
    instances: HashMap<BackendId, Py<PyAny>>,
    /// One method for each cell of the plan's tables.
    methods: Box<[Option<Py<PyAny>>]>,
    layers: usize,
}

impl Calls {
    /// Builds the instance of each backend from its registration and its Python object. Native backends have
    /// no such object, and get no instance.
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

    /// The bound method of a layer in the table that begins at `start`.
    #[inline]
    pub fn get(&self, start: usize, layer: usize) -> Option<&Py<PyAny>> {
        if layer >= self.layers {
            return None;
        }
        self.methods[start + layer].as_ref()
    }

    /// A new reference to the instance of one of the plan's backends; `None` for a native backend.
    pub fn instance(&self, py: Python<'_>, id: BackendId) -> Option<Py<PyAny>> {
        self.instances.get(&id).map(|instance| instance.clone_ref(py))
    }

    /// Visits the objects for the garbage collector.
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

/// The id of a layer object: its `layer_id`, or else its `layer_idx`. Other attributes are not read.
pub fn own_id<'py>(layer: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    for name in [intern!(layer.py(), "layer_id"), intern!(layer.py(), "layer_idx")] {
        if let Some(id) = layer.getattr_opt(name)?.filter(|id| !id.is_none()) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}
