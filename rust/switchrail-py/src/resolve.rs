//! Mirror of the core's `resolve` and `preferences`.

use std::collections::BTreeMap;

use pyo3::{
    prelude::*,
    types::{PySequence, PyString},
};
use switchrail::{HeadCount, Load, Preferences};

use crate::{
    backend::Heads,
    discovery::Discovery,
    errors::raise,
    exception::{argument_error, let_pass_interrupts},
    json,
    mirror::mirror,
    op::{DeviceForm, parse},
    text::{Text, described},
};

/// A `Query` in the form in which `switchrail.runtime` passes it, with the preferences, installed packages and
/// measurements for its decision.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Query {
    op: String,
    phase: String,
    device: DeviceForm,
    dtype: String,
    state_dtype: Option<String>,
    head_size: Option<Heads>,
    page_size: Option<u32>,
    state_layout: Option<String>,
    features: Vec<String>,
    preferences: BTreeMap<String, String>,
    installed: Py<Discovery>,
    heads: Option<(u32, u32)>,
    no_decay: bool,
    measurements: Vec<Measurement>,
}

/// A `Measurement` in the form in which `switchrail.times` passes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Measurement {
    op: String,
    phase: String,
    dtype: String,
    head_size: Option<Heads>,
    heads: Option<(u32, u32)>,
    no_decay: bool,
    samples: Vec<Sample>,
}

/// A `Sample` in the form in which `switchrail.times` passes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Sample {
    rows: u64,
    length: u64,
    nanoseconds: BTreeMap<String, u64>,
}

impl From<Sample> for switchrail::Sample {
    fn from(sample: Sample) -> Self {
        let (rows, length) = (sample.rows, sample.length);
        Self {
            load: Load { rows, length },
            nanoseconds: sample.nanoseconds,
        }
    }
}

impl Measurement {
    fn into_core(self) -> PyResult<switchrail::Measurement> {
        Ok(switchrail::Measurement {
            op: parse(&self.op)?,
            phase: parse(&self.phase)?,
            dtype: parse(&self.dtype)?,
            head_size: self.head_size.map(Into::into),
            heads: self.heads.map(|(q, v)| HeadCount(q, v)),
            no_decay: self.no_decay,
            samples: self.samples.into_iter().map(Into::into).collect(),
        })
    }
}

/// Converts measurements to the core's form.
pub fn measurements(given: Vec<Measurement>) -> PyResult<Vec<switchrail::Measurement>> {
    given.into_iter().map(Measurement::into_core).collect()
}

impl Query {
    /// Resolves the query against a snapshot.
    pub fn resolve(self, snapshot: &switchrail::Snapshot) -> PyResult<Decision> {
        let mut query = switchrail::Query {
            op: parse(&self.op)?,
            phase: parse(&self.phase)?,
            device: self.device.into_core()?,
            dtype: parse(&self.dtype)?,
            state_dtype: self.state_dtype.as_deref().map(parse).transpose()?,
            head_size: self.head_size.map(Into::into),
            page_size: self.page_size,
            state_layout: self.state_layout,
            features: self.features.into_iter().collect(),
            heads: self.heads.map(|(q, v)| HeadCount(q, v)),
            no_decay: self.no_decay,
            window: None,
            measured: Vec::new(),
        };
        query.measured = switchrail::Measurement::of(&query, &measurements(self.measurements)?);
        let preferences = preferences(self.preferences, snapshot)?;
        snapshot
            .resolve(&query, &preferences, &self.installed.get().0.packages())
            .map(Decision)
            .map_err(raise)
    }
}

/// For each sequence of a batch, the number of rows and the number of cached tokens after the call. Without
/// `kv_seqlens` both numbers are equal.
pub fn sequences(
    seqlens: &Bound<'_, PyAny>,
    kv_seqlens: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<(u64, u64)>> {
    let rows: Vec<u64> = lengths("seqlens", seqlens)?;
    let Some(kv_seqlens) = kv_seqlens else {
        return Ok(rows.into_iter().map(|rows| (rows, rows)).collect());
    };
    let cached = lengths("kv_seqlens", kv_seqlens)?;
    if rows.len() != cached.len() {
        let valid = format!("{}, as many as seqlens", rows.len());
        let message = format!("kv_seqlens has {} numbers; valid: {valid}", cached.len());
        return Err(argument_error(Some("kv_seqlens"), kv_seqlens, message));
    }
    Ok(rows.into_iter().zip(cached).collect())
}

/// The core's `Load` of a batch, as (rows, length).
#[pyfunction]
#[pyo3(signature = (op, seqlens, kv_seqlens=None))]
pub fn load_of(
    op: Text,
    seqlens: &Bound<'_, PyAny>,
    kv_seqlens: Option<&Bound<'_, PyAny>>,
) -> PyResult<(u64, u64)> {
    let load = Load::of(parse(&op.0)?, sequences(seqlens, kv_seqlens)?);
    Ok((load.rows, load.length))
}

fn lengths(argument: &str, given: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    given.extract().or_else(|error| {
        let_pass_interrupts(given.py(), error)?;
        let items = given
            .cast::<PySequence>()
            .ok()
            .filter(|_| !given.is_instance_of::<PyString>());
        let each = items
            .and_then(|items| items.try_iter().ok())
            .into_iter()
            .flatten();
        let wrong = each
            .flatten()
            .enumerate()
            .find(|(_, item)| item.extract::<u64>().is_err());
        let (argument, found, valid) = match wrong {
            Some((index, item)) => (format!("{argument}[{index}]"), item, "a number of tokens"),
            None => (
                argument.to_owned(),
                given.clone(),
                "numbers of tokens, one per sequence",
            ),
        };
        let message = format!("{argument} is {}; valid: {valid}", described(&found)?);
        Err(argument_error(Some(&argument), &found, message))
    })
}

fn preferences(pairs: BTreeMap<String, String>, snapshot: &switchrail::Snapshot) -> PyResult<Preferences> {
    let preferences = Preferences::parse(pairs).map_err(raise)?;
    preferences.check(snapshot).map_err(raise)?;
    Ok(preferences)
}

/// All valid preference keys.
#[pyfunction]
pub fn preference_keys() -> Vec<String> {
    switchrail::PreferenceKey::all()
        .map(|key| key.to_string())
        .collect()
}

mirror! {
    /// The backends that serve a query, and the reasons against the op's other registrations.
    Decision(switchrail::Decision) {
        /// Version of the registry's snapshot that the decision is based on.
        #[getter]
        fn version(&self) -> u64 {
            self.0.version
        }

        #[getter]
        fn op(&self) -> &'static str {
            self.0.query.op.name()
        }

        #[getter]
        fn phase(&self) -> &'static str {
            self.0.query.phase.name()
        }

        /// The query.
        #[getter]
        fn query<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
            json::dump(py, &self.0.query)
        }

        /// Name of the chosen backend.
        #[getter]
        fn chosen(&self) -> &str {
            &self.0.chosen.name
        }

        /// Description of the chosen backend's origin for a reader.
        #[getter]
        fn origin(&self) -> String {
            self.0.chosen.origin.to_string()
        }

        /// Name of the backend for a batch. `seqlens` and `kv_seqlens` are as in `BoundPlan.at`.
        #[pyo3(signature = (seqlens, kv_seqlens=None))]
        fn at(&self, seqlens: &Bound<'_, PyAny>, kv_seqlens: Option<&Bound<'_, PyAny>>) -> PyResult<&str> {
            let load = Load::of(self.0.query.op, sequences(seqlens, kv_seqlens)?);
            Ok(&self.0.at(load).name)
        }

        /// The backends that serve calls, each with its origin, starting with the chosen one.
        #[getter]
        fn serving(&self) -> Vec<(&str, String)> {
            let each = |backend: &'_ switchrail::BackendRef| backend.origin.to_string();
            self.0.serving().iter().map(|backend| (backend.name.as_str(), each(backend))).collect()
        }

        /// The reason for the choice, for a reader.
        #[getter]
        fn because(&self) -> String {
            self.0.because.to_string()
        }

        /// All registrations of the op that don't serve: best first, overridden ones last.
        #[getter]
        fn rejected(&self) -> Vec<Rejection> {
            self.0.rejected.iter().cloned().map(Rejection).collect()
        }
    }
}

mirror! {
    /// A registration that doesn't serve, and the reasons.
    Rejection(switchrail::Rejection) {
        #[getter]
        fn name(&self) -> &str {
            &self.0.backend.name
        }

        /// Description of the backend's origin for a reader.
        #[getter]
        fn origin(&self) -> String {
            self.0.backend.origin.to_string()
        }

        /// All reasons, for a reader; `to_dict` has them as data.
        #[getter]
        fn reasons(&self) -> Vec<String> {
            self.0.reasons.iter().map(ToString::to_string).collect()
        }
    }
}
