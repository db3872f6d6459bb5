//! Layers, allowed dependencies and licences, read from `cargo metadata`.
//!
//! A crate depends only on lower layers, or on a crate of its own layer that [`SIDEWAYS`] names (and
//! ARCHITECTURE.md explains). L0 to L2 may use only [`LOGIC_DEPENDENCIES`] from outside and are `no_std`.

use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::{cargo, output, root};
use serde_json::Value;
use std::collections::BTreeMap;

/// Edges inside a layer: (from, to).
const SIDEWAYS: &[(&str, &str)] = &[
    ("nacre-rpc", "nacre-wire"),
    ("nacre-node", "nacre-wire"),
    ("nacre-node", "nacre-rpc"),
    ("nacre-osd", "nacre-node"),
    ("nacre-mgs", "nacre-target"),
    ("nacre-mdt", "nacre-target"),
    ("nacre-ost", "nacre-target"),
    ("nacre-rt", "nacre-net"),
    ("nacre", "nacre-fuse"),
];

/// The external crates that logic crates may use.
const LOGIC_DEPENDENCIES: &[&str] =
    &["bytes", "crc-fast", "hashbrown", "siphasher", "smallvec", "thiserror", "tracing"];

const LICENCES: &[&str] = &[
    "MIT",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Unlicense",
    "Zlib",
    "Unicode-3.0",
    "CC0-1.0",
    "0BSD",
    "BSL-1.0",
];

/// `dev` sits above everything.
fn rank(layer: &str) -> Result<u32> {
    match layer {
        "dev" => Ok(9),
        n => n.parse().with_context(|| format!("layer {n:?} is neither a number nor \"dev\"")),
    }
}

pub(super) fn check() -> Result<()> {
    let text = output(&mut cargo(&["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let packages = metadata["packages"].as_array().context("cargo metadata without packages")?;
    let mut problems = Vec::new();
    let mut layers = BTreeMap::new();
    let ours = |p: &Value| p["source"].is_null();
    for p in packages.iter().filter(|p| ours(p)) {
        let name = p["name"].as_str().unwrap_or_default();
        match p["metadata"]["nacre"]["layer"].as_str() {
            Some(layer) => drop(layers.insert(name, rank(layer)?)),
            None => problems.push(format!("{name}: no [package.metadata.nacre] layer")),
        }
    }
    for p in packages {
        let name = p["name"].as_str().unwrap_or_default();
        if !ours(p) {
            let licence = p["license"].as_str().unwrap_or("none");
            let fine = licence
                .split([' ', '/', '(', ')'])
                .filter(|w| !matches!(*w, "OR" | "AND" | "WITH" | "" | "LLVM-exception"))
                .any(|w| LICENCES.contains(&w));
            if !fine {
                problems.push(format!("{name}: licence {licence} is not on the list"));
            }
            continue;
        }
        let layer = layers.get(name).copied().unwrap_or(9);
        for d in p["dependencies"].as_array().into_iter().flatten() {
            let to = d["name"].as_str().unwrap_or_default();
            // Test-only: dev-dependencies, and loom under its own cfg.
            if d["kind"].as_str() == Some("dev") || d["target"].as_str() == Some("cfg(loom)") {
                continue;
            }
            match layers.get(to) {
                Some(&l) if l > layer => {
                    problems.push(format!("{name} (L{layer}) depends upward on {to} (L{l})"))
                }
                Some(&l) if l == layer && layer != 9 && !SIDEWAYS.contains(&(name, to)) => {
                    problems.push(format!(
                        "{name} depends sideways on {to}: name the edge in ARCHITECTURE.md and here"
                    ));
                }
                Some(_) => {}
                None if layer <= 2 && !LOGIC_DEPENDENCIES.contains(&to) => {
                    problems.push(format!("{name} (L{layer}) may not use {to}"));
                }
                None => {}
            }
        }
        if layer <= 2 {
            let lib = root().join("crates").join(name).join("src/lib.rs");
            let text = std::fs::read_to_string(&lib).with_context(|| lib.display().to_string())?;
            if !text.contains("#![no_std]") {
                problems.push(format!("{name}: logic crates are #![no_std]"));
            }
        }
    }
    ensure!(problems.is_empty(), "policy:\n  {}", problems.join("\n  "));
    eprintln!("{} crates, {} packages: layers, dependencies and licences hold", layers.len(), packages.len());
    Ok(())
}
