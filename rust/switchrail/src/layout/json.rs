//! Reads config files that Python's `json` wrote.

const NUMBERS: [&[u8]; 3] = [b"Infinity", b"-Infinity", b"NaN"];

/// Quotes the numbers that Python writes but JSON does not have, as in `"time_step_limit": [0.0, Infinity]`.
///
/// None of these numbers is valid for a key that a layout reads, so an error shows them in quotes.
pub(super) fn quote_numbers(file: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(file.len());
    let (mut rest, mut in_text) = (file, false);
    while let Some(first) = rest.first() {
        if let Some(number) = NUMBERS.iter().find(|number| !in_text && rest.starts_with(number)) {
            quoted.extend([b"\"", *number, b"\""].concat());
            rest = &rest[number.len()..];
            continue;
        }
        in_text ^= *first == b'"';
        let escaped = in_text && *first == b'\\';
        let taken;
        (taken, rest) = rest.split_at(rest.len().min(1 + usize::from(escaped)));
        quoted.extend(taken);
    }
    quoted
}
