//! The registry: immutable snapshots, and the transactions that create new ones.

mod error;
mod snapshot;
mod sync;
mod transaction;

use std::{num::NonZeroU64, sync::Arc};

pub use error::{CommitError, Conflict, RegisterError, ReplayError};
pub(crate) use snapshot::active;
pub use snapshot::{Change, Commit, Snapshot};
pub use transaction::{Registrar, Transaction};

use crate::{BackendId, Origin, Schema};
use snapshot::Request;
use sync::{AtomicU64, Cell, Mutex, Ordering, lock};

/// Owns the registrations.
///
/// Readers take the current [`Snapshot`] without waiting. Writers use a [`Transaction`]. Commits are serialised,
/// and each that changes something creates the next version.
///
/// ```
/// use switchrail::{BackendSpec, Capabilities, DeviceKind, DeviceSupport, Entry, Op, Origin, Phase, Runtime};
///
/// let runtime = Runtime::new();
/// let transaction = runtime.begin(Origin::User);
/// let spec = BackendSpec {
///     name: "acme".into(),
///     op: Op::GatedDelta,
///     phases: [Phase::Prefill, Phase::Decode].into(),
///     path: "acme_gdn:AcmeGDN".into(),
///     capabilities: Capabilities { devices: vec![DeviceSupport::any(DeviceKind::Cpu)], ..Capabilities::default() },
///     priority: 0,
///     config: serde_json::Map::new(),
/// };
/// let id = transaction.registrar().add(spec, Entry::Foreign, false)?;
/// assert!(runtime.snapshot().find(Op::GatedDelta, "acme").is_none(), "nothing is seen before the commit");
/// transaction.commit()?;
/// assert_eq!(runtime.snapshot().find(Op::GatedDelta, "acme").unwrap().id, id);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Runtime {
    snapshot: Cell<Snapshot>,
    commit: Mutex<()>,
    next_id: AtomicU64,
}

impl Runtime {
    /// A runtime without registrations, at version 0.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            snapshot: Cell::new(Snapshot::default()),
            commit: Mutex::new(()),
            next_id: AtomicU64::new(1),
        })
    }

    /// The current snapshot. Takes no lock.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load()
    }

    /// Opens a transaction on behalf of `origin`. Any number of transactions may be open at the same time.
    pub fn begin(self: &Arc<Self>, origin: Origin) -> Transaction {
        Transaction::new(Arc::clone(self), origin)
    }

    fn fresh_id(&self) -> BackendId {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        BackendId::new(NonZeroU64::new(id).expect("a counter of 64 bits that starts at 1 does not overflow"))
    }

    fn publish(&self, origin: Origin, requests: &[Request]) -> Result<Arc<Commit>, CommitError> {
        // These variables may hold the last references to native backends, whose drop runs foreign code. They
        // are declared before the guard, so that they are dropped after the lock is released.
        let (current, mut next);
        let mut changes = Vec::new();
        let _guard = lock(&self.commit);
        current = self.snapshot.load();
        next = Snapshot::clone(&current);
        for request in requests {
            next.carry_out(request, &mut changes)?;
        }
        if !changes.is_empty() {
            next.version += 1;
        }
        let version = next.version;
        if !changes.is_empty() {
            self.snapshot.store(Arc::new(next));
        }
        Ok(Arc::new(Commit {
            schema: Schema,
            version,
            origin,
            changes,
        }))
    }
}
