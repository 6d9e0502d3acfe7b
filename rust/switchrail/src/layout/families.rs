//! The model families: how each names its layers, and the sizes of its ops.

use super::LayerKind::{
    self, FullAttention, GatedDelta, Hybrid, Kda, Lightning, Mamba1, Mamba2, Mla, Mlp, Moe, RgLru, ShortConv,
    SlidingAttention,
};
use super::config::Config;
use super::drafts::Drafts;
use super::naming::{Naming, Words};
use super::{
    LayoutError,
    shape::{self, KindShapes},
};

/// How to read the configs of a family of model types.
pub(super) struct Family {
    pub model_types: &'static [&'static str],
    /// If set, only configs that list this in `architectures` belong to the family.
    pub architecture: Option<&'static str>,
    pub namings: &'static [Naming],
    pub words: Words,
    pub shapes: fn(&Config) -> Result<KindShapes, LayoutError>,
    /// If set, and the config has this key, then layers that the config names as full attention have a window.
    pub window_key: Option<&'static str>,
    /// The kind of the state-space half of the family's hybrid layers.
    pub hybrid_half: LayerKind,
    /// The layers of its draft head.
    pub drafts: Drafts,
}

/// Default values of a family.
const PLAIN: Family = Family {
    model_types: &[],
    architecture: None,
    namings: &[],
    words: &[],
    shapes: |_| Ok(Vec::new()),
    window_key: None,
    hybrid_half: Mamba2,
    drafts: Drafts::None,
};

/// Softmax attention, full or with a window, whose config has the head size as `head_dim`.
const WITH_HEAD_DIM: Family = Family {
    words: ATTENTION_WORDS,
    shapes: |config| shape::softmax(config, config.size("head_dim")?),
    ..PLAIN
};

const LAYER_TYPES: Naming = Naming::List { key: "layer_types" };
const LAYERS_BLOCK_TYPE: Naming = Naming::List {
    key: "layers_block_type",
};

/// Layers with a window and full layers alternate.
const ALTERNATING: Naming = Naming::LastOf {
    period: 2,
    last: FullAttention,
    others: SlidingAttention,
};
const ATTENTION_WORDS: Words = &[
    ("full_attention", FullAttention),
    ("sliding_attention", SlidingAttention),
];

const NEMOTRON_LETTERS: Words = &[("M", Mamba2), ("*", FullAttention), ("E", Moe), ("-", Mlp)];

/// The layer names that most families share. `mamba` and `attention` are older names, which transformers
/// renames when it loads a config.
macro_rules! words {
    ($linear:ident, $full:ident $(, $word:literal = $kind:ident)*) => {
        &[
            ("linear_attention", $linear),
            ("mamba", $linear),
            ("full_attention", $full),
            ("attention", $full),
            $(($word, $kind),)*
        ]
    };
}

/// All families. If several have the same model type, the first one that fits the config is used.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        model_types: &["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"],
        namings: &[
            LAYER_TYPES,
            Naming::LastOfEach {
                key: "full_attention_interval",
                last: FullAttention,
                others: GatedDelta,
            },
        ],
        words: words!(GatedDelta, FullAttention),
        shapes: |config| shape::gated_delta_family(config, config.size("head_dim")?),
        drafts: Drafts::Layers {
            key: Some("mtp_layer_types"),
            kind: FullAttention,
        },
        ..PLAIN
    },
    Family {
        model_types: &["olmo_hybrid"],
        namings: &[LAYER_TYPES],
        words: words!(GatedDelta, FullAttention),
        shapes: |config| shape::gated_delta_family(config, shape::head_size(config)?),
        ..PLAIN
    },
    Family {
        model_types: &["kimi_linear"],
        namings: &[
            LAYER_TYPES,
            Naming::SharedOut {
                key: "linear_attn_config",
                lists: [("full_attn_layers", Mla), ("kda_layers", Kda)],
            },
        ],
        words: words!(Kda, Mla),
        shapes: shape::kimi_linear,
        ..PLAIN
    },
    // Configs of Ring 2.5 have the model type of Ling 3 (bailing_hybrid) or of Ring-linear 2.0
    // (bailing_moe_linear), so the architecture must distinguish them.
    Family {
        model_types: &["bailing_hybrid", "bailing_moe_linear"],
        architecture: Some("BailingMoeV2_5ForCausalLM"),
        namings: &[Naming::LastOfEach {
            key: "layer_group_size",
            last: Mla,
            others: Lightning,
        }],
        shapes: shape::ring,
        drafts: Drafts::Layers { key: None, kind: Mla },
        ..PLAIN
    },
    Family {
        model_types: &["bailing_moe_linear"],
        namings: &[Naming::LastOfEach {
            key: "layer_group_size",
            last: FullAttention,
            others: Lightning,
        }],
        shapes: shape::ring_linear,
        drafts: Drafts::Layers {
            key: None,
            kind: FullAttention,
        },
        ..PLAIN
    },
    Family {
        model_types: &["bailing_hybrid"],
        namings: &[
            LAYER_TYPES,
            Naming::LastOfEach {
                key: "layer_group_size",
                last: Mla,
                others: Kda,
            },
        ],
        words: words!(Kda, Mla),
        shapes: shape::bailing_hybrid,
        drafts: Drafts::Layers { key: None, kind: Mla },
        ..PLAIN
    },
    Family {
        model_types: &["minimax"],
        namings: &[LAYER_TYPES],
        words: words!(Lightning, FullAttention),
        shapes: shape::minimax,
        window_key: Some("sliding_window"),
        ..PLAIN
    },
    Family {
        model_types: &["bamba"],
        namings: &[
            Naming::Ids {
                key: "attn_layer_indices",
                inside: FullAttention,
                outside: Mamba2,
            },
            Naming::All(Mamba2),
        ],
        shapes: shape::mamba2_and_attention,
        ..PLAIN
    },
    Family {
        model_types: &["granitemoehybrid"],
        namings: &[LAYER_TYPES, LAYERS_BLOCK_TYPE],
        words: words!(Mamba2, FullAttention),
        shapes: shape::mamba2_and_attention,
        ..PLAIN
    },
    Family {
        model_types: &["nemotron_h"],
        namings: &[
            LAYERS_BLOCK_TYPE,
            LAYER_TYPES,
            Naming::Letters {
                key: "hybrid_override_pattern",
                letters: NEMOTRON_LETTERS,
            },
        ],
        words: words!(Mamba2, FullAttention, "moe" = Moe, "mlp" = Mlp),
        shapes: shape::nemotron_h,
        drafts: Drafts::Blocks {
            namings: &[
                Naming::List {
                    key: "mtp_layers_block_type",
                },
                Naming::Letters {
                    key: "mtp_hybrid_override_pattern",
                    letters: NEMOTRON_LETTERS,
                },
            ],
            default: &[FullAttention, Moe],
        },
        ..PLAIN
    },
    Family {
        model_types: &["falcon_h1"],
        namings: &[Naming::All(Hybrid)],
        shapes: shape::falcon_h1,
        ..PLAIN
    },
    Family {
        model_types: &["zamba2"],
        namings: &[
            LAYERS_BLOCK_TYPE,
            LAYER_TYPES,
            Naming::Ids {
                key: "hybrid_layer_ids",
                inside: Hybrid,
                outside: Mamba2,
            },
        ],
        words: &[
            ("linear_attention", Mamba2),
            ("mamba", Mamba2),
            ("hybrid", Hybrid),
        ],
        shapes: shape::zamba2,
        ..PLAIN
    },
    Family {
        model_types: &["zamba"],
        namings: &[
            LAYERS_BLOCK_TYPE,
            LAYER_TYPES,
            Naming::Periodic {
                start: 3,
                also: Some(2),
                hit: Hybrid,
                miss: Mamba1,
            },
        ],
        words: &[
            ("linear_attention", Mamba1),
            ("mamba", Mamba1),
            ("hybrid", Hybrid),
        ],
        shapes: shape::zamba,
        hybrid_half: Mamba1,
        ..PLAIN
    },
    Family {
        model_types: &["jamba"],
        namings: &[Naming::Periodic {
            start: 0,
            also: None,
            hit: FullAttention,
            miss: Mamba1,
        }],
        shapes: shape::jamba,
        ..PLAIN
    },
    Family {
        model_types: &["mamba", "falcon_mamba"],
        namings: &[Naming::All(Mamba1)],
        shapes: shape::mamba,
        ..PLAIN
    },
    Family {
        model_types: &["mamba2"],
        namings: &[Naming::All(Mamba2)],
        shapes: shape::plain_mamba2,
        ..PLAIN
    },
    Family {
        model_types: &["llama"],
        namings: &[Naming::All(FullAttention)],
        shapes: |config| shape::softmax(config, shape::head_size(config)?),
        ..PLAIN
    },
    // transformers derives the windowed layers from `max_window_layers`, and saves them in `layer_types`.
    Family {
        model_types: &["qwen3"],
        namings: &[LAYER_TYPES, Naming::All(FullAttention)],
        ..WITH_HEAD_DIM
    },
    Family {
        model_types: &["gemma2"],
        namings: &[LAYER_TYPES, ALTERNATING],
        words: ATTENTION_WORDS,
        shapes: shape::gemma2,
        ..PLAIN
    },
    Family {
        model_types: &["gemma3_text"],
        namings: &[
            LAYER_TYPES,
            Naming::LastOfEach {
                key: "sliding_window_pattern",
                last: FullAttention,
                others: SlidingAttention,
            },
            Naming::LastOf {
                period: 6,
                last: FullAttention,
                others: SlidingAttention,
            },
        ],
        ..WITH_HEAD_DIM
    },
    Family {
        model_types: &["gpt_oss"],
        namings: &[LAYER_TYPES, ALTERNATING],
        words: ATTENTION_WORDS,
        shapes: shape::gpt_oss,
        ..PLAIN
    },
    Family {
        model_types: &["deepseek_v3"],
        namings: &[Naming::All(Mla)],
        shapes: shape::deepseek,
        drafts: Drafts::Layers { key: None, kind: Mla },
        ..PLAIN
    },
    Family {
        model_types: &["lfm2", "lfm2_moe"],
        namings: &[
            LAYER_TYPES,
            Naming::Ids {
                key: "full_attn_idxs",
                inside: FullAttention,
                outside: ShortConv,
            },
        ],
        words: &[
            ("conv", ShortConv),
            ("full_attention", FullAttention),
            ("attention", FullAttention),
        ],
        shapes: |config| shape::lfm(config, shape::head_size(config)?),
        ..PLAIN
    },
    Family {
        model_types: &["lfm3"],
        namings: &[LAYER_TYPES],
        words: &[
            ("conv", ShortConv),
            ("full_attention", FullAttention),
            ("attention", FullAttention),
            ("sliding_attention", SlidingAttention),
        ],
        shapes: |config| shape::lfm(config, config.size("head_dim")?),
        ..PLAIN
    },
    Family {
        model_types: &["recurrent_gemma"],
        namings: &[Naming::Repeated {
            key: "block_types",
            words: &[("recurrent", RgLru), ("attention", SlidingAttention)],
        }],
        shapes: shape::recurrent_gemma,
        ..PLAIN
    },
];
