//! White space as Python's `str.strip` and `str.splitlines` define it.

/// Strips white space as Python does. Python's white space includes the separators U+001C to U+001F.
pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(|letter: char| letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter))
}

/// The lines of a string. A line ending of two characters (`\r\n`) yields an extra empty line.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| {
        matches!(
            letter,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    })
}
