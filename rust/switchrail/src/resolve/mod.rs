//! Decides which backend serves a query, and explains why the others don't.

mod classes;
mod error;
mod load;
mod measured;
mod reason;

use std::{cmp::Reverse, collections::BTreeSet, fmt, mem, sync::Arc};

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

/// The requirements on a backend, and the data for choosing among the backends that fit.
///
/// Op, phase, device and dtype are always set. A field that is `None` or empty is not a requirement.
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
    /// Numbers of heads, with which [`Measurement::of`] selects times. They reject no backend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heads: Option<HeadCount>,
    /// Whether the states never decay. [`Measurement::of`] selects times by it; it rejects no backend.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_decay: bool,
    /// Sliding window in tokens. Times are measured without a window: a [`Load`] with a larger `length` than the
    /// window gets the times at the window's length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Measured times of calls on the device, one sample per load. See [`Measurement::of`].
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

/// The id, name and origin of a registration.
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
    /// Version of the snapshot that the decision is based on.
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
    /// All registrations of the op that don't serve: best first; of several with one name, all but the active
    /// one last.
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

    /// The backend for calls with this load.
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
            classes.at(load.coordinates(self.query.op, self.query.phase))
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
    /// Several measured backends that fit are the fastest at some loads. Among them, it was timed at the most
    /// loads, then has the shortest time over all loads.
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
                    "fastest at some loads measured here (mean {time}); others serve the rest"
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
    /// The first of these rules that applies decides. A denied backend ([`Preferences::denial`]) fits in none.
    ///
    /// 1. The user chose a backend ([`Preferences::choice`]): it serves. If it does not fit, that is an error.
    /// 2. A backend in the user's order ([`Preferences::order`]) fits: the first such backend serves.
    /// 3. Times are known ([`Query::measured`]) for the backend that rule 4 would choose: the fastest measured
    ///    backend that fits serves. If different backends are the fastest at different loads, each serves its
    ///    class of loads ([`Classes`]). Between measured loads, times are interpolated linearly in logarithms.
    ///    Of backends within 1 % of the fastest, the first by rule 4 serves.
    /// 4. The first of the active backends that fit serves: by priority, then by [`Origin`], then by name.
    ///
    /// # Errors
    /// [`ResolveError`], with the reasons against every candidate.
    pub fn resolve(
        &self,
        query: &Query,
        preferences: &Preferences,
        packages: &Packages,
    ) -> Result<Decision, ResolveError> {
        let version = self.version();
        let order = preferences.order(query.op, query.phase);
        let mut ranked = self.ranked(query, packages, preferences, order.as_ref());
        let rule = Rule::new(query, preferences, order.as_ref(), &ranked);
        let Some(position) = rule.position(query.op, &ranked)? else {
            return Err(ResolveError::NoBackend {
                query: Box::new(query.clone()),
                version,
                rejected: self.rejections(query, ranked),
            });
        };
        let chosen = ranked[position].0;
        let unfit = mem::take(&mut ranked[position].1);
        let (serving, classes) = match &rule {
            Rule::Times(verdict) => {
                let winners = verdict.winners.iter().copied();
                let backends = winners.clone().map(|index| BackendRef::from(&**ranked[index].0));
                (winners.collect(), verdict.classes(backends.collect()))
            }
            _ => (BTreeSet::from([position]), None),
        };
        let mut others: Vec<(usize, Candidate<'_>)> = ranked.into_iter().enumerate().collect();
        others.retain(|(index, _)| !serving.contains(index));
        let rival = others.iter().find(|(_, candidate)| fits(candidate));
        let because = rule.because(position, chosen, rival.map(|(_, (rival, _))| rival.spec.priority));
        for (index, (other, reasons)) in &mut others {
            if reasons.is_empty() {
                reasons.push(rule.reason_against((*index, other), (position, chosen)));
            }
        }
        let others = others.into_iter().map(|(_, candidate)| candidate);
        let rejected = self.rejections(query, others.collect());
        let backend = BackendRef::from(&**chosen);
        match rule {
            Rule::Choice { key, .. } if !unfit.is_empty() => Err(ResolveError::UnfitChoice {
                query: Box::new(query.clone()),
                version,
                key,
                chosen: Box::new(Rejection {
                    backend,
                    reasons: unfit,
                }),
                rejected,
            }),
            _ => Ok(Decision {
                schema: Schema,
                version,
                query: query.clone(),
                chosen: backend,
                because,
                classes,
                rejected,
            }),
        }
    }

    /// The candidates in order of rank, each with the reasons why it does not fit.
    fn ranked(
        &self,
        query: &Query,
        packages: &Packages,
        preferences: &Preferences,
        order: Option<&PreferenceOrder<'_>>,
    ) -> Vec<Candidate<'_>> {
        // For each name, the registration that is active in the phase, or else the last one.
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

    /// The candidates, each with at least one reason, and after them the other registrations of their names.
    fn rejections(&self, query: &Query, candidates: Vec<Candidate<'_>>) -> Vec<Rejection> {
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
        candidates.into_iter().chain(overridden).map(rejection).collect()
    }
}

/// A registration, and the reasons why it does not fit (none if it fits).
type Candidate<'a> = (&'a Arc<Registration>, Vec<Reason>);

fn fits((_, reasons): &Candidate<'_>) -> bool {
    reasons.is_empty()
}

/// The rule that selects a backend among the candidates.
enum Rule<'a> {
    /// The backend that the user chose.
    Choice { key: PreferenceKey, name: &'a str },
    /// The first backend in the user's order that fits.
    Order { key: PreferenceKey },
    /// The fastest of the measured backends that fit.
    Times(Verdict),
    /// The first backend by priority, origin and name that fits.
    Rank,
}

impl<'a> Rule<'a> {
    fn new(
        query: &Query,
        preferences: &'a Preferences,
        order: Option<&PreferenceOrder<'_>>,
        ranked: &[Candidate<'_>],
    ) -> Self {
        if let Some((key, name)) = preferences.choice(query.op, query.phase) {
            return Self::Choice { key, name };
        }
        let first = ranked.iter().find(|candidate| fits(candidate));
        let has_first = |order: &&PreferenceOrder<'_>| {
            first.is_some_and(|(backend, _)| order.place(&backend.spec.name).is_some())
        };
        match order.filter(has_first) {
            Some(order) => Self::Order { key: order.key },
            None => verdict(ranked, query).map_or(Self::Rank, Self::Times),
        }
    }

    /// The index of the chosen candidate; `None` if no candidate fits.
    fn position(&self, op: Op, ranked: &[Candidate<'_>]) -> Result<Option<usize>, ResolveError> {
        match self {
            Self::Choice { key, name } => {
                let names = ranked.iter().map(|(backend, _)| backend.spec.name.as_str());
                let Some(position) = names.clone().position(|other| other == *name) else {
                    let name = UnknownName::new("backend", *name, names);
                    return Err(ResolveError::UnknownChoice { op, key: *key, name });
                };
                Ok(Some(position))
            }
            Self::Times(verdict) => Ok(Some(verdict.winners[0])),
            Self::Order { .. } | Self::Rank => Ok(ranked.iter().position(fits)),
        }
    }

    /// The reason for choosing a backend. `rival` is the priority of the next backend that fits but serves no
    /// call.
    fn because(&self, position: usize, chosen: &Registration, rival: Option<i32>) -> Because {
        let priority = chosen.spec.priority;
        match self {
            Self::Choice { key, .. } => Because::Preferred { key: *key },
            Self::Order { key } => Because::Ordered { key: *key },
            Self::Times(verdict) if verdict.winners.len() > 1 => Because::MeasuredByLoad {
                nanoseconds: verdict.time_of_winner(position),
            },
            _ if rival.is_none() => Because::OnlyFit,
            Self::Times(verdict) => Because::Measured {
                nanoseconds: verdict.time_of_winner(position),
            },
            Self::Rank if rival == Some(priority) => Because::First { priority },
            Self::Rank => Because::Priority { priority },
        }
    }

    /// The reason against a backend that fits. Both backends are given with their positions.
    fn reason_against(
        &self,
        (index, other): (usize, &Registration),
        (position, chosen): (usize, &Registration),
    ) -> Reason {
        let name = || chosen.spec.name.clone();
        match self {
            Self::Choice { key, .. } => Reason::NotPreferred {
                key: *key,
                chosen: name(),
            },
            Self::Order { key } => Reason::LaterInPreference {
                key: *key,
                chosen: name(),
            },
            Self::Times(verdict) => {
                let chosen = verdict.time_of_winner(position);
                match verdict.typical[index] {
                    Some(nanoseconds) => Reason::Slower { nanoseconds, chosen },
                    None => Reason::NotMeasured { chosen },
                }
            }
            Self::Rank if other.spec.priority == chosen.spec.priority => Reason::LaterInOrder {
                priority: other.spec.priority,
            },
            Self::Rank => Reason::LowerPriority {
                priority: other.spec.priority,
                chosen: chosen.spec.priority,
            },
        }
    }
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
