//! The tables that calls read: for each op, phase and class of batches, the backend of each layer.

use std::collections::BTreeMap;

use super::Route;
use crate::{BackendId, Layout, Load, Op, Phase};

/// The tables of a plan that serve one batch in one phase; see
/// [`RoutePlan::select`](super::RoutePlan::select).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BatchTables {
    phase: Phase,
    starts: [usize; Op::ALL.len()],
}

impl BatchTables {
    /// The phase.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        self.phase
    }

    /// The index of the first cell of an op's table.
    #[inline]
    #[must_use]
    pub const fn start(&self, op: Op) -> usize {
        self.starts[op as usize]
    }
}

/// Maximum number of cells for one op and phase. In a model of 48 layers, three routes with six classes each
/// need about 10,000.
const MOST_CELLS: usize = 1 << 20;

/// All tables, one after the other, each with one cell per layer.
///
/// The first table has no backends; it is used for ops that no layer runs and for phases that were not
/// planned. An op in a phase has one table for each combination of its routes' classes. The first of these
/// tables serves batches of unknown size.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    cells: Box<[Option<BackendId>]>,
    layers: usize,
    starts: [[usize; Phase::ALL.len()]; Op::ALL.len()],
    /// For each route with several classes: its index, and the distance in cells between the tables of
    /// neighbouring classes.
    strides: Vec<(usize, usize)>,
}

impl Tables {
    /// Builds the tables. Routes of the same op and phase must not share a layer.
    ///
    /// # Errors
    /// The op and phase whose classes have more combinations than [`MOST_CELLS`] allows.
    pub fn new(layout: &Layout, routes: &[Route]) -> Result<Self, (Op, Phase)> {
        let layers = layout.layers().len();
        let mut cells = vec![None; layers];
        let mut starts = [[0; Phase::ALL.len()]; Op::ALL.len()];
        let mut strides = Vec::new();
        let mut groups: BTreeMap<(Op, Phase), Vec<usize>> = BTreeMap::new();
        for (index, route) in routes.iter().enumerate() {
            let query = &route.decision.query;
            groups.entry((query.op, query.phase)).or_default().push(index);
        }
        for ((op, phase), group) in groups {
            let start = cells.len();
            starts[op as usize][phase as usize] = start;
            let mut tables = 1;
            for index in &group {
                let classes = routes[*index].decision.serving().len();
                if classes > 1 {
                    strides.push((*index, tables * layers));
                }
                tables *= classes;
                if tables * layers.max(1) > MOST_CELLS {
                    return Err((op, phase));
                }
            }
            cells.resize(start + tables * layers, None);
            for table in 0..tables {
                let mut rest = table;
                for index in &group {
                    let serving = routes[*index].decision.serving();
                    let id = serving[rest % serving.len()].id;
                    rest /= serving.len();
                    for layer in &routes[*index].layers {
                        cells[start + table * layers + layer] = Some(id);
                    }
                }
            }
        }
        Ok(Self {
            cells: cells.into(),
            layers,
            starts,
            strides,
        })
    }

    #[inline]
    pub const fn start(&self, op: Op, phase: Phase) -> usize {
        self.starts[op as usize][phase as usize]
    }

    #[inline]
    pub fn get(&self, start: usize, layer: usize) -> Option<BackendId> {
        if layer >= self.layers {
            return None;
        }
        self.cells[start + layer]
    }

    pub fn select(&self, routes: &[Route], phase: Phase, sequences: &[(u64, u64)]) -> BatchTables {
        let mut starts = Op::ALL.map(|op| self.start(op, phase));
        for (index, stride) in &self.strides {
            let decision = &routes[*index].decision;
            let op = decision.query.op;
            if decision.query.phase == phase {
                starts[op as usize] += decision.class(Load::of(op, sequences.iter().copied())) * stride;
            }
        }
        BatchTables { phase, starts }
    }

    pub fn cells(&self) -> &[Option<BackendId>] {
        &self.cells
    }
}
