//! Which backend is fastest for which loads.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{
    BackendRef, Load, Sample,
    load::{OCTAVE, log2},
};
use crate::Op;

/// How far apart the middles of two neighbouring classes are: an eighth of an octave, 9 %.
const STEP: i64 = OCTAVE / 8;

/// Times that are no further apart count as equal: 1 %, which is less than two runs of one backend differ by.
const EQUAL: i64 = OCTAVE * 144 / 10_000;

/// The classes of calls that one decision is for, and which backend serves each of them.
///
/// The plane of loads is cut into cells of an eighth of an octave in either direction, as far as was measured; what lies
/// outside belongs to the nearest cell. A class is the cells that one backend serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Document", into = "Document")]
pub struct Classes {
    op: Op,
    /// The backends, one a class; the first serves where the batch is not known.
    backends: Vec<BackendRef>,
    rows: Axis,
    other: Axis,
    /// The class of each cell, line by line.
    cells: Box<[u16]>,
}

impl Classes {
    /// The backends, one a class; the first is the decision's own.
    #[must_use]
    pub fn backends(&self) -> &[BackendRef] {
        &self.backends
    }

    /// The class of a load: which of the backends serves it.
    #[must_use]
    pub fn at(&self, load: Load) -> usize {
        let (rows, other) = load.place(self.op);
        let cell = self.rows.cell(rows) * self.other.count() + self.other.cell(other);
        usize::from(self.cells[cell])
    }

    /// How many cells in a row are of one class, and which, over all of them: the same where the classes are.
    pub(crate) fn runs(&self) -> Vec<(u16, u32)> {
        let mut runs: Vec<(u16, u32)> = Vec::new();
        for class in &self.cells {
            match runs.last_mut() {
                Some((last, count)) if last == class => *count += 1,
                _ => runs.push((*class, 1)),
            }
        }
        runs
    }

    /// The bounds of the cells, to compare.
    pub(crate) const fn bounds(&self) -> [i32; 4] {
        [self.rows.first, self.rows.last, self.other.first, self.other.last]
    }
}

/// The cells along one direction, by the [`STEP`]s of their middles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Axis {
    first: i32,
    last: i32,
}

impl Axis {
    fn over(places: impl Iterator<Item = i64> + Clone) -> Option<Self> {
        Some(Self {
            first: Self::step(places.clone().min()?),
            last: Self::step(places.max()?),
        })
    }

    fn step(place: i64) -> i32 {
        i32::try_from((place + STEP / 2).div_euclid(STEP)).expect("logarithms are small")
    }

    const fn count(self) -> usize {
        self.last.abs_diff(self.first) as usize + 1
    }

    fn cell(self, place: i64) -> usize {
        Self::step(place)
            .clamp(self.first, self.last)
            .abs_diff(self.first) as usize
    }

    fn middles(self) -> impl Iterator<Item = i64> {
        (self.first..=self.last).map(|step| i64::from(step) * STEP)
    }
}

/// What the times of several backends say.
pub(super) struct Verdict {
    /// The backends that are fastest somewhere, by their numbers; the first is the fastest of them taken all together,
    /// of those that were timed at the most loads: one that failed at some is nothing for calls of any.
    pub winners: Vec<usize>,
    /// Nanoseconds of each backend, the geometric mean over the loads at which all were timed.
    pub typical: Vec<Option<u64>>,
    cells: Vec<Option<usize>>,
    rows: Axis,
    other: Axis,
}

impl Verdict {
    /// The verdict of samples on backends, which are numbered in order of precedence and without a name where they
    /// don't count; none where no time is known.
    pub fn new(op: Op, samples: &[Sample], names: &[Option<&str>]) -> Option<Self> {
        let plane = Plane::new(op, samples, names);
        let rows = Axis::over(plane.lines.iter().map(|(rows, _)| *rows))?;
        let others = plane
            .lines
            .iter()
            .flat_map(|(_, line)| line.iter().map(|(other, _)| *other));
        let other = Axis::over(others)?;
        let mut cells = Vec::with_capacity(rows.count() * other.count());
        for x in rows.middles() {
            let lines = plane.around(x);
            for y in other.middles() {
                let times: Times = (0..names.len()).map(|index| lines.time(index, y)).collect();
                let least = times.iter().flatten().min();
                cells.push(least.and_then(|least| {
                    let is_least = |time: &Option<i64>| time.is_some_and(|time| time <= least + EQUAL);
                    times.iter().position(is_least)
                }));
            }
        }
        let mut winners: Vec<usize> = cells
            .iter()
            .flatten()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let means = plane.means(names.len());
        winners.sort_by_key(|index| (plane.gaps(*index), means[*index]));
        if winners.is_empty() {
            return None;
        }
        Some(Self {
            winners,
            typical: means.into_iter().map(|mean| mean.map(exp2)).collect(),
            cells,
            rows,
            other,
        })
    }

    /// The classes, where there are several; `backends` are those of `winners`.
    pub fn classes(&self, op: Op, backends: Vec<BackendRef>) -> Option<Classes> {
        let class = |winner: &Option<usize>| {
            let found = winner.and_then(|winner| self.winners.iter().position(|other| *other == winner));
            u16::try_from(found.unwrap_or_default()).expect("a few backends")
        };
        (backends.len() > 1).then(|| Classes {
            op,
            backends,
            rows: self.rows,
            other: self.other,
            cells: self.cells.iter().map(class).collect(),
        })
    }
}

/// Logarithms of times by backend; none where it was not timed.
type Times = Vec<Option<i64>>;

/// Samples of one number of rows, each with its other coordinate.
type Line = Vec<(i64, Times)>;

/// The measured times: lines of one number of rows each.
struct Plane {
    lines: Vec<(i64, Line)>,
}

impl Plane {
    fn new(op: Op, samples: &[Sample], names: &[Option<&str>]) -> Self {
        let mut lines: BTreeMap<i64, BTreeMap<i64, Times>> = BTreeMap::new();
        for sample in samples {
            let (x, y) = sample.load.place(op);
            let times = names
                .iter()
                .map(|name| sample.nanoseconds.get((*name)?).map(|time| log2(*time)));
            lines.entry(x).or_default().insert(y, times.collect());
        }
        let lines = lines.into_iter().map(|(x, line)| (x, line.into_iter().collect()));
        Self {
            lines: lines.collect(),
        }
    }

    fn around(&self, x: i64) -> Lines<'_> {
        let above = self.lines.partition_point(|(line, _)| *line < x);
        let below = above.checked_sub(1).map(|index| &self.lines[index]);
        match (below, self.lines.get(above)) {
            (Some(below), Some(above)) if above.0 > x => Lines {
                below: &below.1,
                above: Some((&above.1, x - below.0, above.0 - below.0)),
            },
            (_, Some(line)) | (Some(line), None) => Lines {
                below: &line.1,
                above: None,
            },
            (None, None) => Lines {
                below: &[],
                above: None,
            },
        }
    }

    fn samples(&self) -> impl Iterator<Item = &Times> {
        self.lines
            .iter()
            .flat_map(|(_, line)| line.iter().map(|(_, times)| times))
    }

    /// At how many loads another backend was timed, and this one was not.
    fn gaps(&self, index: usize) -> usize {
        self.samples()
            .filter(|times| times[index].is_none() && times.iter().any(Option::is_some))
            .count()
    }

    /// The logarithm of each backend's geometric mean over the loads at which all of those with a time were timed;
    /// where there is none, over its own.
    fn means(&self, count: usize) -> Times {
        let timed: Vec<usize> = (0..count)
            .filter(|index| self.samples().any(|times| times[*index].is_some()))
            .collect();
        let common = |times: &&Times| timed.iter().all(|index| times[*index].is_some());
        let shared = self.samples().any(|times| common(&times));
        let mean = |index: usize| {
            let known: Vec<i64> = self
                .samples()
                .filter(|times| !shared || common(times))
                .filter_map(|times| times[index])
                .collect();
            let sum: i64 = known.iter().sum();
            sum.checked_div(i64::try_from(known.len()).ok()?)
        };
        (0..count).map(mean).collect()
    }
}

/// The lines on both sides of a number of rows, or the one that it lies on or is nearest to.
struct Lines<'a> {
    below: &'a [(i64, Times)],
    /// With how far it is from the line below to where the time is wanted, and how far to here.
    above: Option<(&'a Line, i64, i64)>,
}

impl Lines<'_> {
    /// The logarithm of a backend's time, linear between the measured ones; none where one that it takes is not known.
    fn time(&self, index: usize, y: i64) -> Option<i64> {
        let below = along(self.below, index, y)?;
        let Some((line, part, whole)) = self.above else {
            return Some(below);
        };
        Some(between(below, along(line, index, y)?, part, whole))
    }
}

fn along(line: &[(i64, Times)], index: usize, y: i64) -> Option<i64> {
    let above = line.partition_point(|(place, _)| *place < y);
    let below = above.checked_sub(1).map(|index| &line[index]);
    match (below, line.get(above)) {
        (Some(below), Some(above)) if above.0 > y => Some(between(
            below.1[index]?,
            above.1[index]?,
            y - below.0,
            above.0 - below.0,
        )),
        (_, Some(sample)) | (Some(sample), None) => sample.1[index],
        (None, None) => None,
    }
}

const fn between(below: i64, above: i64, part: i64, whole: i64) -> i64 {
    below + (above - below) * part / whole
}

/// The number that a logarithm in [`OCTAVE`]s is of, for people.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time, and positive"
)]
fn exp2(logarithm: i64) -> u64 {
    (logarithm as f64 / OCTAVE as f64).exp2().round() as u64
}

/// The JSON form of [`Classes`]: the cells as runs of one class.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    op: Op,
    backends: Vec<BackendRef>,
    rows: Axis,
    other: Axis,
    runs: Vec<(u16, u32)>,
}

impl From<Classes> for Document {
    fn from(classes: Classes) -> Self {
        Self {
            runs: classes.runs(),
            op: classes.op,
            backends: classes.backends,
            rows: classes.rows,
            other: classes.other,
        }
    }
}

/// Classes that contradict themselves, though each of their parts can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the cells of the classes are not as many as their bounds say, or of a class without a backend")]
pub struct ClassesError;

impl TryFrom<Document> for Classes {
    type Error = ClassesError;

    fn try_from(document: Document) -> Result<Self, ClassesError> {
        let Document {
            op,
            backends,
            rows,
            other,
            runs,
        } = document;
        // as many as logarithms of 64 bits can be apart, in either direction
        let bounded = |axis: Axis| axis.first <= axis.last && axis.count() <= 130 * 8;
        let count = runs.iter().map(|(_, count)| u64::from(*count)).sum::<u64>();
        if !bounded(rows)
            || !bounded(other)
            || count != (rows.count() * other.count()) as u64
            || runs
                .iter()
                .any(|(class, _)| usize::from(*class) >= backends.len())
        {
            return Err(ClassesError);
        }
        let cells = runs
            .iter()
            .flat_map(|(class, count)| std::iter::repeat_n(*class, *count as usize));
        Ok(Self {
            cells: cells.collect(),
            op,
            backends,
            rows,
            other,
        })
    }
}
