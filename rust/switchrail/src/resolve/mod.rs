//! Decides which backend serves a query, and explains why the others don't.

mod classes;
mod error;
mod load;
mod measured;
mod reason;

use std::{cmp::Reverse, collections::BTreeSet, fmt, sync::Arc};

use serde::{Deserialize, Serialize};

pub use classes::{Classes, ClassesError};
pub use error::ResolveError;
pub use load::Load;
pub use measured::{HeadCount, Measurement, Sample};
pub use reason::{Reason, Rejection};

use crate::{
    BackendId, Device, DeviceSupport, Dtype, HeadSize, Op, Origin, Packages, Phase, PreferenceKey,
    PreferenceOrder, Preferences, Registration, Schema, Snapshot, UnknownName, registry::active,
};
use classes::Verdict;
use measured::Microseconds;
use reason::list;

/// The requirements on a backend.
///
/// Op, phase, device and dtype are required. Other fields may be `None`, which means no requirement.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// The op.
    pub op: Op,
    /// The phase.
    pub phase: Phase,
    /// The device.
    pub device: Device,
    /// Dtype of the activations.
    pub dtype: Dtype,
    /// Dtype of the recurrent state.
    #[serde(default)]
    pub state_dtype: Option<Dtype>,
    /// Head sizes.
    #[serde(default)]
    pub head_size: Option<HeadSize>,
    /// Page size in tokens.
    #[serde(default)]
    pub page_size: Option<u32>,
    /// Axis order of the recurrent state.
    #[serde(default)]
    pub state_layout: Option<String>,
    /// Optional features that the backend must have.
    #[serde(default)]
    pub features: BTreeSet<String>,
    /// Numbers of heads. They select the times measured with the nearest numbers, and reject no backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<HeadCount>,
    /// Whether the gates never decay. If so, the times measured without decay are used. Rejects no backend.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_decay: bool,
    /// Largest number of tokens that a row attends to. Times are measured without a window, so the times of
    /// calls with this length are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Times of the queried calls, measured on the device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Sample>,
}

impl Query {
    /// A query with the required fields only.
    #[must_use]
    pub const fn new(op: Op, phase: Phase, device: Device, dtype: Dtype) -> Self {
        Self {
            op,
            phase,
            device,
            dtype,
            state_dtype: None,
            head_size: None,
            page_size: None,
            state_layout: None,
            features: BTreeSet::new(),
            heads: None,
            no_decay: false,
            window: None,
            measured: Vec::new(),
        }
    }
}

/// Displays as `gated_delta decode on cuda 9.0 in bfloat16, head size 128, ...`.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} on {} in {}",
            self.op, self.phase, self.device, self.dtype
        )?;
        if let Some(dtype) = self.state_dtype {
            write!(f, ", state in {dtype}")?;
        }
        if let Some(size) = self.head_size {
            write!(f, ", head size {size}")?;
        }
        if let Some(size) = self.page_size {
            write!(f, ", page size {size}")?;
        }
        if let Some(layout) = &self.state_layout {
            write!(f, ", state layout {layout}")?;
        }
        if !self.features.is_empty() {
            write!(f, ", with {}", list(&self.features))?;
        }
        Ok(())
    }
}

/// A reference to a registration, with the data that readers need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendRef {
    /// The registration.
    pub id: BackendId,
    /// Its name.
    pub name: String,
    /// The origin of the registration.
    pub origin: Origin,
}

impl From<&Registration> for BackendRef {
    fn from(registration: &Registration) -> Self {
        Self {
            id: registration.id,
            name: registration.spec.name.clone(),
            origin: registration.origin.clone(),
        }
    }
}

/// The answer to a query: the chosen backend, and the reasons against the others.
///
/// At one version of the registry, the same query, preferences and packages always give the same decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    schema: Schema,
    /// Version of the snapshot that it is based on.
    pub version: u64,
    /// The query.
    pub query: Query,
    /// The chosen backend; if there are classes, the backend for unknown loads.
    pub chosen: BackendRef,
    /// The reason for the choice.
    pub because: Because,
    /// The classes of loads, if several backends serve. The chosen backend serves one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes>,
    /// All registrations of the op that don't serve: best first, overridden ones last.
    pub rejected: Vec<Rejection>,
}

impl Decision {
    /// The backends that serve calls, starting with the chosen one.
    #[must_use]
    pub fn serving(&self) -> &[BackendRef] {
        self.classes
            .as_ref()
            .map_or(std::slice::from_ref(&self.chosen), Classes::backends)
    }

    /// The backend for calls with a load.
    #[must_use]
    pub fn at(&self, load: Load) -> &BackendRef {
        &self.serving()[self.class(load)]
    }

    /// The index in [`Decision::serving`] of the backend for a load.
    pub(crate) fn class(&self, mut load: Load) -> usize {
        if let Some(window) = self.query.window {
            load.length = load.length.min(window.into());
        }
        let classes = self.classes.as_ref();
        classes.map_or(0, |classes| {
            classes.at(load.place(self.query.op, self.query.phase))
        })
    }
}

/// The reason for a choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Because {
    /// The user chose the backend.
    Preferred {
        /// The preference that applies.
        key: PreferenceKey,
    },
    /// It is the first backend in the user's order that fits.
    Ordered {
        /// The preference that applies.
        key: PreferenceKey,
    },
    /// No other backend fits.
    OnlyFit,
    /// Among the measured backends that fit, it is the fastest at every load.
    Measured {
        /// Time of a call: the geometric mean over the loads.
        nanoseconds: u64,
    },
    /// Among the measured backends that fit, it is the fastest at some loads, and over all loads together.
    MeasuredByLoad {
        /// Time of a call: the geometric mean over the loads.
        nanoseconds: u64,
    },
    /// It has the highest priority among the backends that fit.
    Priority {
        /// Its priority.
        priority: i32,
    },
    /// Several backends that fit have the highest priority. It is the first of them by [`Origin`], then by
    /// name.
    First {
        /// Their priority.
        priority: i32,
    },
}

impl Because {
    /// The reason for choosing a backend that fits. `rival` is the priority of the next backend that fits but
    /// serves no call. `measured` is the chosen backend's time, and whether others serve too, if times were
    /// compared.
    fn new(
        choice: Option<(PreferenceKey, &str)>,
        ordered: Option<PreferenceKey>,
        priority: i32,
        rival: Option<i32>,
        measured: Option<(u64, bool)>,
    ) -> Self {
        if let Some(key) = ordered {
            return Self::Ordered { key };
        }
        match (choice, rival, measured) {
            (Some((key, _)), _, _) => Self::Preferred { key },
            (None, _, Some((nanoseconds, true))) => Self::MeasuredByLoad { nanoseconds },
            (None, None, _) => Self::OnlyFit,
            (None, Some(_), Some((nanoseconds, false))) => Self::Measured { nanoseconds },
            (None, Some(rival), None) if rival == priority => Self::First { priority },
            (None, Some(_), None) => Self::Priority { priority },
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Preferred { key } => write!(f, "chosen for {key}"),
            Self::Ordered { key } => write!(f, "first that fits in the order for {key}"),
            Self::OnlyFit => f.write_str("the only one that fits"),
            Self::Measured { nanoseconds } => {
                write!(
                    f,
                    "fastest that fits, as measured here ({})",
                    Microseconds(*nanoseconds)
                )
            }
            Self::MeasuredByLoad { nanoseconds } => {
                let time = Microseconds(*nanoseconds);
                write!(
                    f,
                    "fastest over all loads as measured here ({time}); others serve some"
                )
            }
            Self::Priority { priority } => write!(f, "highest priority that fits ({priority})"),
            Self::First { priority } => {
                write!(
                    f,
                    "first by origin and name among those that fit with priority {priority}"
                )
            }
        }
    }
}

impl Snapshot {
    /// Decides which backend serves a query.
    ///
    /// The user's choice ([`Preferences::choice`]) is always used; if it does not fit, that is an error. A
    /// denied backend ([`Preferences::denial`]) does not fit. If the user gave an order
    /// ([`Preferences::order`]), the first backend in it that fits serves. Otherwise the active backends that
    /// fit are ranked by priority, then by [`Origin`], then by name. The backend that ranks first serves,
    /// unless it was measured ([`Query::measured`]). In that case the fastest measured backend serves; if
    /// different backends are the fastest at different loads, each serves its class of loads ([`Classes`]).
    /// Times between measured loads are interpolated linearly in logarithms. If several backends are within
    /// 1 % of the fastest, the one that ranks first serves.
    ///
    /// # Errors
    /// [`ResolveError`], with the reasons against every candidate.
    pub fn resolve(
        &self,
        query: &Query,
        preferences: &Preferences,
        packages: &Packages,
    ) -> Result<Decision, ResolveError> {
        let order = preferences.order(query.op, query.phase);
        let ranked = self.ranked(query, packages, preferences, order.as_ref());
        let choice = preferences.choice(query.op, query.phase);
        let first = ranked.iter().find(|candidate| fits(candidate));
        let ordered = order
            .as_ref()
            .filter(|order| first.is_some_and(|(backend, _)| order.place(&backend.spec.name).is_some()))
            .map(|order| order.key);
        let is_automatic = choice.is_none() && ordered.is_none();
        let verdict = is_automatic.then(|| verdict(&ranked, query)).flatten();
        let position = match (choice, &verdict) {
            (Some((key, name)), _) => Some(
                ranked
                    .iter()
                    .position(|(backend, _)| backend.spec.name == name)
                    .ok_or_else(|| {
                        let valid = ranked.iter().map(|(backend, _)| backend.spec.name.as_str());
                        ResolveError::UnknownChoice {
                            op: query.op,
                            key,
                            name: UnknownName::new("backend", name, valid),
                        }
                    })?,
            ),
            (None, Some(verdict)) => Some(verdict.winners[0]),
            (None, None) => ranked.iter().position(fits),
        };
        let serving = verdict.as_ref().map_or_else(
            || position.into_iter().collect(),
            |verdict| verdict.winners.clone(),
        );
        let reference = |index: &usize| BackendRef::from(&**ranked[*index].0);
        let classes = verdict
            .as_ref()
            .and_then(|verdict| verdict.classes(serving.iter().map(reference).collect()));
        let typical = |index: usize| verdict.as_ref().and_then(|verdict| verdict.typical[index]);
        let measured = verdict.as_ref().and(position).and_then(typical);
        let priority = position.map(|position| ranked[position].0.spec.priority);
        let served: BTreeSet<usize> = serving.iter().copied().collect();
        let (mut chosen, mut others) = (None, Vec::new());
        for (index, candidate) in ranked.into_iter().enumerate() {
            if Some(index) == position {
                chosen = Some(candidate);
            } else if !served.contains(&index) {
                others.push((candidate, typical(index)));
            }
        }
        let rival = others
            .iter()
            .find(|(candidate, _)| fits(candidate))
            .map(|((rival, _), _)| rival.spec.priority);
        let name = chosen.as_ref().map(|(backend, _)| backend.spec.name.clone());
        let ordered = ordered.zip(name);
        let rejected = self.rejections(query, others, choice, ordered.as_ref(), priority, measured);
        let version = self.version();
        match (chosen, choice) {
            (Some((backend, reasons)), _) if reasons.is_empty() => Ok(Decision {
                schema: Schema,
                version,
                query: query.clone(),
                chosen: BackendRef::from(&**backend),
                because: Because::new(
                    choice,
                    ordered.map(|(key, _)| key),
                    backend.spec.priority,
                    rival,
                    measured.map(|time| (time, classes.is_some())),
                ),
                classes,
                rejected,
            }),
            (Some((backend, reasons)), Some((key, _))) => Err(ResolveError::UnfitChoice {
                query: Box::new(query.clone()),
                version,
                key,
                chosen: Box::new(Rejection {
                    backend: BackendRef::from(&**backend),
                    reasons,
                }),
                rejected,
            }),
            _ => Err(ResolveError::NoBackend {
                query: Box::new(query.clone()),
                version,
                rejected,
            }),
        }
    }

    /// The candidates, best first, with the reasons why they don't fit.
    fn ranked(
        &self,
        query: &Query,
        packages: &Packages,
        preferences: &Preferences,
        order: Option<&PreferenceOrder<'_>>,
    ) -> Vec<Candidate<'_>> {
        // for each name, the registration that is active in the phase, or else the last one
        let candidates = self
            .stacks_of(query.op)
            .map(|stack| &stack[active(stack, query.phase).unwrap_or(stack.len() - 1)]);
        let denied = |name| preferences.denial(query.op, query.phase, name);
        let mut ranked: Vec<Candidate<'_>> = candidates
            .map(|backend| {
                let mut reasons = misfits(backend, query, packages);
                reasons.extend(denied(&backend.spec.name).map(|key| Reason::Denied { key }));
                (backend, reasons)
            })
            .collect();
        ranked.sort_by_key(|(backend, _)| {
            let spec = &backend.spec;
            let place = order.and_then(|order| order.place(&spec.name));
            (
                place.unwrap_or(usize::MAX),
                Reverse(spec.priority),
                &backend.origin,
                &spec.name,
            )
        });
        ranked
    }

    /// Adds to each fitting backend the reason why another one was chosen, and appends the overridden
    /// registrations.
    fn rejections(
        &self,
        query: &Query,
        candidates: Vec<(Candidate<'_>, Option<u64>)>,
        choice: Option<(PreferenceKey, &str)>,
        ordered: Option<&(PreferenceKey, String)>,
        chosen: Option<i32>,
        measured: Option<u64>,
    ) -> Vec<Rejection> {
        let candidates = candidates.into_iter().map(|((backend, mut reasons), own)| {
            if reasons.is_empty() {
                let priority = backend.spec.priority;
                if let Some((key, chosen)) = ordered {
                    reasons.push(Reason::LaterInPreference {
                        key: *key,
                        chosen: chosen.clone(),
                    });
                    return (backend, reasons);
                }
                reasons.push(match (choice, measured, chosen) {
                    (Some((key, name)), _, _) => Reason::NotPreferred {
                        key,
                        chosen: name.to_owned(),
                    },
                    (None, Some(chosen), _) => match own {
                        Some(nanoseconds) => Reason::Slower { nanoseconds, chosen },
                        None => Reason::NotMeasured { chosen },
                    },
                    (None, None, Some(chosen)) if chosen != priority => {
                        Reason::LowerPriority { priority, chosen }
                    }
                    (None, None, _) => Reason::LaterInOrder { priority },
                });
            }
            (backend, reasons)
        });
        let overridden = self.stacks_of(query.op).flat_map(|stack| {
            let serving = active(stack, query.phase);
            let top = serving.unwrap_or(stack.len() - 1);
            let others = stack.iter().enumerate().filter(move |(index, _)| *index != top);
            others.map(move |(index, backend)| {
                let below = index < top && (serving.is_none() || backend.spec.phases.contains(&query.phase));
                let reason = if below {
                    Reason::Overridden {
                        by: stack[top].id,
                        origin: stack[top].origin.clone(),
                    }
                } else {
                    Reason::Phase {
                        asked: query.phase,
                        valid: backend.spec.phases.clone(),
                    }
                };
                (backend, vec![reason])
            })
        });
        let rejection = |(backend, reasons): Candidate<'_>| Rejection {
            backend: BackendRef::from(&**backend),
            reasons,
        };
        candidates.chain(overridden).map(rejection).collect()
    }
}

/// A registration, and the reasons why it does not fit (none if it fits).
type Candidate<'a> = (&'a Arc<Registration>, Vec<Reason>);

fn fits((_, reasons): &Candidate<'_>) -> bool {
    reasons.is_empty()
}

/// The comparison of the backends that fit, in order of rank; `None` if the first of them was not measured.
fn verdict(ranked: &[Candidate<'_>], query: &Query) -> Option<Verdict> {
    let names: Vec<Option<&str>> = ranked
        .iter()
        .map(|candidate| fits(candidate).then(|| candidate.0.spec.name.as_str()))
        .collect();
    let first = *names.iter().flatten().next()?;
    if !query
        .measured
        .iter()
        .any(|sample| sample.nanoseconds.contains_key(first))
    {
        return None;
    }
    Verdict::new(query.op, query.phase, &query.measured, &names)
}

/// All reasons why a backend can't serve a query.
fn misfits(backend: &Registration, query: &Query, packages: &Packages) -> Vec<Reason> {
    let capabilities = &backend.spec.capabilities;
    let mut reasons = Vec::new();
    if !backend.spec.phases.contains(&query.phase) {
        reasons.push(Reason::Phase {
            asked: query.phase,
            valid: backend.spec.phases.clone(),
        });
    }
    reasons.extend(device_misfit(&capabilities.devices, &query.device));
    macro_rules! check {
        ($asked:expr, $claimed:ident, $reason:ident) => {
            let found = outside($asked, &capabilities.$claimed);
            reasons.extend(found.map(|(asked, valid)| Reason::$reason { asked, valid }));
        };
    }
    check!(Some(&query.dtype), dtypes, Dtype);
    check!(query.state_dtype.as_ref(), state_dtypes, StateDtype);
    check!(query.head_size.as_ref(), head_sizes, HeadSize);
    check!(query.page_size.as_ref(), page_sizes, PageSize);
    check!(query.state_layout.as_ref(), state_layouts, StateLayout);
    let missing: BTreeSet<String> = query
        .features
        .difference(&capabilities.features)
        .cloned()
        .collect();
    if !missing.is_empty() {
        reasons.push(Reason::Features {
            missing,
            valid: capabilities.features.clone(),
        });
    }
    reasons.extend(
        capabilities
            .packages
            .iter()
            .filter_map(|needed| match packages.version(needed.name()) {
                None => Some(Reason::PackageMissing {
                    needed: needed.clone(),
                }),
                Some(installed) if !needed.accepts(installed) => Some(Reason::PackageVersion {
                    needed: needed.clone(),
                    installed: installed.to_owned(),
                }),
                Some(_) => None,
            }),
    );
    reasons
}

fn device_misfit(supported: &[DeviceSupport], device: &Device) -> Option<Reason> {
    let family: Vec<DeviceSupport> = supported
        .iter()
        .filter(|support| support.kind == device.kind)
        .cloned()
        .collect();
    if family.is_empty() {
        return Some(Reason::Device {
            asked: device.kind.clone(),
            valid: supported.to_vec(),
        });
    }
    if family.iter().any(|support| support.contains(device.capability)) {
        return None;
    }
    Some(match device.capability {
        Some(asked) => Reason::Capability { asked, valid: family },
        None => Reason::CapabilityUnknown { valid: family },
    })
}

/// The requested value and the valid ones, if the request is outside a non-empty set.
fn outside<T: Ord + Clone>(asked: Option<&T>, valid: &BTreeSet<T>) -> Option<(T, BTreeSet<T>)> {
    asked
        .filter(|asked| !valid.is_empty() && !valid.contains(asked))
        .map(|asked| (asked.clone(), valid.clone()))
}
