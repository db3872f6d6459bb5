//! `lfs setstripe`.

use super::{layout_of, parse_size};
use crate::output;
use crate::query::watch;
use anyhow::{Context as _, Result, bail, ensure};
use nacre_types::{DOM_BYTES_MAX, STRIPE_BYTES_UNIT, STRIPES_MAX};
use rustix::fs::XattrFlags;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    // `timeout` is open: the caller applies it to the command as a whole.
    /// Number of stripes, 1 to 512; -1 = over all OSTs, 0 = the file system's default
    #[arg(short = 'c', long, default_value_t = 0, allow_negative_numbers = true, value_name = "COUNT")]
    stripe_count: i64,
    /// Bytes per stripe before the next OST is used, a multiple of 64K below 4G; 0 = default
    #[arg(short = 'S', long, default_value = "0", value_parser = parse_size, value_name = "SIZE")]
    stripe_size: u64,
    /// Index of the first OST; -1 = chosen round robin
    #[arg(short = 'i', long, default_value_t = -1, allow_negative_numbers = true, value_name = "OST")]
    stripe_index: i64,
    /// `mdt`: the MDT keeps the bytes of a file as long as there are no more than -E says; `raid0`: OSTs have all bytes
    /// (default: as the file system does, see `lod.*.dom_stripesize`)
    #[arg(short = 'L', long, value_enum, value_name = "PATTERN")]
    layout: Option<Pattern>,
    /// With -L mdt: the most bytes of a file that the MDT keeps, 1 to 64K
    #[arg(short = 'E', long, value_parser = parse_size, value_name = "SIZE", requires = "layout")]
    component_end: Option<u64>,
    /// Remove the layout that was set on the directory
    #[arg(short = 'd', long, conflicts_with_all = ["stripe_count", "stripe_size", "stripe_index", "layout"])]
    delete: bool,
    /// Seconds to wait for a reply (default: no limit; after a timeout the layout may still be set)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) timeout: Option<u64>,
    /// A directory, or a file that does not exist or was never written
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// The place of the first bytes of a file.
#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Mdt,
    Raid0,
}

/// The part of a layout's text about bytes at the MDT.
fn dom(args: &Args) -> Result<String> {
    let most = u64::from(DOM_BYTES_MAX);
    match (args.layout, args.component_end) {
        (None, _) => Ok(String::new()),
        (Some(Pattern::Raid0), None) => Ok(String::from(",dom=0")),
        (Some(Pattern::Raid0), Some(_)) => bail!("-E belongs to -L mdt"),
        (Some(Pattern::Mdt), Some(bytes)) if (1..=most).contains(&bytes) => Ok(format!(",dom={bytes}")),
        (Some(Pattern::Mdt), Some(bytes)) => bail!("an MDT keeps 1 byte to 64K of a file, not {bytes}"),
        (Some(Pattern::Mdt), None) => {
            bail!("-L mdt needs -E: the most bytes of a file that the MDT keeps, 1 to 64K")
        }
    }
}

pub(super) fn run(args: &Args) -> Result<()> {
    let dom = dom(args)?;
    ensure!(
        (-1..=i64::from(STRIPES_MAX)).contains(&args.stripe_count),
        "stripe count {} is out of range: 1 to {STRIPES_MAX}, -1 = over all OSTs, 0 = the default",
        args.stripe_count
    );
    ensure!(
        args.stripe_size.is_multiple_of(STRIPE_BYTES_UNIT.into()) && args.stripe_size <= u32::MAX.into(),
        "stripe size {} is out of range: a multiple of 64K below 4G, 0 = the default",
        args.stripe_size
    );
    ensure!(
        (-1..=i64::from(u16::MAX)).contains(&args.stripe_index),
        "stripe index {} is out of range: 0 to {}, -1 = any OST\nhint: nacre lfs osts lists them",
        args.stripe_index,
        u16::MAX
    );
    let text =
        format!("count={},size={},first={}{dom}", args.stripe_count, args.stripe_size, args.stripe_index);
    for path in &args.paths {
        watch::asks(path);
        if args.delete {
            rustix::fs::removexattr(path, "nacre.layout")
                .with_context(|| format!("cannot remove the layout of {}", output::name(path)))?;
            continue;
        }
        let made = !path.exists();
        if made {
            std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .with_context(|| format!("cannot make {}", output::name(path)))?;
        }
        let result = rustix::fs::setxattr(path, "nacre.layout", text.as_bytes(), XattrFlags::empty());
        if made && result.is_err() {
            // Not asked for without the layout.
            drop(std::fs::remove_file(path));
        }
        match result {
            Ok(()) => say_stripes(args.stripe_count, path)?,
            Err(rustix::io::Errno::NXIO) => bail!(
                "{}: the OST with index {} does not exist, or is stopped or full\n\
                 hint: nacre lfs df shows the OSTs; -i -1 lets the MDT choose",
                output::name(path),
                args.stripe_index
            ),
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::BUSY) => bail!(
                "{} has data: its layout cannot be changed\nhint: set the layout on a new file and copy",
                output::name(path)
            ),
            Err(rustix::io::Errno::OPNOTSUPP) => {
                bail!(
                    "{} is not on a nacre file system\nhint: nacre status lists the mounts",
                    output::name(path)
                )
            }
            Err(e) => {
                return Err(e).with_context(|| format!("cannot set the layout of {}", output::name(path)));
            }
        }
    }
    Ok(())
}

/// A file has no more stripes than there are OSTs for it.
fn say_stripes(wanted: i64, path: &Path) -> Result<()> {
    let Some(layout) = layout_of(path)?.layout else { return Ok(()) };
    let stripes = layout.components.first().map_or(0, |component| component.stripes.len());
    if wanted > 0 && i64::try_from(stripes)? < wanted {
        output::note(&format!(
            "{}: {wanted} stripes were asked for, it has {stripes}: one on each OST that takes files",
            output::name(path)
        ));
    }
    Ok(())
}
