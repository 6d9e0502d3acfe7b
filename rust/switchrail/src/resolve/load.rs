//! The size of a call.

use serde::{Deserialize, Serialize};

use crate::{Op, Phase};

/// One octave in fixed-point logarithms, which are integers so that all machines compute the same values.
pub(super) const OCTAVE: i64 = 1 << 24;

/// The size of a call: the two numbers of its batch that most affect its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// Number of rows (new tokens) in the batch.
    pub rows: u64,
    /// For a paged op, the average number of tokens that a row attends to; for other ops, the rows of the
    /// longest sequence.
    pub length: u64,
}

impl Load {
    /// The load of a batch, given the number of rows and the number of cached tokens after the call for each
    /// sequence.
    ///
    /// ```
    /// use switchrail::{Load, Op};
    ///
    /// let ragged = [(28_672, 28_672), (4_096, 4_096)];
    /// assert_eq!(Load::of(Op::GatedDelta, ragged), Load { rows: 32_768, length: 28_672 });
    /// assert_eq!(Load::of(Op::Attention, [(1, 1_000), (1, 3_000)]), Load { rows: 2, length: 2_000 });
    /// ```
    #[must_use]
    pub fn of(op: Op, sequences: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let (mut rows, mut longest, mut seen) = (0_u64, 0, 0_u64);
        for (own, cached) in sequences {
            rows = rows.saturating_add(own);
            longest = longest.max(own);
            // Row i attends to the tokens that were cached before, to the rows before it and to itself.
            let twice = cached.saturating_mul(2).saturating_add(1).saturating_sub(own);
            seen = seen.saturating_add(own.saturating_mul(twice).div_ceil(2));
        }
        let length = if op.is_paged() {
            seen.div_ceil(rows.max(1))
        } else {
            longest
        };
        Self { rows, length }
    }

    /// The load as coordinates: the logarithms of its rows and of a second number.
    ///
    /// In decode and verify of a paged op, the second number is rows * length, the number of tokens read. In all
    /// other cases it is rows / length, an estimate of the number of sequences. (For prefill of a paged op
    /// without cached tokens, the estimate is twice the number.)
    pub(super) fn coordinates(self, op: Op, phase: Phase) -> (i64, i64) {
        let (rows, length) = (log2(self.rows), log2(self.length));
        let is_product = op.is_paged() && phase != Phase::Prefill;
        (rows, if is_product { rows + length } else { rows - length })
    }
}

/// The base-2 logarithm of a number, in units of [`OCTAVE`], rounded down. Zero is treated as one.
pub(super) fn log2(number: u64) -> i64 {
    let zeros = number.max(1).leading_zeros();
    let mut mantissa = u128::from(number.max(1) << zeros); // from 1 to 2, with 63 fractional bits
    let mut bits = i64::from(63 - zeros);
    for _ in 0..OCTAVE.trailing_zeros() {
        mantissa = (mantissa * mantissa) >> 63;
        let carry = mantissa >> 64 == 1; // without a branch, which would be mispredicted half of the time
        mantissa >>= u32::from(carry);
        bits = (bits << 1) | i64::from(carry);
    }
    bits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        #[allow(clippy::cast_precision_loss, reason = "bounds have room for it")]
        fn a_logarithm_is_right_and_grows(number in 1_u64.., other in 1_u64..) {
            let exact = (number as f64).log2() * OCTAVE as f64;
            prop_assert!((log2(number) as f64 - exact).abs() <= 1.5, "{} {exact}", log2(number));
            prop_assert!(number > other || log2(number) <= log2(other));
        }

        #[test]
        fn a_power_of_two_is_exact(power in 0_u32..64) {
            prop_assert_eq!(log2(1 << power), i64::from(power) * OCTAVE);
        }

        #[test]
        fn a_load_equals_a_count_row_by_row(sequences in prop::collection::vec((0_u64..5_000, 0_u64..9_000), 0..40)) {
            let sequences: Vec<_> = sequences.into_iter().map(|(own, past)| (own, own + past)).collect();
            let rows: u64 = sequences.iter().map(|(own, _)| own).sum();
            let longest = sequences.iter().map(|(own, _)| *own).max().unwrap_or(0);
            prop_assert_eq!(Load::of(Op::Kda, sequences.clone()), Load { rows, length: longest });
            let seen: u64 = sequences.iter().flat_map(|(own, cached)| cached - own + 1..=*cached).sum();
            let found = Load::of(Op::Mla, sequences.clone());
            prop_assert_eq!(found.rows, rows);
            // the implementation rounds each sequence's half up
            let least = seen.div_ceil(rows.max(1));
            prop_assert!(least <= found.length && found.length <= least + 1, "{found:?} {least}");
            let mut turned = sequences;
            turned.reverse();
            prop_assert_eq!(Load::of(Op::Mla, turned), found);
        }
    }

    #[test]
    fn an_empty_batch_has_coordinates() {
        let empty = Load::of(Op::Kda, []);
        assert_eq!(
            (empty, empty.coordinates(Op::Kda, Phase::Prefill)),
            (Load { rows: 0, length: 0 }, (0, 0))
        );
        assert_eq!(log2(0), 0);
    }

    #[test]
    fn no_batch_is_too_large() {
        let most = u64::MAX;
        let load = Load::of(Op::Mla, [(1, most), (1, most)]);
        assert!((load.rows, load.length >= most / 4) == (2, true), "{load:?}");
        let load = Load::of(Op::Mla, [(most, most), (most, 0)]);
        assert_eq!(load.rows, most);
        assert!(load.coordinates(Op::Mla, Phase::Decode).0 < 64 * OCTAVE);
    }
}
