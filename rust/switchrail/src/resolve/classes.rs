//! Classes of loads, and the fastest backend for each class.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{
    BackendRef, Sample,
    load::{OCTAVE, log2},
};
use crate::{Op, Phase};

/// Width of interpolated bands, an eighth of an octave (9 %). Coordinates at which two backends' times cross are
/// rounded to multiples of it, so nearly equal times give equal thresholds.
const STEP: i64 = OCTAVE / 8;

/// A coordinate below those of all loads.
const LEAST: i64 = -(1 << 7) * OCTAVE;

/// Times within 1 % of each other are treated as equal; two runs of one backend differ by more.
const EQUAL: i64 = OCTAVE * 144 / 10_000;

/// Ascending thresholds, each with the value that applies from it to the next. The first value also
/// applies below the first threshold.
type Thresholds<T> = Vec<(i64, T)>;

fn at<T>(thresholds: &Thresholds<T>, coordinate: i64) -> &T {
    let reached = thresholds.partition_point(|(from, _)| *from <= coordinate);
    &thresholds[reached.saturating_sub(1)].1
}

/// The classes of loads for one decision, each with the backend that serves it.
///
/// A load has two coordinates. The first, its number of rows, selects a band. The second, which depends on op
/// and phase, selects a class in the band. A class is the set of loads that one backend serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Classes {
    /// One backend per class. The first backend also serves batches of unknown size.
    backends: Vec<BackendRef>,
    bands: Thresholds<Thresholds<usize>>,
}

impl Classes {
    /// One backend per class. The first is the decision's chosen backend.
    #[must_use]
    pub fn backends(&self) -> &[BackendRef] {
        &self.backends
    }

    /// The class of the loads at a pair of coordinates ([`Load::coordinates`](super::Load::coordinates)).
    pub(super) fn at(&self, (rows, second): (i64, i64)) -> usize {
        *at(at(&self.bands, rows), second)
    }

    /// The thresholds, to compare classes.
    pub(crate) const fn bands(&self) -> &Thresholds<Thresholds<usize>> {
        &self.bands
    }
}

/// The form that is read, before it is checked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    backends: Vec<BackendRef>,
    bands: Thresholds<Thresholds<usize>>,
}

/// The classes in a document are invalid, although each of their parts can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the classes have no thresholds, thresholds that do not ascend, or a class without a backend")]
pub struct ClassesError;

impl TryFrom<Unchecked> for Classes {
    type Error = ClassesError;

    fn try_from(document: Unchecked) -> Result<Self, ClassesError> {
        fn ascends<T>(thresholds: &Thresholds<T>) -> bool {
            !thresholds.is_empty() && thresholds.is_sorted_by(|(one, _), (next, _)| one < next)
        }
        let Unchecked { backends, bands } = document;
        let known = |band: &Thresholds<usize>| band.iter().all(|(_, class)| *class < backends.len());
        if !ascends(&bands) || !bands.iter().all(|(_, band)| ascends(band) && known(band)) {
            return Err(ClassesError);
        }
        Ok(Self { backends, bands })
    }
}

/// The result of comparing several backends' times.
pub(super) struct Verdict {
    /// The indices of the backends that are the fastest at some load. They are sorted by the number of loads
    /// at which they were not timed, because a missing time can mean a failure, then by [`Self::typical`].
    pub winners: Vec<usize>,
    /// Nanoseconds of each backend: the geometric mean, as in [`Plane::means`].
    pub typical: Vec<Option<u64>>,
    /// For each band and class, the index of the fastest backend.
    bands: Thresholds<Thresholds<usize>>,
}

impl Verdict {
    /// Compares backends by their samples. `names` is in order of precedence; an entry without a name is
    /// ignored. `None` if no time is known.
    pub fn new(op: Op, phase: Phase, samples: &[Sample], names: &[Option<&str>]) -> Option<Self> {
        let plane = Plane::new(op, phase, samples, names);
        let bands = plane.bands();
        let serving = bands
            .iter()
            .flat_map(|(_, band)| band.iter().map(|(_, backend)| *backend));
        let mut winners: Vec<usize> = serving.collect::<BTreeSet<_>>().into_iter().collect();
        let means = plane.means(names.len());
        winners.sort_by_cached_key(|index| (plane.gaps(*index), means[*index]));
        (!winners.is_empty()).then(|| Self {
            winners,
            typical: means.into_iter().map(|mean| mean.map(exp2)).collect(),
            bands,
        })
    }

    /// The typical time of a winner.
    pub fn time_of_winner(&self, index: usize) -> u64 {
        self.typical[index].expect("a winner was timed")
    }

    /// The classes, if there are several. `backends` has one entry for each of `winners`.
    pub fn classes(&self, backends: Vec<BackendRef>) -> Option<Classes> {
        let numbers: HashMap<usize, usize> = self.winners.iter().copied().zip(0..).collect();
        let class = |(from, backend): &(i64, usize)| (*from, numbers[backend]);
        let band = |(from, band): &(i64, Thresholds<usize>)| (*from, band.iter().map(class).collect());
        (backends.len() > 1).then(|| Classes {
            backends,
            bands: self.bands.iter().map(band).collect(),
        })
    }
}

/// Logarithms of times, by backend; `None` for a backend that was not timed.
type Times = Vec<Option<i64>>;

/// Samples with the same number of rows, each with its second coordinate.
type Line = Vec<(i64, Times)>;

/// The measured times: one line per number of rows, with the samples at which some backend was timed.
struct Plane {
    lines: Vec<(i64, Line)>,
}

impl Plane {
    fn new(op: Op, phase: Phase, samples: &[Sample], names: &[Option<&str>]) -> Self {
        let mut lines: BTreeMap<i64, BTreeMap<i64, Times>> = BTreeMap::new();
        for sample in samples {
            let (rows, second) = sample.load.coordinates(op, phase);
            let times = names
                .iter()
                .map(|name| sample.nanoseconds.get((*name)?).map(|time| log2(*time)));
            let times: Times = times.collect();
            if times.iter().any(Option::is_some) {
                lines.entry(rows).or_default().insert(second, times);
            }
        }
        let lines = lines
            .into_iter()
            .map(|(rows, line)| (rows, line.into_iter().collect()));
        Self {
            lines: lines.collect(),
        }
    }

    /// The fastest backends by load: one band for each measured or interpolated line, with equal neighbours
    /// merged.
    fn bands(&self) -> Thresholds<Thresholds<usize>> {
        let mut bands: Thresholds<Thresholds<usize>> = Vec::new();
        let mut last = None;
        for (rows, line) in self.filled() {
            let own = thresholds(&line);
            if bands.last().is_none_or(|(_, before)| *before != own) {
                bands.push((last.map_or(LEAST, |last: i64| last.midpoint(rows)), own));
            }
            last = Some(rows);
        }
        bands
    }

    /// The measured lines, and between them interpolated lines at intervals of [`STEP`].
    fn filled(&self) -> Vec<(i64, Line)> {
        let mut filled = Vec::new();
        for (index, (rows, line)) in self.lines.iter().enumerate() {
            if let Some((below, low)) = index.checked_sub(1).map(|index| &self.lines[index]) {
                let coordinates: BTreeSet<i64> = low
                    .iter()
                    .chain(line)
                    .map(|(coordinate, _)| *coordinate)
                    .collect();
                let sides: Vec<_> = coordinates
                    .into_iter()
                    .map(|coordinate| (coordinate, along(low, coordinate), along(line, coordinate)))
                    .collect();
                let whole = rows - below;
                for part in (1..whole / STEP).map(|step| step * STEP) {
                    let times = sides
                        .iter()
                        .map(|(coordinate, low, high)| (*coordinate, between(low, high, part, whole)));
                    let line: Line = times
                        .filter(|(_, times)| times.iter().any(Option::is_some))
                        .collect();
                    if !line.is_empty() {
                        filled.push((below + part, line));
                    }
                }
            }
            filled.push((*rows, line.clone()));
        }
        filled
    }

    fn samples(&self) -> impl Iterator<Item = &Times> {
        self.lines
            .iter()
            .flat_map(|(_, line)| line.iter().map(|(_, times)| times))
    }

    /// The number of loads at which a backend was not timed although another one was.
    fn gaps(&self, index: usize) -> usize {
        self.samples().filter(|times| times[index].is_none()).count()
    }

    /// The logarithm of each backend's geometric mean, over the loads at which all timed backends were timed.
    /// If there are no such loads, over the backend's own loads.
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

/// The logarithms of all backends' times at a coordinate on a line, interpolated linearly between samples.
/// Beyond the ends of the line, those of the nearest sample.
fn along(line: &Line, coordinate: i64) -> Times {
    let above = line.partition_point(|(other, _)| *other < coordinate);
    match (above.checked_sub(1).map(|below| &line[below]), line.get(above)) {
        (Some((low, below)), Some((high, above))) if *high > coordinate => {
            between(below, above, coordinate - low, high - low)
        }
        (_, Some((_, times))) | (Some((_, times)), None) => times.clone(),
        (None, None) => Times::new(),
    }
}

/// Interpolates times at the fraction `part / whole`; `None` where a time at either end is unknown.
fn between(below: &Times, above: &Times, part: i64, whole: i64) -> Times {
    let ends = below.iter().zip(above);
    ends.map(|(below, above)| Some((*below)? + ((*above)? - (*below)?) * part / whole))
        .collect()
}

/// The thresholds of the fastest backends along a line.
fn thresholds(line: &Line) -> Thresholds<usize> {
    let fastest: Vec<usize> = line.iter().map(|(_, times)| fastest(times)).collect();
    let mut found = vec![(LEAST, fastest[0])];
    for (sides, winners) in line.windows(2).zip(fastest.windows(2)) {
        if winners[0] != winners[1] {
            found.push((crossing(&sides[0], &sides[1], winners[0], winners[1]), winners[1]));
        }
    }
    found
}

/// The first backend whose time is within [`EQUAL`] of the shortest.
fn fastest(times: &Times) -> usize {
    let least = times.iter().flatten().min().expect("one was timed");
    let among = |time: &Option<i64>| time.is_some_and(|time| time <= least + EQUAL);
    times.iter().position(among).expect("one takes the least")
}

/// The coordinate between two samples at which the fastest backend changes: where the interpolated logarithms
/// cross. If `left` was not timed at the upper sample, the change is right after the lower one. If `right`
/// was not timed at the lower sample, the change is at the upper one.
fn crossing((low, below): &(i64, Times), (high, above): &(i64, Times), left: usize, right: usize) -> i64 {
    let lead = |times: &Times, one: usize, other: usize| Some((times[other]? - times[one]?).max(0));
    let Some(behind) = lead(above, right, left) else {
        return low + 1;
    };
    let Some(ahead) = lead(below, left, right) else {
        return *high;
    };
    let part = ((high - low) * ahead)
        .checked_div(ahead + behind)
        .unwrap_or((high - low) / 2);
    let rounded = (low + part + STEP / 2).div_euclid(STEP) * STEP;
    rounded.clamp(low + 1, *high)
}

/// Converts a logarithm in units of [`OCTAVE`] back to a number.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time, and positive"
)]
fn exp2(logarithm: i64) -> u64 {
    (logarithm as f64 / OCTAVE as f64).exp2().round() as u64
}
