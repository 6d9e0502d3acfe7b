//! The code of the fuzz targets, which check properties of parsers for any bytes, and tests that run it on the
//! corpus.
#![allow(
    clippy::missing_panics_doc,
    reason = "a fuzz target reports a failure by a panic"
)]

use crate::Lock;
use crate::discovery::{
    entry_points::{parse, parse_value},
    headers,
    text::strip,
};

/// Checks the parser of `entry_points.txt`.
pub fn entry_points(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (entries, problems) = parse(&text);
    assert!(problems.iter().all(|problem| !problem.is_empty()));
    for entry in entries {
        for part in [&entry.name, &entry.value] {
            assert_eq!(strip(part), part);
            assert!(text.contains(part.as_str()) && !part.contains(['\n', '\r']));
        }
        assert!(!entry.name.contains('='));
        if let Some((target, extras)) = parse_value(&entry.value) {
            assert_eq!(parse_value(&target), Some((target, vec![])));
            let again = format!("a:b [{}]", extras.join(","));
            assert_eq!(parse_value(&again), Some(("a:b".to_owned(), extras)));
        }
    }
}

/// Checks the parser of `METADATA` and `PKG-INFO`.
pub fn metadata(bytes: &[u8]) {
    let found = headers::parse(bytes);
    for value in [found.name, found.version].into_iter().flatten() {
        assert!(!value.trim_ascii().is_empty() && !value.contains('\n'));
    }
}

/// Checks the parser of lock files.
pub fn lock(bytes: &[u8]) {
    if let Ok(lock) = Lock::parse(bytes) {
        assert_eq!(Lock::parse(lock.to_string().as_bytes()).unwrap(), lock);
        let installed = crate::discover::<&str>(&[]);
        assert_eq!(lock.differences(&installed).len(), lock.distributions.len());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    fn replay(target: &str, check: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../fuzz/corpus")
            .join(target);
        let mut count = 0;
        for file in fs::read_dir(corpus).unwrap() {
            check(&fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn entry_points() {
        replay("entry_points", super::entry_points);
    }

    #[test]
    fn metadata() {
        replay("metadata", super::metadata);
    }

    #[test]
    fn lock() {
        replay("lock", super::lock);
    }
}
