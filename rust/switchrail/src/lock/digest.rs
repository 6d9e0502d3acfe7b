//! SHA-256 of files, several in parallel.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use sha2::{Digest, Sha256};

use super::files::{Files, Unreadable};
use crate::fingerprint::hexadecimal;

const BLOCK: usize = 1 << 18;

/// A digest of a distribution, computed from the digests of its files.
pub(super) fn of_files(files: &BTreeMap<String, String>) -> String {
    let mut digest = Sha256::new();
    for (path, file) in files {
        // The length prefix makes the encoding of paths unambiguous.
        digest.update(format!("{} {path} {file}\n", path.len()));
    }
    hexadecimal(&digest.finalize())
}

/// The digests of the files of each distribution, in the given order.
pub(super) fn of_all(
    distributions: &[Result<Files, Unreadable>],
) -> Vec<Result<BTreeMap<String, String>, Unreadable>> {
    let paths: Vec<&Path> = distributions
        .iter()
        .flatten()
        .flat_map(|files| files.values().map(PathBuf::as_path))
        .collect();
    let mut digests = in_parallel(&paths).into_iter();
    let digested = distributions.iter().map(|files| {
        let files = files.as_ref().map_err(Unreadable::clone)?;
        // Takes all digests of this distribution even if one failed, so that those of the next distribution
        // are read from the right place.
        let digests: Vec<_> = digests.by_ref().take(files.len()).collect();
        let digest = |((key, path), digest): ((&String, &PathBuf), io::Result<String>)| match digest {
            Ok(digest) => Ok((key.clone(), digest)),
            Err(error) => Err(Unreadable::new(path, &error)),
        };
        files.iter().zip(digests).map(digest).collect()
    });
    digested.collect()
}

fn in_parallel(paths: &[&Path]) -> Vec<io::Result<String>> {
    let threads = thread::available_parallelism()
        .map_or(1, NonZero::get)
        .min(paths.len());
    let next = AtomicUsize::new(0);
    let mut digests: Vec<_> = thread::scope(|scope| {
        let work = || {
            let mut done = Vec::new();
            let mut block = vec![0; BLOCK];
            while let index = next.fetch_add(1, Ordering::Relaxed)
                && let Some(path) = paths.get(index)
            {
                done.push((index, of_file(path, &mut block)));
            }
            done
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(thread::ScopedJoinHandle::join);
        done.flat_map(|done| done.expect("reading and digesting do not panic"))
            .collect()
    });
    digests.sort_unstable_by_key(|(index, _)| *index);
    digests.into_iter().map(|(_, digest)| digest).collect()
}

fn of_file(path: &Path, block: &mut [u8]) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    loop {
        match file.read(block) {
            Ok(0) => return Ok(hexadecimal(&digest.finalize())),
            Ok(read) => digest.update(&block[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
