//! `nacre lfs …` (and the link named `lfs`): Lustre's commands for users, with the same options and output.
//!
//! The commands use only extended attributes of the mounted files (`nacre.*`), so an ordinary user may run them and no
//! socket is needed.

mod df;
mod fid;
mod getstripe;
mod setstripe;

use crate::output;
use crate::query::watch;
use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

#[derive(Subcommand, Debug)]
pub(crate) enum LfsCommand {
    /// Set the layout of a new file, or the default layout of a directory for new files
    #[command(visible_alias = "ss")]
    Setstripe(setstripe::Args),
    /// Show the layout of files and directories
    #[command(visible_alias = "gs")]
    Getstripe(getstripe::Args),
    /// Show space (or inodes) per target
    // -h is the field's "for people" here.
    #[command(disable_help_flag = true)]
    Df(df::Args),
    /// Show the FID of files
    Path2fid(fid::Path2fidArgs),
    /// Show the paths of FIDs
    Fid2path(fid::Fid2pathArgs),
    /// List the OSTs of a mounted file system
    Osts(df::ListArgs),
    /// List the MDTs of a mounted file system
    Mdts(df::ListArgs),
    /// Show the name of the file system and the id of the mount
    Getname(df::ListArgs),
    /// Print an attribute as it is (for the command's own children)
    #[command(hide = true)]
    Attribute { name: String, path: PathBuf },
}

pub(crate) fn run(command: &LfsCommand) -> Result<()> {
    match command {
        LfsCommand::Setstripe(args) => watch::within_or_wait(args.timeout, || setstripe::run(args)),
        LfsCommand::Getstripe(args) => watch::within(args.timeout.limit(), || getstripe::run(args)),
        LfsCommand::Df(args) => df::run(args),
        LfsCommand::Path2fid(args) => watch::within(args.timeout.limit(), || fid::path2fid(args)),
        LfsCommand::Fid2path(args) => watch::within(args.timeout.limit(), || fid::fid2path(args)),
        LfsCommand::Osts(args) => df::list(args, "OST"),
        LfsCommand::Mdts(args) => df::list(args, "MDT"),
        LfsCommand::Getname(args) => df::getname(args),
        LfsCommand::Attribute { name, path } => watch::reply(path, name),
    }
}

/// The value of `nacre.layout`.
#[derive(Debug, Serialize, Deserialize)]
struct LayoutText {
    fid: String,
    /// Files.
    layout: Option<LayoutOfFile>,
    /// Directories: what was set on it.
    template: Option<Template>,
    default: Template,
}
#[derive(Debug, Serialize, Deserialize)]
struct LayoutOfFile {
    generation: u32,
    /// The most bytes that the MDT keeps before they move to the objects; 0: they are there.
    dom_bytes: u32,
    components: Vec<Component>,
}
#[derive(Debug, Serialize, Deserialize)]
struct Component {
    start: u64,
    /// `None`: to the end.
    end: Option<u64>,
    stripe_bytes: u32,
    stripes: Vec<Stripe>,
}
#[derive(Debug, Serialize, Deserialize)]
struct Stripe {
    ost: u32,
    /// `seq:oid:stripe`.
    object: String,
}
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Template {
    count: i32,
    size: u32,
    first: i32,
    /// Bytes at the MDT; `None`: as the file system does.
    dom: Option<u32>,
}

/// Reads a `nacre.*` attribute.
pub(crate) fn attribute(path: &Path, name: &str) -> Result<String> {
    String::from_utf8(attribute_bytes(path, name)?).context("the mount returned something that is not text")
}

/// The same of an attribute in which there are names of files, which may be any bytes.
fn attribute_bytes(path: &Path, name: &str) -> Result<Vec<u8>> {
    watch::asks(path);
    let mut size = 64 << 10;
    loop {
        let mut buf = vec![0u8; size];
        match rustix::fs::getxattr(path, name, &mut buf) {
            Ok(len) => {
                buf.truncate(len);
                return Ok(buf);
            }
            Err(rustix::io::Errno::RANGE) if size < 64 << 20 => size *= 4,
            Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {
                bail!(
                    "{} is not on a nacre file system\nhint: nacre status lists the mounts",
                    output::name(path)
                )
            }
            Err(e) => return Err(e).with_context(|| output::name(path)),
        }
    }
}

fn layout_of(path: &Path) -> Result<LayoutText> {
    let text = attribute(path, "nacre.layout")?;
    serde_json::from_str(&text).with_context(|| format!("{}: layout {text:?}", output::name(path)))
}

/// `4M`, `65536`, `1g`: bytes.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = text.get(digits.len()..).unwrap_or("");
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no size: try 1M or 65536"))?;
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" => 10,
        "m" | "mb" => 20,
        "g" | "gb" => 30,
        "t" | "tb" => 40,
        _ => return Err(format!("{text:?}: unknown unit {suffix:?}, known are K, M, G, T")),
    };
    number.checked_shl(shift).filter(|v| v >> shift == number).ok_or(format!("{text:?} is too large"))
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes_take_units_and_refuse_nonsense() {
        assert_eq!(parse_size("1M"), Ok(1 << 20));
        assert_eq!(parse_size("65536"), Ok(65536));
        assert_eq!(parse_size("2g"), Ok(2 << 30));
        for bad in ["", "M", "1X", "99999999999999999999", "18446744073709551615T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        crate::replay::replay("text", |bytes| drop(parse_size(&String::from_utf8_lossy(bytes))));
    }
}
