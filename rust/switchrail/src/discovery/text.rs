//! White space as Python's `str.strip` and `str.splitlines` see it.

/// Python counts the four separators U+001C to U+001F as white space, Unicode does not.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter))
}

/// The lines of a text; empty ones may be added where a line ends in two characters.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| {
        matches!(
            letter,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    })
}
