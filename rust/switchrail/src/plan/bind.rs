//! Matches a plan's backends with the registrations of a runtime.

use std::sync::Arc;

use super::RoutePlan;
use crate::{CoreError, Registration, Snapshot, quoted};

impl RoutePlan {
    /// The registrations of this plan's backends in a snapshot, in the order of [`RoutePlan::backends`].
    ///
    /// Two backends match if their origin and [`BackendSpec`](crate::BackendSpec) are equal, so a plan from a
    /// document or from another process can be bound, too. Configurations are not compared, because a plan
    /// keeps its own.
    ///
    /// # Errors
    /// [`BindError`] if the snapshot lacks one of the plan's backends.
    pub fn bind(&self, snapshot: &Snapshot) -> Result<Vec<Arc<Registration>>, BindError> {
        let find = |wanted: &Arc<Registration>| {
            let stack = snapshot.stack(wanted.spec.op, &wanted.spec.name);
            let same =
                |found: &&Arc<Registration>| found.origin == wanted.origin && found.spec == wanted.spec;
            // Several registrations can match. If the one that the plan was made with still exists, it is
            // preferred.
            let own = stack.iter().filter(same).find(|found| found.id == wanted.id);
            own.or_else(|| stack.iter().rev().find(same))
                .cloned()
                .ok_or_else(|| BindError {
                    wanted: Arc::clone(wanted),
                    found: stack.to_vec(),
                })
        };
        self.backends().iter().map(find).collect()
    }
}

/// A backend of a plan that is not registered in the runtime, or is registered differently.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "the plan's {} backend {:?} ({}) is not registered as it was when the plan was made; registered under that name: \
     {}; make a new plan",
    .wanted.spec.op, .wanted.spec.name, .wanted.origin,
    if .found.is_empty() { "nothing".to_owned() } else { quoted(&origins(.found)) }
)]
#[non_exhaustive]
pub struct BindError {
    /// The backend in the plan.
    pub wanted: Arc<Registration>,
    /// The current registrations of the same op and name.
    pub found: Vec<Arc<Registration>>,
}

fn origins(found: &[Arc<Registration>]) -> Vec<String> {
    found.iter().map(|backend| backend.origin.to_string()).collect()
}

impl CoreError for BindError {
    fn code(&self) -> &'static str {
        "plan_backend_gone"
    }

    fn fields(&self) -> serde_json::Value {
        let Registration { spec, origin, .. } = self.wanted.as_ref();
        serde_json::json!({
            "op": spec.op, "backend": spec.name, "origin": origin.to_string(), "found": origins(&self.found),
        })
    }
}
