//! Suggestions: the valid names nearest to an unknown one, and how messages list names.

use std::fmt::{self, Write as _};

use serde::Serialize;

use crate::shown::cut;

/// Maximum number of suggested names.
const SUGGESTIONS: usize = 3;

/// Maximum number of names in a message. [`UnknownName::valid`] has all names.
const LISTED: usize = 100;

/// The score of an alias, which is above every similarity.
const ALIAS: f64 = 2.0;

/// Other widely used names of the ops, and of the preference key `linear`.
const ALIASES: [(&str, &[&str]); 8] = [
    (
        "attention",
        &[
            "attn",
            "flash_attention",
            "full_attention",
            "gqa",
            "mha",
            "mqa",
            "sdpa",
            "self_attention",
            "sliding_attention",
            "sliding_window",
            "sliding_window_attention",
            "softmax",
            "softmax_attention",
            "swa",
        ],
    ),
    (
        "mla",
        &[
            "latent_attention",
            "multi_head_latent_attention",
            "multi_latent_attention",
        ],
    ),
    (
        "gated_delta",
        &[
            "delta_net",
            "delta_rule",
            "deltanet",
            "gated_delta_net",
            "gated_delta_rule",
            "gated_deltanet",
            "gdn",
        ],
    ),
    ("kda", &["kimi_delta", "kimi_delta_attention", "kimi_linear"]),
    ("lightning", &["lightning_attention", "lightning_attn"]),
    (
        "mamba2",
        &[
            "mamba",
            "mamba_2",
            "selective_state_space",
            "ssd",
            "ssm",
            "state_space",
        ],
    ),
    (
        "short_conv",
        &[
            "causal_conv",
            "causal_conv1d",
            "conv",
            "conv1d",
            "short_convolution",
            "shortconv",
        ],
    ),
    ("linear", &["linear_attention", "linear_attn"]),
];

/// Names with a lower similarity (0 to 1) are not suggested.
const SIMILAR: f64 = 0.7;

/// An unknown name, and the valid ones.
///
/// ```
/// let unknown = "prefil".parse::<switchrail::Phase>().unwrap_err();
/// assert_eq!(
///     unknown.to_string(),
///     r#"unknown phase "prefil"; nearest: "prefill"; valid: "decode", "prefill", "verify""#
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UnknownName {
    /// The kind of name that was expected, such as `backend`.
    pub what: &'static str,
    /// The given name.
    pub found: String,
    /// All valid names, sorted.
    pub valid: Vec<String>,
    /// The most similar valid names, best first.
    pub nearest: Vec<String>,
}

impl UnknownName {
    /// Sorts the valid names and finds the nearest ones.
    pub(crate) fn new<S: Into<String>>(
        what: &'static str,
        found: impl Into<String>,
        valid: impl IntoIterator<Item = S>,
    ) -> Self {
        let found = found.into();
        let mut valid: Vec<String> = valid.into_iter().map(Into::into).collect();
        valid.sort_unstable();
        valid.dedup();
        let nearest = nearest(&found, valid.iter().map(String::as_str));
        Self {
            what,
            found,
            valid,
            nearest,
        }
    }

    /// The fields as the JSON object that [`CoreError::fields`](crate::CoreError::fields) promises.
    pub(crate) fn fields(&self) -> serde_json::Value {
        serde_json::json!({
            "what": self.what,
            "found": self.found,
            "valid": self.valid,
            "nearest": self.nearest,
        })
    }
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {} {:?}", self.what, cut(&self.found))?;
        if !self.nearest.is_empty() {
            write!(f, "; nearest: {}", quoted(&self.nearest))?;
        }
        if self.valid.is_empty() {
            write!(f, "; there is none to choose from")
        } else {
            write!(f, "; valid: {}", quoted(&self.valid))
        }
    }
}

impl std::error::Error for UnknownName {}

/// The names most similar to `found` (at most three), best first.
///
/// Ignores case, and treats `-` and `_` as equal. Equally similar names are in alphabetical order. For an
/// alias of an op, that op is the nearest name.
///
/// ```
/// assert_eq!(switchrail::nearest("Gated-Delta", ["gated_delta", "kda"]), ["gated_delta"]);
/// assert_eq!(switchrail::nearest("gdn", ["gated_delta", "kda"]), ["gated_delta"]);
/// assert!(switchrail::nearest("xyz", ["gated_delta", "kda"]).is_empty());
/// ```
pub fn nearest<'a>(found: &str, valid: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let folded = fold(found);
    let meant = meant(&folded);
    let mut scored: Vec<(f64, &str)> = valid
        .into_iter()
        .map(|name| {
            let same = meant.as_ref().is_some_and(|meant| meant == name);
            let score = if same {
                ALIAS
            } else {
                similarity(&folded, &fold(name))
            };
            (score, name)
        })
        .filter(|(score, _)| *score >= SIMILAR)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    scored.dedup_by(|a, b| a.1 == b.1);
    scored
        .into_iter()
        .take(SUGGESTIONS)
        .map(|(_, name)| name.to_owned())
        .collect()
}

/// Names in quotes, separated by commas. A long list is cut.
pub(crate) fn quoted<S: AsRef<str>>(names: &[S]) -> String {
    let shown = names.iter().take(LISTED);
    let mut list = shown
        .map(|name| format!("{:?}", cut(name.as_ref())))
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = names.len().checked_sub(LISTED) {
        let _ = write!(list, " and {more} more");
    }
    list
}

/// Translates an alias of an op, keeping the phase of a preference key.
fn meant(folded: &str) -> Option<String> {
    let (name, phase) = folded.split_at(folded.find('.').unwrap_or(folded.len()));
    let (own, _) = ALIASES.iter().find(|(_, aliases)| aliases.contains(&name))?;
    Some(format!("{own}{phase}"))
}

fn fold(name: &str) -> String {
    name.trim().to_lowercase().replace(['-', ' '], "_")
}

/// The larger of two similarities: Jaro-Winkler tolerates typing errors, a common prefix tolerates a missing
/// end.
fn similarity(found: &str, name: &str) -> f64 {
    let jaro = strsim::jaro_winkler(found, name);
    if !found.is_empty() && name.starts_with(found) {
        jaro.max(SIMILAR)
    } else {
        jaro
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_comes_first_and_no_more_than_three() {
        let names = nearest("triton", ["triton2", "triton", "tritonx", "triton_fast", "cuda"]);
        assert_eq!(names, ["triton", "triton2", "tritonx"]);
    }

    #[test]
    fn a_start_is_enough() {
        assert_eq!(nearest("g", ["gated_delta", "kda"]), ["gated_delta"]);
    }

    #[test]
    fn every_alias_leads_to_its_own_name_first() {
        let ops = crate::Op::ALL.map(crate::Op::name);
        let keys: Vec<String> = crate::PreferenceKey::all().map(|key| key.to_string()).collect();
        for (own, alias) in ALIASES
            .iter()
            .flat_map(|(own, aliases)| aliases.iter().map(move |alias| (own, alias)))
        {
            let spelled = alias.to_uppercase().replace('_', "-");
            if *own != "linear" {
                assert!(!ops.contains(alias), "{alias}");
                assert_eq!(nearest(&spelled, ops)[0], *own, "{alias}");
            }
            let phase = nearest(&format!("{alias}.decode"), keys.iter().map(String::as_str));
            assert_eq!(phase[0], format!("{own}.decode"), "{alias}");
        }
        assert_eq!(nearest("gdn", ["kda", "mla"]), Vec::<String>::new());
    }

    #[test]
    fn a_name_without_alternatives_has_its_own_message() {
        let unknown = UnknownName::new("plugin", "acme", Vec::<String>::new());
        assert_eq!(
            unknown.to_string(),
            r#"unknown plugin "acme"; there is none to choose from"#
        );
    }
}
