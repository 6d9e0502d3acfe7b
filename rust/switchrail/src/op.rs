//! Ops, phases, dtypes and devices.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    NameError, UnknownName,
    name::{names, string_form},
};

names! {
    /// An operation that backends implement. One layer may run several ops.
    Op, "op", Op, {
        /// Causal softmax attention, multi-head or grouped-query, full or with a window.
        Attention = "attention",
        /// Multi-head latent attention.
        Mla = "mla",
        /// The gated delta rule (GDN).
        GatedDelta = "gated_delta",
        /// Kimi delta attention: the delta rule with a gate per channel.
        Kda = "kda",
        /// Lightning attention: linear attention with a fixed decay per head.
        Lightning = "lightning",
        /// The state-space dual form of Mamba 2.
        Mamba2 = "mamba2",
        /// The depthwise causal convolution that most linear layers begin with. Its state has the last inputs.
        ShortConv = "short_conv",
    }
}

/// The memory that an op keeps for a sequence between calls.
enum Memory {
    /// Pages of keys and values, or of latents.
    Pages,
    /// A recurrent state per head, as linear attention has.
    Heads,
    /// A state without heads, as the convolution has.
    Channels,
}

impl Op {
    /// The op's memory.
    const fn memory(self) -> Memory {
        match self {
            Self::Attention | Self::Mla => Memory::Pages,
            Self::GatedDelta | Self::Kda | Self::Lightning | Self::Mamba2 => Memory::Heads,
            Self::ShortConv => Memory::Channels,
        }
    }

    /// Whether the op keeps a recurrent state per head instead of a cache of keys and values.
    ///
    /// The preference key `linear` stands for these ops. The convolution is not one of them.
    #[must_use]
    pub const fn is_linear(self) -> bool {
        matches!(self.memory(), Memory::Heads)
    }

    /// The op's optional features, by the names that registrations and queries use.
    ///
    /// A plugin's own features are written `oot:NAME` (out of tree). Other unknown names are errors, so that
    /// misspelt names are noticed.
    #[must_use]
    pub fn features(self) -> Vec<&'static str> {
        let own = FEATURES.iter().filter(|(_, has)| has(self));
        own.map(|(name, _)| *name).collect()
    }

    /// Whether the op reads a paged cache of keys and values (or latents).
    #[must_use]
    pub const fn is_paged(self) -> bool {
        matches!(self.memory(), Memory::Pages)
    }
}

/// Whether an op has a feature.
type Has = fn(Op) -> bool;

/// The optional features, each with the ops that have it.
const FEATURES: [(&str, Has); 25] = [
    ("batch_invariant", |_| true),
    ("checkpoints", |op| !op.is_paged()),
    ("cuda_graph", |_| true),
    ("deferred_commit", Op::is_linear),
    ("device_parents", |_| true),
    ("fill_verify_buffers", |_| true),
    ("graph_fill_value", Op::is_paged),
    ("index_views", |_| true),
    ("init_graph_state", |_| true),
    ("kv_bounds", Op::is_paged),
    ("lse", Op::is_paged),
    ("mixed_weights", |op| matches!(op, Op::GatedDelta | Op::Kda)),
    ("null_slot", |op| !op.is_paged()),
    ("plan_chunked_prefix", |op| matches!(op, Op::Mla)),
    ("raw_gates", |op| matches!(op, Op::GatedDelta | Op::Kda)),
    ("read_only_states", |op| !op.is_paged()),
    ("row_states", |op| !op.is_paged()),
    ("sinks", |op| matches!(op, Op::Attention)),
    ("soft_cap", |op| matches!(op, Op::Attention)),
    ("strided_out", |_| true),
    ("strided_pool", |_| true),
    ("time_innermost", Op::is_linear),
    ("transposed_state", |op| !op.is_paged()),
    ("trees", Op::is_paged),
    ("window", |op| matches!(op, Op::Attention)),
];

/// The supported orders of the last two axes of a recurrent state. A plugin's own order is written
/// `oot:NAME`.
pub const STATE_LAYOUTS: [&str; 2] = ["KV", "VK"];

/// The error for the first name that is neither known nor of the form `oot:NAME`.
pub(crate) fn unknown_claim<'a>(
    what: &'static str,
    found: impl IntoIterator<Item = &'a String>,
    known: &[&'static str],
) -> Option<UnknownName> {
    let is_known = |name: &&String| {
        known.contains(&name.as_str()) || name.strip_prefix(OUT_OF_TREE).is_some_and(|own| !own.is_empty())
    };
    let name = found.into_iter().find(|name| !is_known(name))?;
    let valid = known.iter().copied().chain(["oot:NAME"]);
    Some(UnknownName::new(what, name, valid))
}

names! {
    /// The phase in which a call processes a sequence.
    Phase, "phase", Phase, {
        /// New prompt tokens of a sequence, usually several, at its start or after a cached prefix (also called
        /// extend).
        Prefill = "prefill",
        /// One new token per sequence.
        Decode = "decode",
        /// Drafted tokens of a sequence, to be accepted or rejected (target verification in speculative
        /// decoding).
        Verify = "verify",
    }
}

names! {
    /// A number format, with torch's name.
    Dtype, "dtype", Dtype, {
        /// IEEE double precision.
        Float64 = "float64",
        /// IEEE single precision.
        Float32 = "float32",
        /// IEEE half precision.
        Float16 = "float16",
        /// The upper 16 bits of a float32.
        Bfloat16 = "bfloat16",
        /// Eight bits with four exponent bits and no infinities.
        Float8E4m3fn = "float8_e4m3fn",
        /// Eight bits with five exponent bits.
        Float8E5m2 = "float8_e5m2",
        /// Eight-bit integer, for quantised caches.
        Int8 = "int8",
    }
}

/// A family of devices.
///
/// A family that this crate does not know is written `oot:NAME` (out of tree). Other unknown names are
/// errors, so that misspelt names are noticed.
///
/// ```
/// use switchrail::DeviceKind;
///
/// assert_eq!("cuda".parse(), Ok(DeviceKind::Cuda));
/// assert_eq!("oot:acme".parse(), Ok(DeviceKind::OutOfTree("acme".into())));
/// assert!("cuda:0".parse::<DeviceKind>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DeviceKind {
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
    /// The host's processor.
    Cpu,
    /// Intel GPUs.
    Xpu,
    /// Moore Threads GPUs.
    Musa,
    /// Huawei Ascend.
    Npu,
    /// Google TPUs.
    Tpu,
    /// Apple GPUs.
    Mps,
    /// Any other family, under the name that its platform plugin gives it.
    OutOfTree(String),
}

const OUT_OF_TREE: &str = "oot:";

impl DeviceKind {
    /// The kinds that this crate knows by name.
    pub const KNOWN: [Self; 8] = [
        Self::Cuda,
        Self::Rocm,
        Self::Cpu,
        Self::Xpu,
        Self::Musa,
        Self::Npu,
        Self::Tpu,
        Self::Mps,
    ];
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Cpu => "cpu",
            Self::Xpu => "xpu",
            Self::Musa => "musa",
            Self::Npu => "npu",
            Self::Tpu => "tpu",
            Self::Mps => "mps",
            Self::OutOfTree(name) => return write!(f, "{OUT_OF_TREE}{name}"),
        })
    }
}

impl FromStr for DeviceKind {
    type Err = NameError;

    fn from_str(found: &str) -> Result<Self, NameError> {
        if let Some(name) = found.strip_prefix(OUT_OF_TREE)
            && !name.is_empty()
        {
            return Ok(Self::OutOfTree(name.to_owned()));
        }
        Self::KNOWN
            .into_iter()
            .find(|kind| kind.to_string() == found)
            .ok_or_else(|| {
                let valid = Self::KNOWN
                    .iter()
                    .map(ToString::to_string)
                    .chain(["oot:NAME".to_owned()]);
                NameError::Device(UnknownName::new("device", found, valid))
            })
    }
}

string_form!(DeviceKind);

/// The compute capability of a device, ordered by version. In JSON `[major, minor]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ComputeCapability(
    /// Major version.
    pub u32,
    /// Minor version.
    pub u32,
);

impl fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A device that backends run on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Device {
    /// Its family.
    pub kind: DeviceKind,
    /// Its compute capability, if the family has one and it is known.
    pub capability: Option<ComputeCapability>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        self.capability
            .map_or(Ok(()), |capability| write!(f, " {capability}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CoreError;

    #[test]
    fn every_name_parses_to_its_value() {
        for op in Op::ALL {
            assert_eq!(op.name().parse(), Ok(op));
            assert_eq!(serde_json::to_value(op).unwrap(), op.name());
        }
        for phase in Phase::ALL {
            assert_eq!(phase.name().parse(), Ok(phase));
        }
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
        }
        for kind in DeviceKind::KNOWN {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
    }

    #[test]
    fn unknown_names_come_with_the_nearest() {
        let error = "gated-delta".parse::<Op>().unwrap_err();
        assert_eq!(
            (error.code(), error.fields()["nearest"][0].as_str()),
            ("unknown_op", Some("gated_delta"))
        );
        let error = "prefil".parse::<Phase>().unwrap_err();
        assert_eq!(
            (error.code(), error.fields()["nearest"][0].as_str()),
            ("unknown_phase", Some("prefill"))
        );
        let error = "float23".parse::<Dtype>().unwrap_err();
        assert_eq!(
            (error.code(), error.fields()["found"].as_str()),
            ("unknown_dtype", Some("float23"))
        );
        let error = "cude".parse::<DeviceKind>().unwrap_err();
        assert_eq!(
            (error.code(), error.fields()["nearest"][0].as_str()),
            ("unknown_device", Some("cuda"))
        );
        assert!("oot:".parse::<DeviceKind>().is_err());
        assert!(
            serde_json::from_str::<Op>(r#""gdn""#)
                .unwrap_err()
                .to_string()
                .contains("unknown op")
        );
    }
}
