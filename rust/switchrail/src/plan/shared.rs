//! Makes the backends of one op agree on the form of the state or cache that they share.

use std::collections::BTreeSet;

use super::{PlanError, PlanRequest, Route};
use crate::{Capabilities, Dtype, Layout, Query, Snapshot};

/// The form of a shared state or cache. A field that is `None` is left open.
struct Form {
    layout: Option<String>,
    dtype: Option<Dtype>,
    page_size: Option<u32>,
}

impl Form {
    /// The query, with its fields that are `None` filled in from this form.
    fn asked_of(&self, query: &Query) -> Query {
        let mut query = query.clone();
        query.state_layout = query.state_layout.or_else(|| self.layout.clone());
        query.state_dtype = query.state_dtype.or(self.dtype);
        query.page_size = query.page_size.or(self.page_size);
        query
    }
}

/// The routes of one op, with backends that all use the same form of the shared state or cache.
///
/// A decode continues from the state that a prefill wrote, and consecutive batches can be of different
/// classes. So all backends for an op in a plan must use the same form. If the request leaves the form open,
/// backends that are chosen one by one may have no form in common. Then each form is tried in turn until every
/// route has a backend, starting with the forms of the first route's backend.
pub(super) fn resolve(
    snapshot: &Snapshot,
    layout: &Layout,
    request: &PlanRequest,
    asked: &[(Query, Vec<usize>)],
) -> Result<Vec<Route>, PlanError> {
    let free = decide(snapshot, layout, request, asked, None)?;
    if agree(snapshot, &free) {
        return Ok(free);
    }
    let mut refusal = None;
    for form in forms(snapshot, &free) {
        match decide(snapshot, layout, request, asked, Some(&form)) {
            Ok(routes) => return Ok(routes),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    Err(refusal.expect("forms() returns at least one form"))
}

fn decide(
    snapshot: &Snapshot,
    layout: &Layout,
    request: &PlanRequest,
    asked: &[(Query, Vec<usize>)],
    form: Option<&Form>,
) -> Result<Vec<Route>, PlanError> {
    let route = |(query, layers): &(Query, Vec<usize>)| {
        let query = form.map_or_else(|| query.clone(), |form| form.asked_of(query));
        let decision = snapshot
            .resolve(&query, &request.preferences, &request.packages)
            .map_err(|source| PlanError::Unroutable {
                model: layout.model().to_owned(),
                kind: layout.layers()[layers[0]].kind,
                layers: layers.clone(),
                op: query.op,
                phase: query.phase,
                source: Box::new(source),
            })?;
        Ok(Route {
            layers: layers.clone(),
            decision,
        })
    };
    asked.iter().map(route).collect()
}

/// The capabilities of all chosen backends, each with its query.
fn serving<'a>(snapshot: &'a Snapshot, routes: &'a [Route]) -> Vec<(&'a Query, &'a Capabilities)> {
    let of = |route: &'a Route| {
        let query = &route.decision.query;
        let ids = route.decision.serving().iter().map(|backend| backend.id);
        let found = ids.filter_map(|id| snapshot.get(id));
        found.map(move |backend| (query, &backend.spec.capabilities))
    };
    routes.iter().flat_map(of).collect()
}

/// Whether the chosen backends have a common value for each part of the form that the request leaves open.
fn agree(snapshot: &Snapshot, routes: &[Route]) -> bool {
    let all = serving(snapshot, routes);
    let open = |asked: fn(&Query) -> bool| all.iter().filter(move |(query, _)| asked(query)).map(|(_, c)| *c);
    common(open(|query| query.state_layout.is_none()).map(|each| &each.state_layouts))
        && common(open(|query| query.state_dtype.is_none()).map(|each| &each.state_dtypes))
        && common(open(|query| query.page_size.is_none()).map(|each| &each.page_sizes))
}

/// Whether all sets have some value in common. Empty sets mean no restriction and are ignored.
fn common<'a, T: Ord + 'a>(sets: impl Iterator<Item = &'a BTreeSet<T>>) -> bool {
    let restricting: Vec<_> = sets.filter(|set| !set.is_empty()).collect();
    restricting.first().is_none_or(|first| {
        let everywhere = |value: &&T| restricting.iter().all(|set| set.contains(*value));
        first.iter().any(|value| everywhere(&value))
    })
}

/// All possible forms, starting with those of the first route's backend.
fn forms(snapshot: &Snapshot, routes: &[Route]) -> Vec<Form> {
    let chosen = serving(snapshot, routes).into_iter().map(|(_, each)| each);
    let op = routes[0].decision.query.op;
    let all: Vec<_> = chosen
        .chain(snapshot.of_op(op).map(|backend| &backend.spec.capabilities))
        .collect();
    let mut forms = Vec::new();
    for layout in options(all.iter().map(|each| &each.state_layouts)) {
        for dtype in options(all.iter().map(|each| &each.state_dtypes)) {
            for page_size in options(all.iter().map(|each| &each.page_sizes)) {
                forms.push(Form {
                    layout: layout.clone(),
                    dtype,
                    page_size,
                });
            }
        }
    }
    forms
}

/// The distinct values of all sets, in order; a single `None` if all sets are empty.
fn options<'a, T: Ord + Clone + 'a>(sets: impl Iterator<Item = &'a BTreeSet<T>>) -> Vec<Option<T>> {
    let mut found: Vec<Option<T>> = Vec::new();
    for value in sets.flatten().cloned().map(Some) {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    if found.is_empty() { vec![None] } else { found }
}
