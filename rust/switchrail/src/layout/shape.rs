//! The sizes of an op in one kind of layer.

use serde::{Deserialize, Serialize};

/// The sizes of an op in one kind of layer, as far as the config gives them.
///
/// | op | heads | head sizes |
/// |---|---|---|
/// | `attention` | queries; keys and values (groups) | of a key, of a value |
/// | `mla` | queries; one latent | of the latent with its rotary part, of the latent |
/// | `gated_delta`, `kda`, `lightning` | queries and keys; values | K and V of the state |
/// | `mamba2` | groups (C and B); heads (x) | state size, head size |
/// | `short_conv` | | (`channels` and `width` instead) |
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Heads of the queries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q_heads: Option<u32>,
    /// Heads of the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k_heads: Option<u32>,
    /// Heads of the values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_heads: Option<u32>,
    /// Size of a key's head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_size_k: Option<u32>,
    /// Size of a value's head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_size_v: Option<u32>,
    /// Sliding window, in tokens: `i - j < window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Channels of the convolution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Width of the convolution, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
}
