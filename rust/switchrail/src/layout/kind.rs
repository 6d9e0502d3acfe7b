//! The kinds of layers.

use crate::{Op, name::names};

names! {
    /// The kind of a layer, named after its mixer.
    #[non_exhaustive]
    LayerKind, "layer kind", LayerKind, {
        /// Softmax attention over all earlier tokens.
        FullAttention = "full_attention",
        /// Softmax attention over a window.
        SlidingAttention = "sliding_attention",
        /// Softmax attention over compressed latents.
        Mla = "mla",
        /// Gated delta rule, with its convolution.
        GatedDelta = "gated_delta",
        /// Kimi delta attention, with its convolution.
        Kda = "kda",
        /// Lightning attention.
        Lightning = "lightning",
        /// Mamba2, with its convolution.
        Mamba2 = "mamba2",
        /// Mamba1, with its convolution.
        Mamba1 = "mamba1",
        /// A gated short convolution alone.
        ShortConv = "short_conv",
        /// The RG-LRU recurrence, with its convolution.
        RgLru = "rg_lru",
        /// A state-space mixer and attention under one layer id.
        Hybrid = "hybrid",
        /// Experts only, no mixer.
        Moe = "moe",
        /// A feed-forward network only, no mixer.
        Mlp = "mlp",
    }
}

impl LayerKind {
    /// The ops of a layer of this kind, in the order of the layer's forward.
    ///
    /// For a hybrid layer, the state-space half is Mamba2 here; [`Layout`](crate::Layout) replaces it for
    /// families that use another one.
    pub(super) const fn ops(self) -> &'static [Op] {
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

    /// The part of the layer's computation that no op covers.
    pub(super) const fn uncovered(self) -> Option<&'static str> {
        match self {
            Self::Mamba1 => Some("the selective scan of mamba1"),
            Self::RgLru => Some("the RG-LRU recurrence"),
            _ => None,
        }
    }
}
