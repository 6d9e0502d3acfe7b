//! Which backend is fastest for which loads.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{
    BackendRef, Load, Sample,
    load::{OCTAVE, log2},
};
use crate::Op;

/// How far apart the middles of two neighbouring classes are: an eighth of an octave, 9 %.
const STEP: i64 = OCTAVE / 8;

/// So many classes at most; what others would serve goes to the first.
const MOST_CLASSES: usize = 1 << 10;

/// Times that are no further apart count as equal: 1 %, which is less than two runs of one backend differ by.
const EQUAL: i64 = OCTAVE * 144 / 10_000;

/// What is slower than another by more than this is never within [`EQUAL`] of it, however it is rounded.
const SLOWER: i64 = EQUAL + 2;

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
        let cells = plane.cells(rows, other);
        let mut winners: Vec<usize> = cells
            .iter()
            .flatten()
            .copied()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect();
        let means = plane.means(names.len());
        winners.sort_by_cached_key(|index| (plane.gaps(*index), means[*index]));
        winners.truncate(MOST_CLASSES);
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
        let numbers: HashMap<usize, u16> = self.winners.iter().copied().zip(0..).collect();
        let class = |winner: &Option<usize>| {
            let found = winner.and_then(|winner| numbers.get(&winner));
            found.copied().unwrap_or_default()
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

    /// The fastest backend of each cell, line by line; none where no time is known.
    fn cells(&self, rows: Axis, other: Axis) -> Vec<Option<usize>> {
        let mut cells = Vec::with_capacity(rows.count() * other.count());
        // The same for all cells between two lines.
        let (mut sides, mut contenders) = (None, Vec::new());
        for x in rows.middles() {
            let (below, above) = self.around(x);
            let (low, high) = (&self.lines[below], &self.lines[above]);
            if sides.replace((below, above)) != Some((below, above)) {
                let at = |y| Contender::all(&along(&low.1, y), &along(&high.1, y));
                contenders = other.middles().map(at).collect();
            }
            cells.extend(contenders.iter().map(|at| fastest(at, x - low.0, high.0 - low.0)));
        }
        cells
    }

    /// The lines on both sides of a number of rows; twice the one that it lies on or is nearest to.
    fn around(&self, x: i64) -> (usize, usize) {
        let above = self.lines.partition_point(|(line, _)| *line < x);
        match (above.checked_sub(1), self.lines.get(above)) {
            (Some(below), Some(line)) if line.0 > x => (below, above),
            (_, Some(_)) => (above, above),
            (below, None) => (below.unwrap_or_default(), below.unwrap_or_default()),
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
        let mut counted: Vec<&Times> = self.samples().filter(common).collect();
        if counted.is_empty() {
            counted = self.samples().collect();
        }
        let mean = |index: usize| {
            let known: Vec<i64> = counted.iter().filter_map(|times| times[index]).collect();
            let sum: i64 = known.iter().sum();
            sum.checked_div(i64::try_from(known.len()).ok()?)
        };
        (0..count).map(mean).collect()
    }
}

/// A backend that may be the fastest somewhere between two lines, and its times on them.
#[derive(Debug, Clone, Copy)]
struct Contender {
    backend: usize,
    below: i64,
    above: i64,
}

impl Contender {
    /// Those of the backends with a time on both lines that are not slower than another one on both, in order of
    /// precedence: of hundreds of backends these are a few.
    fn all(below: &Times, above: &Times) -> Vec<Self> {
        let ends = below.iter().zip(above).enumerate();
        let mut timed: Vec<Self> = ends
            .filter_map(|(backend, (below, above))| {
                let (below, above) = ((*below)?, (*above)?);
                Some(Self {
                    backend,
                    below,
                    above,
                })
            })
            .collect();
        timed.sort_unstable_by_key(|each| each.below);
        let (mut faster, mut least_above) = (timed.iter(), i64::MAX);
        let mut kept: Vec<Self> = timed
            .iter()
            .filter(|each| {
                while let Some(other) = faster.as_slice().first()
                    && other.below + SLOWER < each.below
                {
                    least_above = least_above.min(other.above + SLOWER);
                    faster.next();
                }
                each.above <= least_above
            })
            .copied()
            .collect();
        kept.sort_unstable_by_key(|each| each.backend);
        kept
    }

    /// The logarithm of its time, `part` of `whole` of the way from the line below to that above.
    const fn time(self, part: i64, whole: i64) -> i64 {
        if whole > 0 {
            between(self.below, self.above, part, whole)
        } else {
            self.below
        }
    }
}

/// The first of the backends whose time is within [`EQUAL`] of the least; none where no time is known.
fn fastest(contenders: &[Contender], part: i64, whole: i64) -> Option<usize> {
    let times = || {
        contenders
            .iter()
            .map(|each| (each.backend, each.time(part, whole)))
    };
    let least = times().map(|(_, time)| time).min()?;
    times()
        .find(|(_, time)| *time <= least + EQUAL)
        .map(|(backend, _)| backend)
}

/// The logarithms of the times of all backends at a place of a line, linear between the measured ones; none where one
/// that it takes is not known.
fn along(line: &Line, y: i64) -> Times {
    let above = line.partition_point(|(place, _)| *place < y);
    let below = above.checked_sub(1).map(|index| &line[index]);
    match (below, line.get(above)) {
        (Some((low, below)), Some((high, above))) if *high > y => {
            let ends = below.iter().zip(above);
            ends.map(|(below, above)| Some(between((*below)?, (*above)?, y - low, high - low)))
                .collect()
        }
        (_, Some((_, times))) | (Some((_, times)), None) => times.clone(),
        (None, None) => Times::new(),
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
