//! Replays a corpus of `fuzz/corpus` with the stable toolchain: every file, and copies of it with small damage.
//!
//! `NACRE_FUZZ_COPIES=100000` makes a search of it; what is found is then put into the corpus.

use std::vec::Vec;
use std::{format, fs};

/// Damaged copies per file in an ordinary run of the tests.
const COPIES: u64 = 300;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 29
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Calls `target` with every file of the corpus, and with damaged copies; a failure names the file and the copy.
pub(crate) fn replay(corpus: &str, target: impl Fn(&[u8])) {
    let copies = std::env::var("NACRE_FUZZ_COPIES").ok().and_then(|n| n.parse().ok()).unwrap_or(COPIES);
    let dir = format!("{}/../../fuzz/corpus/{corpus}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = fs::read_dir(&dir)
        .expect("a corpus has a directory")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{dir} is empty");
    let all: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("it can be read")).collect();
    for (file, bytes) in files.iter().zip(&all) {
        let mut rng = Rng(bytes.len() as u64 + 7);
        for copy in 0..=copies {
            let mut bytes = bytes.clone();
            if copy > 0 {
                damage(&mut rng, &mut bytes, &all);
            }
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&bytes)));
            assert!(outcome.is_ok(), "{}, copy {copy}: {bytes:02x?}", file.display());
        }
    }
}

/// A few changes of the kinds that decoders get wrong: bits, lengths, cuts, and pieces of other inputs.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len());
        match rng.below(6) {
            _ if bytes.is_empty() => bytes.push(rng.next() as u8),
            0 => bytes[at] = rng.next() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, [0, 0xff, 0x7f, 0x80][rng.below(4)]),
            4 => {
                let number = [0, 1, u32::MAX, 1 << 31, bytes.len() as u32][rng.below(5)];
                let end = bytes.len().min(at + 4);
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
            _ => {
                let other = &others[rng.below(others.len())];
                let from = rng.below(other.len());
                let to = other.len().min(from + rng.below(64));
                bytes.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
}

/// Writes the seeds of a corpus with `NACRE_BLESS=1`; else they must be there, unchanged.
pub(crate) fn seeds(corpus: &str, seeds: &[(&str, Vec<u8>)]) {
    let dir = format!("{}/../../fuzz/corpus/{corpus}", env!("CARGO_MANIFEST_DIR"));
    for (name, bytes) in seeds {
        let path = format!("{dir}/{name}");
        if std::env::var_os("NACRE_BLESS").is_some() {
            fs::create_dir_all(&dir).expect("the corpus can be made");
            fs::write(&path, bytes).expect("the corpus can be written");
        }
        assert!(
            fs::read(&path).unwrap_or_default() == *bytes,
            "{path} is another: NACRE_BLESS=1 writes it anew"
        );
    }
}
