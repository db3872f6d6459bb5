//! `lfs getstripe`: the field's text for files and directories.
//!
//! Objects have no ids of their own here, so the object table prints `seq:oid:stripe` as `l_fid`.

use super::{Component, LayoutText, Stripe, layout_of};
use crate::output;
use crate::query::tool::TimeoutArgs;
use crate::query::watch;
use anyhow::Result;
use nacre_types::Fid;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    // `timeout` is open: the caller applies it to the command as a whole.
    /// Only the directory itself, not the files in it
    #[arg(short = 'd', long)]
    directory: bool,
    /// Only the stripe count
    #[arg(short = 'c', long)]
    stripe_count: bool,
    /// Only the stripe size
    #[arg(short = 'S', long)]
    stripe_size: bool,
    /// Only the index of the first OST
    #[arg(short = 'i', long)]
    stripe_index: bool,
    /// YAML with the objects
    #[arg(short = 'y', long)]
    yaml: bool,
    /// Also magic number and FID
    #[arg(short, long)]
    verbose: bool,
    /// Descend into subdirectories
    #[arg(short, long)]
    recursive: bool,
    /// JSON with stable keys
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(super) timeout: TimeoutArgs,
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let mut list = Vec::new();
    for path in &args.paths {
        collect(args, path, true, &mut list)?;
    }
    if args.json {
        let all: Vec<_> =
            list.iter().map(|(path, text)| serde_json::json!({ "path": path, "layout": text })).collect();
        return output::json(&all);
    }
    for (path, text) in &list {
        output::raw(&print(args, path, text));
    }
    Ok(())
}

fn collect(args: &Args, path: &Path, top: bool, out: &mut Vec<(PathBuf, LayoutText)>) -> Result<()> {
    watch::asks(path);
    let is_dir = std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    out.push((path.to_path_buf(), layout_of(path)?));
    if is_dir && !args.directory && (top || args.recursive) {
        let mut names: Vec<PathBuf> = std::fs::read_dir(path)?.flatten().map(|e| e.path()).collect();
        names.sort();
        for name in names {
            watch::asks(&name);
            let meta = std::fs::symlink_metadata(&name)?;
            if meta.is_file() || (meta.is_dir() && args.recursive) {
                collect(args, &name, false, out)?;
            }
        }
    }
    Ok(())
}

fn print(args: &Args, path: &Path, text: &LayoutText) -> String {
    let Some(layout) = &text.layout else { return directory(args, path, text) };
    let Some(component) = layout.components.first() else { return format!("{}\n", output::name(path)) };
    let first = component.stripes.first().map_or(-1, |s| i64::from(s.ost));
    let single = [
        (args.stripe_count, component.stripes.len().to_string()),
        (args.stripe_size, component.stripe_bytes.to_string()),
        (args.stripe_index, first.to_string()),
    ];
    if let Some((_, value)) = single.into_iter().find(|(wanted, _)| *wanted) {
        return format!("{value}\n");
    }
    let fid = Fid::parse(&text.fid);
    let mut out = String::new();
    if !args.yaml {
        let _ = writeln!(out, "{}", output::name(path));
    }
    if args.verbose {
        let _ = writeln!(out, "lmm_magic:         0x0BD10BD0");
        if let Some(fid) = fid {
            let _ = writeln!(out, "lmm_seq:           {:#x}", fid.seq.0);
            let _ = writeln!(out, "lmm_object_id:     {:#x}", fid.oid.0);
        }
        let _ = writeln!(out, "lmm_fid:           {}", text.fid);
    }
    let _ = writeln!(out, "lmm_stripe_count:  {}", component.stripes.len());
    let _ = writeln!(out, "lmm_stripe_size:   {}", component.stripe_bytes);
    let pattern = if layout.dom_bytes > 0 { "mdt" } else { "raid0" };
    let _ = writeln!(out, "lmm_pattern:       {pattern}");
    let _ = writeln!(out, "lmm_layout_gen:    {}", layout.generation);
    let _ = writeln!(out, "lmm_stripe_offset: {first}");
    objects(args.yaml, component, &mut out);
    if !args.yaml {
        out.push('\n');
    }
    out
}

fn objects(yaml: bool, component: &Component, out: &mut String) {
    if yaml {
        out.push_str("lmm_objects:\n");
    } else {
        out.push_str("\tobdidx\t\t l_fid (seq:oid:stripe)\n");
    }
    for Stripe { ost, object } in &component.stripes {
        let _ = if yaml {
            writeln!(out, "      - l_ost_idx: {ost}\n        l_fid:     {object}")
        } else {
            writeln!(out, "\t{ost:6}\t\t {object}")
        };
    }
}

fn directory(args: &Args, path: &Path, text: &LayoutText) -> String {
    let t = text.template.unwrap_or(text.default);
    let single = [
        (args.stripe_count, t.count.to_string()),
        (args.stripe_size, t.size.to_string()),
        (args.stripe_index, t.first.to_string()),
    ];
    if let Some((_, value)) = single.into_iter().find(|(wanted, _)| *wanted) {
        return format!("{value}\n");
    }
    let pattern = match text.template {
        Some(template) if template.dom.is_some_and(|bytes| bytes > 0) => "mdt",
        Some(_) => "raid0",
        None => "",
    };
    format!(
        "{}\nstripe_count:  {} stripe_size:   {} pattern:       {pattern} stripe_offset: {}\n\n",
        output::name(path),
        t.count,
        t.size,
        t.first
    )
}
