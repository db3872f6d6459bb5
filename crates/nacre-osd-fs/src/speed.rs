//! Whether writes past the page cache pay on a device.
//!
//! They save the copy into the cache, and the work of writing it back, but their writer waits for the device. On a device that is
//! nearly as fast as that copy, streams are half as fast again past the cache; on usual disks they are slower. So both are
//! tried, in turn, in a file without a name.

use crate::raw::retry;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = 1 << 20;
const ALIGN: usize = 4096;
/// Blocks that are written in each way.
const TRIES: usize = 16;
/// The time within which three of four writes past the cache end, in units of the median of copies into it, up to which they pay.
/// Measured (docs/measurements.md): 1.1 to 1.6 where they pay (up to 2.6 on a busy machine), 2.2 to 6.5 where they do not. In case
/// of doubt they are not used.
const TIMES_MAX: f64 = 2.0;
/// A device that needs longer for one write is slow.
const SLOW: Duration = Duration::from_millis(20);

/// Tries it in a directory. Takes some milliseconds, and room for 32 MiB meanwhile.
///
/// # Errors
/// If the file system cannot do it, or has no room.
pub fn pays_past_cache(dir: &Path) -> std::io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let open = |more| rustix::fs::open(dir, flags | more, Mode::RUSR | Mode::WUSR).map(File::from);
    let (cached, direct) = (retry(|| open(OFlags::empty()))?, retry(|| open(OFlags::DIRECT))?);
    let memory = vec![1u8; BLOCK + ALIGN];
    let start = memory.as_ptr().align_offset(ALIGN);
    let block = memory.get(start..start + BLOCK).unwrap_or_default();
    let mut times = [const { Vec::new() }; 2];
    for nth in 0..TRIES {
        for (file, times) in [&cached, &direct].into_iter().zip(&mut times) {
            let before = Instant::now();
            file.write_all_at(block, (nth * BLOCK) as u64)?;
            let took = before.elapsed();
            if took > SLOW {
                return Ok(false);
            }
            times.push(took);
        }
    }
    let [cached, direct] = times;
    let (cached, direct) = (quantile(cached, 2), quantile(direct, 3));
    tracing::debug!(?cached, ?direct, "a write of 1 MiB into the page cache, and past it");
    Ok(direct.as_secs_f64() <= cached.as_secs_f64() * TIMES_MAX)
}

/// The time that so many quarters do not exceed.
fn quantile(mut times: Vec<Duration>, quarters: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * quarters / 4).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_nothing_and_says_what_cannot_be_tried() {
        let dir = tempfile::tempdir().unwrap();
        // What it finds out is a matter of the machine; tmpfs has no such writes on older kernels.
        let _found = pays_past_cache(dir.path());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(pays_past_cache(&dir.path().join("none")).is_err());
        let times = [4, 1, 3, 2].map(Duration::from_millis).to_vec();
        assert_eq!([2, 3].map(|quarters| quantile(times.clone(), quarters).as_millis()), [3, 4]);
    }
}
