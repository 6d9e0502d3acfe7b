//! Makes foreign text safe for messages: no control characters for a terminal, and a limited length.

use std::{borrow::Cow, fmt::Write as _};

/// Maximum number of characters of foreign text in a message. Longer text is cut.
pub const LONGEST_SHOWN: usize = 2_000;

/// The text without characters that control a terminal, cut to [`LONGEST_SHOWN`].
///
/// Control characters, bidirectional marks and line separators become Python's escapes. The result is
/// borrowed if nothing changes.
///
/// ```
/// assert_eq!(switchrail::shown("acme\u{1b}[2K"), r"acme\x1b[2K");
/// assert_eq!(switchrail::shown("größe"), "größe");
/// ```
#[must_use]
pub fn shown(text: &str) -> Cow<'_, str> {
    let kept = cut(text);
    if !kept.contains(is_obeyed) {
        return kept;
    }
    let mut harmless = String::with_capacity(kept.len());
    for letter in kept.chars() {
        let _ = match u32::from(letter) {
            _ if !is_obeyed(letter) => harmless.write_char(letter),
            code @ ..0x100 => write!(harmless, "\\x{code:02x}"),
            code => write!(harmless, "\\u{code:04x}"),
        };
    }
    Cow::Owned(harmless)
}

/// The text, cut to [`LONGEST_SHOWN`]. For messages that show it as `{:?}`, which escapes it.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_SHOWN) {
        Some((end, _)) => {
            let (kept, rest) = text.split_at(end);
            Cow::Owned(format!("{kept}… ({} more characters)", rest.chars().count()))
        }
        None => Cow::Borrowed(text),
    }
}

/// Whether a terminal obeys the character: a control character, a bidirectional mark or a line separator.
fn is_obeyed(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "ü".repeat(LONGEST_SHOWN + 1);
        let expected = format!("{}… (1 more characters)", "ü".repeat(LONGEST_SHOWN));
        assert_eq!(shown(&text), expected);
        assert!(matches!(shown(&text[2..]), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn nothing_is_left_that_a_terminal_obeys(text in ".{0,3000}|[\u{0}-\u{a0}\u{2020}-\u{2070}]{0,3000}") {
            let found = shown(&text);
            prop_assert!(!found.contains(is_obeyed));
        }
    }
}
