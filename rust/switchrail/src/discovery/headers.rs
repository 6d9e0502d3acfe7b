//! Reads name and version from the headers of `METADATA` or `PKG-INFO`.

use std::io;

/// Maximum number of bytes to read from a file. A damaged file may lack the empty line that ends the headers.
pub(crate) const MAX_HEAD: u64 = 1 << 20;

/// The parsed headers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers {
    pub name: Option<String>,
    pub version: Option<String>,
    pub problems: Vec<String>,
}

/// Reads the headers. `file` reads a file of a metadata folder by its name, or, given an empty name, the
/// metadata path itself, which is a file in some eggs.
pub(crate) fn read(file: impl Fn(&str) -> io::Result<Option<Vec<u8>>>) -> Headers {
    let mut problems = Vec::new();
    for name in ["METADATA", "PKG-INFO", ""] {
        match file(name) {
            Ok(Some(bytes)) => {
                let mut headers = parse(&bytes);
                if headers.name.is_some() || headers.version.is_some() {
                    problems.append(&mut headers.problems);
                    return Headers { problems, ..headers }.with_missing_reported();
                }
            }
            Ok(None) => {}
            // Reading the metadata path itself fails if it is a folder, as usual.
            Err(_) if name.is_empty() => {}
            Err(error) => problems.push(format!("its metadata cannot be read: {error}")),
        }
    }
    let nothing = Headers {
        problems,
        ..Headers::default()
    };
    if nothing.problems.is_empty() {
        nothing.with_missing_reported()
    } else {
        nothing
    }
}

impl Headers {
    /// Adds a problem for a missing name and for a missing version.
    fn with_missing_reported(mut self) -> Self {
        for (header, value) in [("Name", &self.name), ("Version", &self.version)] {
            if value.is_none() {
                self.problems.push(format!("its metadata has no {header}"));
            }
        }
        self
    }
}

/// Splits into lines as Python's text files do: at `\n`, `\r\n` or `\r`.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'\n').flat_map(|line| {
        line.strip_suffix(b"\r")
            .unwrap_or(line)
            .split(|byte| *byte == b'\r')
    })
}

/// Parses the first `Name` and the first `Version`. Stops when it has both, or at the end of the headers.
pub(crate) fn parse(bytes: &[u8]) -> Headers {
    let mut headers = Headers::default();
    let mut folded: Option<Vec<u8>> = None;
    // The extra empty line flushes the last header.
    for line in lines(bytes).chain([&b""[..]]) {
        let text = line
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(line)
            .trim_ascii_end();
        if let (Some(header), [b' ' | b'\t', ..]) = (&mut folded, text) {
            header.push(b' ');
            header.extend_from_slice(text.trim_ascii_start());
            continue;
        }
        if let Some(header) = folded.take() {
            headers.take(&header);
        }
        if text.is_empty() || headers.name.is_some() && headers.version.is_some() || !is_header(text) {
            break;
        }
        folded = Some(text.to_owned());
    }
    headers
}

impl Headers {
    fn take(&mut self, header: &[u8]) {
        let Some(colon) = header.iter().position(|byte| *byte == b':') else {
            return;
        };
        let (name, value) = (&header[..colon], header[colon + 1..].trim_ascii());
        let field = if name.eq_ignore_ascii_case(b"name") {
            &mut self.name
        } else if name.eq_ignore_ascii_case(b"version") {
            &mut self.version
        } else {
            return;
        };
        if field.is_none() && !value.is_empty() {
            let (header, text) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
            if text.as_bytes() != value {
                self.problems.push(format!("{header} is not UTF-8: {text:?}"));
            }
            *field = Some(text.into_owned());
        }
    }
}

/// A header's name is printable ASCII without spaces; any other line ends the headers.
fn is_header(line: &[u8]) -> bool {
    match line.iter().position(|byte| *byte == b':') {
        Some(colon) => line[..colon].iter().all(u8::is_ascii_graphic),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(bytes: &[u8]) -> (Option<String>, Option<String>) {
        let headers = parse(bytes);
        (headers.name, headers.version)
    }

    fn both(name: &str, version: &str) -> (Option<String>, Option<String>) {
        (Some(name.to_owned()), Some(version.to_owned()))
    }

    #[test]
    fn names_of_headers_ignore_case_and_the_first_header_counts() {
        let text =
            b"Metadata-Version: 2.1\r\nNAME: Acme\r\nname: Other\r\nversion:  1.2 \r\n\r\nVersion: 9\r\n";
        assert_eq!(parsed(text), both("Acme", "1.2"));
    }

    #[test]
    fn folded_headers_are_unfolded() {
        assert_eq!(
            parsed(b"Summary: a\n b\n\tc\nName:\n acme\nVersion: 1\n .2\n"),
            both("acme", "1 .2")
        );
    }

    #[test]
    fn lines_end_as_in_python() {
        assert_eq!(
            parsed(b"Author: J\rName: acme\r\nVersion: 1\r\rName: body\n"),
            both("acme", "1")
        );
    }

    #[test]
    fn the_body_is_not_read() {
        assert_eq!(
            parsed(b"Name: acme\n\nVersion: 1\n"),
            (Some("acme".to_owned()), None)
        );
        assert_eq!(
            parsed(b"Name: acme\nno header here\nVersion: 1\n"),
            (Some("acme".to_owned()), None)
        );
    }

    #[test]
    fn half_written_and_empty_headers_keep_their_valid_fields() {
        assert_eq!(parsed(b""), (None, None));
        assert_eq!(parsed(b"Name: acme\nVersi"), (Some("acme".to_owned()), None));
        assert_eq!(parsed(b"Name: acme\nVersion: 1.0"), both("acme", "1.0"));
        assert_eq!(parsed(b"Name:\nVersion: 1.0"), (None, Some("1.0".to_owned())));
    }

    #[test]
    fn a_byte_order_mark_is_passed_over_and_other_encodings_are_reported() {
        assert_eq!(parsed(b"\xef\xbb\xbfName: acme\nVersion: 1\n"), both("acme", "1"));
        let headers = parse(b"Name: acm\xe9\nVersion: 1\n");
        assert_eq!(headers.problems, ["Name is not UTF-8: \"acm\u{fffd}\""]);
        assert_eq!(parsed(b"\xff\xfeN\0a\0m\0e\0:\0"), (None, None));
    }

    proptest! {
        #[test]
        fn any_bytes_survive(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse(&bytes);
        }

        #[test]
        fn written_headers_are_read(name in "[A-Za-z0-9._-]{1,20}", version in "[0-9.+a-z]{1,10}", before in 0..3_usize) {
            let before = "Classifier: x\n  folded\n".repeat(before);
            let text = format!("{before}Name: {name}\nVersion: {version}\n");
            prop_assert_eq!(parsed(text.as_bytes()), both(&name, &version));
        }
    }
}
