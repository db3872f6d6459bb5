//! The rules about the source tree that a machine can check: `cargo xtask policy`.
//!
//! - `layers.rs`: which crate may depend on which, dependencies from outside, licences. Any violation fails.
//! - `shape.rs`: four counts per crate (import circles, `pub(crate)` fields, long functions, undocumented public items).
//! - `bounds.rs`: the highest allowed value of each count. Bounds only fall: `cargo xtask policy --lower` writes the
//!   present counts into `bounds.txt` wherever they are smaller.

mod bounds;
mod layers;
mod shape;
mod source;

use anyhow::Result;

/// Options of `cargo xtask policy`.
#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Lower the bounds to the present counts
    #[arg(long)]
    lower: bool,
    /// List what is counted in this crate
    #[arg(long, value_name = "CRATE")]
    show: Option<String>,
}

/// Checks everything and prints the counts.
pub(crate) fn run(options: &Options) -> Result<()> {
    layers::check()?;
    let shapes = shape::of_workspace()?;
    if let Some(name) = &options.show {
        return bounds::show(&shapes, name);
    }
    bounds::check(&shapes, options.lower)
}
