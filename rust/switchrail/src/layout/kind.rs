//! The kinds of layers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Op, UnknownName};

/// What one layer of a model is, named after its mixer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LayerKind {
    /// Softmax attention over all earlier tokens.
    FullAttention,
    /// Softmax attention over a window.
    SlidingAttention,
    /// Softmax attention over compressed latents.
    Mla,
    /// Gated delta rule, with its convolution.
    GatedDelta,
    /// Kimi delta attention, with its convolution.
    Kda,
    /// Lightning attention.
    Lightning,
    /// Mamba2, with its convolution.
    Mamba2,
    /// Mamba1, with its convolution.
    Mamba1,
    /// A gated short convolution alone.
    ShortConv,
    /// The RG-LRU recurrence, with its convolution.
    RgLru,
    /// A state-space mixer and attention under one layer id.
    Hybrid,
    /// Experts only, no mixer.
    Moe,
    /// A feed-forward network only, no mixer.
    Mlp,
}

impl LayerKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::FullAttention,
        Self::SlidingAttention,
        Self::Mla,
        Self::GatedDelta,
        Self::Kda,
        Self::Lightning,
        Self::Mamba2,
        Self::Mamba1,
        Self::ShortConv,
        Self::RgLru,
        Self::Hybrid,
        Self::Moe,
        Self::Mlp,
    ];

    /// Its name in documents and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::FullAttention => "full_attention",
            Self::SlidingAttention => "sliding_attention",
            Self::Mla => "mla",
            Self::GatedDelta => "gated_delta",
            Self::Kda => "kda",
            Self::Lightning => "lightning",
            Self::Mamba2 => "mamba2",
            Self::Mamba1 => "mamba1",
            Self::ShortConv => "short_conv",
            Self::RgLru => "rg_lru",
            Self::Hybrid => "hybrid",
            Self::Moe => "moe",
            Self::Mlp => "mlp",
        }
    }

    /// The ops that such a layer runs, in the order of its forward.
    ///
    /// A hybrid layer's state-space half is Mamba2 here; a family where it is another says so in its layers.
    #[must_use]
    pub const fn ops(self) -> &'static [Op] {
        match self {
            Self::FullAttention | Self::SlidingAttention => &[Op::Attention],
            Self::Mla => &[Op::Mla],
            Self::GatedDelta => &[Op::ShortConv, Op::GatedDelta],
            Self::Kda => &[Op::ShortConv, Op::Kda],
            Self::Lightning => &[Op::Lightning],
            Self::Mamba2 => &[Op::ShortConv, Op::Mamba2],
            Self::Mamba1 | Self::ShortConv | Self::RgLru => &[Op::ShortConv],
            Self::Hybrid => &[Op::ShortConv, Op::Mamba2, Op::Attention],
            Self::Moe | Self::Mlp => &[],
        }
    }

    /// What such a layer computes besides and no op covers.
    #[must_use]
    pub const fn uncovered(self) -> Option<&'static str> {
        match self {
            Self::Mamba1 => Some("the selective scan of mamba1"),
            Self::RgLru => Some("the RG-LRU recurrence"),
            _ => None,
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for LayerKind {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
            .ok_or_else(|| UnknownName::new("layer kind", name, Self::ALL.map(Self::as_str)))
    }
}
