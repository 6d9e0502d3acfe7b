//! The sizes of ops in each kind of layer, read from configs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LayerKind::{
    self, FullAttention, GatedDelta, Hybrid, Kda, Lightning, Mamba1, Mamba2, Mla, RgLru, ShortConv,
    SlidingAttention,
};
use super::LayoutError;
use super::config::Config;
use crate::Op;

/// The sizes and options of an op in one kind of layer, as far as the config gives them.
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
    /// Number of query heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q_heads: Option<u32>,
    /// Number of key heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub k_heads: Option<u32>,
    /// Number of value heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_heads: Option<u32>,
    /// Head size of keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_size_k: Option<u32>,
    /// Head size of values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_size_v: Option<u32>,
    /// Sliding window, in tokens: `i - j < window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// Number of channels of the convolution.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Width of the convolution, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Whether the logits of attention are capped.
    #[serde(skip_serializing_if = "is_false")]
    pub soft_cap: bool,
    /// Whether each row's softmax has one more logit, which has no value (attention sinks).
    #[serde(skip_serializing_if = "is_false")]
    pub sinks: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The shapes of ops, each with the kind of layer that has the op.
pub(super) type KindShapes = Vec<(LayerKind, Op, Shape)>;

type Size = Result<Option<u32>, LayoutError>;
type Shapes = Result<KindShapes, LayoutError>;

/// `head_dim`, or else the hidden size divided by the number of heads.
pub(super) fn head_size(config: &Config) -> Size {
    match config.size("head_dim")? {
        Some(size) => Ok(Some(size)),
        None => Ok(divided(
            config.size("hidden_size")?,
            config.size("num_attention_heads")?,
        )),
    }
}

pub(super) fn gated_delta_family(config: &Config, head_size: Option<u32>) -> Shapes {
    let k_heads = config.size("linear_num_key_heads")?;
    let v_heads = config.size("linear_num_value_heads")?;
    let head_size_k = config.size("linear_key_head_dim")?;
    let head_size_v = config.size("linear_value_head_dim")?;
    let delta = Shape {
        q_heads: k_heads,
        k_heads,
        v_heads,
        head_size_k,
        head_size_v,
        ..Shape::default()
    };
    let keys = times(times(k_heads, head_size_k), Some(2));
    let channels = plus(keys, times(v_heads, head_size_v));
    Ok(vec![
        (FullAttention, Op::Attention, attention(config, head_size)?),
        (GatedDelta, Op::GatedDelta, delta),
        (
            GatedDelta,
            Op::ShortConv,
            convolution(channels, config.size("linear_conv_kernel_dim")?),
        ),
    ])
}

pub(super) fn kimi_linear(config: &Config) -> Shapes {
    let section = config.get("linear_attn_config").and_then(Value::as_object);
    let size = |nested: &str, own: &str| match section.and_then(|section| section.get(nested)) {
        Some(value) if !value.is_null() => config
            .to_size(&format!("linear_attn_config.{nested}"), value)
            .map(Some),
        _ => config.size(own),
    };
    kimi_delta(
        config,
        size("num_heads", "linear_num_heads")?,
        size("head_dim", "linear_head_dim")?,
        size("short_conv_kernel_size", "linear_conv_kernel_dim")?,
    )
}

pub(super) fn bailing_hybrid(config: &Config) -> Shapes {
    // In configs that transformers saved, head_dim has the rotary size, and KDA's head size is in
    // linear_head_dim.
    kimi_delta(
        config,
        config.either_size("linear_num_heads", "num_attention_heads")?,
        config.either_size("linear_head_dim", "head_dim")?,
        config.either_size("linear_conv_kernel_dim", "short_conv_kernel_size")?,
    )
}

pub(super) fn ring(config: &Config) -> Shapes {
    let heads = config.size("num_attention_heads")?;
    let lightning = linear(heads, head_size(config)?);
    Ok(vec![
        (Mla, Op::Mla, latents(config)?),
        (Lightning, Op::Lightning, lightning),
    ])
}

pub(super) fn ring_linear(config: &Config) -> Shapes {
    let head_size = head_size(config)?;
    let full = attention(config, head_size)?;
    Ok(vec![
        (FullAttention, Op::Attention, full),
        (Lightning, Op::Lightning, linear(full.q_heads, head_size)),
    ])
}

pub(super) fn minimax(config: &Config) -> Shapes {
    let head_size = head_size(config)?;
    let full = attention(config, head_size)?;
    let mut shapes = softmax_of(full, config)?;
    shapes.push((Lightning, Op::Lightning, linear(full.q_heads, head_size)));
    Ok(shapes)
}

pub(super) fn mamba2_and_attention(config: &Config) -> Shapes {
    let inner = times(config.size("mamba_expand")?, config.size("hidden_size")?);
    let (scan, convolution) = mamba2(config, "mamba_n_heads", "mamba_n_groups", inner)?;
    Ok(vec![
        (
            FullAttention,
            Op::Attention,
            attention(config, head_size(config)?)?,
        ),
        (Mamba2, Op::Mamba2, scan),
        (Mamba2, Op::ShortConv, convolution),
    ])
}

pub(super) fn nemotron_h(config: &Config) -> Shapes {
    // As in transformers, the older keys (`mamba_n_groups` and `mamba_d_conv`) take precedence.
    let heads = config.size("mamba_num_heads")?;
    let groups = config.either_size("mamba_n_groups", "n_groups")?;
    let inner = times(heads, config.size("mamba_head_dim")?);
    let (scan, channels) = state_space(heads, groups, config.size("ssm_state_size")?, inner);
    Ok(vec![
        (
            FullAttention,
            Op::Attention,
            attention(config, config.size("head_dim")?)?,
        ),
        (Mamba2, Op::Mamba2, scan),
        (
            Mamba2,
            Op::ShortConv,
            convolution(channels, config.either_size("mamba_d_conv", "conv_kernel")?),
        ),
    ])
}

pub(super) fn falcon_h1(config: &Config) -> Shapes {
    let inner = match config.size("mamba_d_ssm")? {
        Some(inner) => Some(inner),
        None => times(config.size("mamba_expand")?, config.size("hidden_size")?),
    };
    let (scan, convolution) = mamba2(config, "mamba_n_heads", "mamba_n_groups", inner)?;
    Ok(vec![
        (Hybrid, Op::Attention, attention(config, head_size(config)?)?),
        (Hybrid, Op::Mamba2, scan),
        (Hybrid, Op::ShortConv, convolution),
    ])
}

pub(super) fn zamba2(config: &Config) -> Shapes {
    let hidden = config.size("hidden_size")?;
    let inner = times(config.size("mamba_expand")?, hidden);
    let (scan, convolution) = mamba2(config, "n_mamba_heads", "mamba_ngroups", inner)?;
    let head_size = divided(times(hidden, Some(2)), config.size("num_attention_heads")?);
    Ok(vec![
        (Hybrid, Op::Attention, attention(config, head_size)?),
        (Hybrid, Op::Mamba2, scan),
        (Hybrid, Op::ShortConv, convolution),
        (Mamba2, Op::Mamba2, scan),
        (Mamba2, Op::ShortConv, convolution),
    ])
}

pub(super) fn zamba(config: &Config) -> Shapes {
    let hidden = config.size("hidden_size")?;
    let head_size = match config.size("attention_head_dim")? {
        Some(size) => Some(size),
        None => divided(times(hidden, Some(2)), config.size("num_attention_heads")?),
    };
    let convolution = convolution(
        times(config.size("mamba_expand")?, hidden),
        config.size("mamba_d_conv")?,
    );
    Ok(vec![
        (Hybrid, Op::Attention, attention(config, head_size)?),
        (Hybrid, Op::ShortConv, convolution),
        (Mamba1, Op::ShortConv, convolution),
    ])
}

pub(super) fn jamba(config: &Config) -> Shapes {
    let channels = times(config.size("mamba_expand")?, config.size("hidden_size")?);
    Ok(vec![
        (
            FullAttention,
            Op::Attention,
            attention(config, head_size(config)?)?,
        ),
        (
            Mamba1,
            Op::ShortConv,
            convolution(channels, config.size("mamba_d_conv")?),
        ),
    ])
}

pub(super) fn mamba(config: &Config) -> Shapes {
    let channels = match config.size("intermediate_size")? {
        Some(channels) => Some(channels),
        None => times(config.size("expand")?, config.size("hidden_size")?),
    };
    Ok(vec![(
        Mamba1,
        Op::ShortConv,
        convolution(channels, config.size("conv_kernel")?),
    )])
}

/// Shapes of full attention and of attention with a window.
pub(super) fn softmax(config: &Config, head_size: Option<u32>) -> Shapes {
    softmax_of(attention(config, head_size)?, config)
}

pub(super) fn gemma2(config: &Config) -> Shapes {
    let full = Shape {
        // A missing key means the default cap of transformers' class.
        soft_cap: !matches!(config.values.get("attn_logit_softcapping"), Some(Value::Null)),
        ..attention(config, config.size("head_dim")?)?
    };
    softmax_of(full, config)
}

pub(super) fn gpt_oss(config: &Config) -> Shapes {
    let full = Shape {
        sinks: true,
        ..attention(config, config.size("head_dim")?)?
    };
    softmax_of(full, config)
}

fn softmax_of(full: Shape, config: &Config) -> Shapes {
    let sliding = Shape {
        window: config.size("sliding_window")?,
        ..full
    };
    Ok(vec![
        (FullAttention, Op::Attention, full),
        (SlidingAttention, Op::Attention, sliding),
    ])
}

pub(super) fn deepseek(config: &Config) -> Shapes {
    Ok(vec![(Mla, Op::Mla, latents(config)?)])
}

pub(super) fn plain_mamba2(config: &Config) -> Shapes {
    let inner = times(config.size("expand")?, config.size("hidden_size")?);
    let (scan, channels) = state_space(
        config.size("num_heads")?,
        config.size("n_groups")?,
        config.size("state_size")?,
        inner,
    );
    Ok(vec![
        (Mamba2, Op::Mamba2, scan),
        (
            Mamba2,
            Op::ShortConv,
            convolution(channels, config.size("conv_kernel")?),
        ),
    ])
}

pub(super) fn lfm(config: &Config, head_size: Option<u32>) -> Shapes {
    let mut shapes = softmax(config, head_size)?;
    let convolution = convolution(config.size("hidden_size")?, config.size("conv_L_cache")?);
    shapes.push((ShortConv, Op::ShortConv, convolution));
    Ok(shapes)
}

pub(super) fn recurrent_gemma(config: &Config) -> Shapes {
    let hidden = config.size("hidden_size")?;
    let head_size = divided(hidden, config.size("num_attention_heads")?);
    let window = config.either_size("attention_window_size", "sliding_window")?;
    let channels = config.size("lru_width")?.or(hidden);
    Ok(vec![
        (
            SlidingAttention,
            Op::Attention,
            Shape {
                window,
                ..attention(config, head_size)?
            },
        ),
        (
            RgLru,
            Op::ShortConv,
            convolution(channels, config.size("conv1d_width")?),
        ),
    ])
}

/// Shapes of Kimi delta attention and of MLA.
fn kimi_delta(config: &Config, heads: Option<u32>, size: Option<u32>, width: Option<u32>) -> Shapes {
    let channels = times(times(heads, size), Some(3));
    Ok(vec![
        (Mla, Op::Mla, latents(config)?),
        (Kda, Op::Kda, linear(heads, size)),
        (Kda, Op::ShortConv, convolution(channels, width)),
    ])
}

/// The shape of linear attention whose queries, keys and values have the same number of heads and the same
/// size.
fn linear(heads: Option<u32>, size: Option<u32>) -> Shape {
    Shape {
        q_heads: heads,
        k_heads: heads,
        v_heads: heads,
        head_size_k: size,
        head_size_v: size,
        ..Shape::default()
    }
}

fn latents(config: &Config) -> Result<Shape, LayoutError> {
    let rank = config.size("kv_lora_rank")?;
    Ok(Shape {
        q_heads: config.size("num_attention_heads")?,
        k_heads: Some(1),
        v_heads: Some(1),
        head_size_k: plus(rank, config.size("qk_rope_head_dim")?),
        head_size_v: rank,
        ..Shape::default()
    })
}

/// Grouped-query attention with equal head sizes of keys and values.
fn attention(config: &Config, head_size: Option<u32>) -> Result<Shape, LayoutError> {
    let q_heads = config.size("num_attention_heads")?;
    // An explicit null means one key head per query head. If the key is absent, the default depends on
    // transformers' class, which is unknown here.
    let kv_heads = match config.values.get("num_key_value_heads") {
        Some(Value::Null) => q_heads,
        _ => config.size("num_key_value_heads")?,
    };
    Ok(Shape {
        q_heads,
        k_heads: kv_heads,
        v_heads: kv_heads,
        head_size_k: head_size,
        head_size_v: head_size,
        ..Shape::default()
    })
}

/// Shapes of the scan and the convolution, for configs with `mamba_d_state` and `mamba_d_conv`.
fn mamba2(
    config: &Config,
    heads: &str,
    groups: &str,
    inner: Option<u32>,
) -> Result<(Shape, Shape), LayoutError> {
    let (scan, channels) = state_space(
        config.size(heads)?,
        config.size(groups)?,
        config.size("mamba_d_state")?,
        inner,
    );
    Ok((scan, convolution(channels, config.size("mamba_d_conv")?)))
}

/// The shape of a Mamba2 scan, and the number of channels of its convolution: `inner` for x, and for each of B
/// and C one `state` per group.
fn state_space(
    heads: Option<u32>,
    groups: Option<u32>,
    state: Option<u32>,
    inner: Option<u32>,
) -> (Shape, Option<u32>) {
    let scan = Shape {
        q_heads: groups,
        k_heads: groups,
        v_heads: heads,
        head_size_k: state,
        head_size_v: divided(inner, heads),
        ..Shape::default()
    };
    (scan, plus(inner, times(times(groups, state), Some(2))))
}

fn convolution(channels: Option<u32>, width: Option<u32>) -> Shape {
    Shape {
        channels,
        width,
        ..Shape::default()
    }
}

fn times(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a?.checked_mul(b?)
}

fn plus(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a?.checked_add(b?)
}

fn divided(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a?.checked_div(b?)
}
