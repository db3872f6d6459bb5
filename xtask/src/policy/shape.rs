//! Counts of each crate: import circles, `pub(crate)` fields, long functions, undocumented public items.
//!
//! Files are modules here: an import is a path in the code of one file that leads to an item of another. A name that
//! the front door of a crate or folder re-exports leads to the file that defines it, and the re-export itself is no
//! import. Methods are not followed.

use super::source::{Source, SourcePath, block_end, indent};
use anyhow::{Context as _, Result};
use nacre_e2e::shell::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A function of more lines is long.
const FUNCTION_LINES_MAX: usize = 70;
/// Re-exports of re-exports are followed this far.
const REEXPORTS_MAX: usize = 8;

/// The counts of one crate, each as a list of places: a plain record.
#[derive(Default)]
pub(super) struct Shape {
    /// Files of the largest import circle.
    pub(super) circle: Vec<String>,
    pub(super) crate_fields: Vec<String>,
    pub(super) long_functions: Vec<String>,
    pub(super) undocumented: Vec<String>,
}

type ModulePath = Vec<String>;

/// The shapes of all crates of the workspace, by name.
pub(super) fn of_workspace() -> Result<BTreeMap<String, Shape>> {
    let mut shapes = BTreeMap::from([("xtask".to_owned(), of_crate(&root().join("xtask/src"))?)]);
    for entry in std::fs::read_dir(root().join("crates"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        shapes.insert(name, of_crate(&entry.path().join("src"))?);
    }
    Ok(shapes)
}

fn of_crate(src: &Path) -> Result<Shape> {
    let mut files = Vec::new();
    rust_files(src, &mut files)?;
    let mut modules: BTreeMap<ModulePath, Vec<(String, Source)>> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        let name = file.strip_prefix(src)?.to_string_lossy().into_owned();
        modules.entry(module_path(&name)).or_default().push((name, Source::parse(&text)));
    }
    let tests: Vec<ModulePath> = modules
        .iter()
        .flat_map(|(path, files)| {
            files.iter().flat_map(move |(_, f)| f.test_modules.iter().map(move |m| (path, m)))
        })
        .map(|(path, module)| path.iter().chain([module]).cloned().collect())
        .collect();
    modules.retain(|path, _| !tests.iter().any(|test| path.starts_with(test)));
    let mut shape = Shape { circle: largest_circle(&imports(&modules)), ..Shape::default() };
    for (name, source) in modules.values().flatten() {
        count_items(name, source, &mut shape);
    }
    Ok(shape)
}

fn rust_files(folder: &Path, out: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, out)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
    out.sort();
    Ok(())
}

/// `locks/mod.rs` and `locks.rs` are the module `locks`; `lib.rs` and `main.rs` are the root.
fn module_path(name: &str) -> ModulePath {
    let path: ModulePath = name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    match path.last().map(String::as_str) {
        Some("mod") => path[..path.len() - 1].to_vec(),
        Some("lib" | "main") if path.len() == 1 => Vec::new(),
        _ => path,
    }
}

/// By module, the modules whose items it names.
fn imports(
    modules: &BTreeMap<ModulePath, Vec<(String, Source)>>,
) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
    let known: BTreeSet<&ModulePath> = modules.keys().collect();
    let mut reexports: BTreeMap<(ModulePath, String), ModulePath> = BTreeMap::new();
    let mut uses = Vec::new();
    for (module, files) in modules {
        for SourcePath { segments, reexport, name } in files.iter().flat_map(|(_, source)| source.paths()) {
            let Some(path) = absolute(module, &segments, &known) else { continue };
            if reexport {
                reexports.insert((module.clone(), name), path);
            } else {
                uses.push((module, path));
            }
        }
    }
    let mut graph: BTreeMap<ModulePath, BTreeSet<ModulePath>> = BTreeMap::new();
    for (from, mut path) in uses {
        for _ in 0..REEXPORTS_MAX {
            let depth = (0..=path.len()).rev().find(|&n| known.contains(&path[..n].to_vec())).unwrap_or(0);
            let door = path[..depth].to_vec();
            match path.get(depth).and_then(|name| reexports.get(&(door.clone(), name.clone()))) {
                Some(to) => path = to.iter().chain(&path[depth + 1..]).cloned().collect(),
                None => {
                    graph.entry(from.clone()).or_default().insert(door);
                    break;
                }
            }
        }
    }
    graph
}

/// A path from the root of the crate; `None` if it leads to another crate.
fn absolute(module: &ModulePath, segments: &[String], known: &BTreeSet<&ModulePath>) -> Option<ModulePath> {
    let mut path = module.clone();
    let mut rest = segments;
    match segments.first().map(String::as_str) {
        Some("crate") => {
            path.clear();
            rest = &segments[1..];
        }
        Some("self" | "super") => {}
        // In a door, `pub use name::Item` starts at a child of the door.
        Some(name) => {
            let child: ModulePath = module.iter().cloned().chain([name.to_owned()]).collect();
            if !known.contains(&child) {
                return None;
            }
        }
        None => return None,
    }
    for segment in rest {
        match segment.as_str() {
            "self" => {}
            "super" => drop(path.pop()),
            _ => path.push(segment.clone()),
        }
    }
    Some(path)
}

/// The files of the largest set of modules that all lead to each other.
fn largest_circle(graph: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<String> {
    let reach: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = graph
        .keys()
        .map(|from| {
            let mut seen: BTreeSet<&ModulePath> = BTreeSet::new();
            let mut next: Vec<&ModulePath> = graph[from].iter().filter(|to| *to != from).collect();
            while let Some(module) = next.pop() {
                if seen.insert(module) {
                    next.extend(graph.get(module).into_iter().flatten());
                }
            }
            (from, seen)
        })
        .collect();
    let circles = reach.iter().map(|(from, to)| {
        let back = |module: &&&ModulePath| reach.get(**module).is_some_and(|seen| seen.contains(from));
        to.iter().filter(back).map(|module| door_name(module)).collect::<Vec<_>>()
    });
    circles.filter(|circle| circle.len() > 1).max_by_key(Vec::len).unwrap_or_default()
}

fn door_name(module: &ModulePath) -> String {
    if module.is_empty() { "the crate's root".to_owned() } else { module.join("::") }
}

fn count_items(name: &str, source: &Source, shape: &mut Shape) {
    for (at, line) in source.code.iter().enumerate() {
        let line = line.trim();
        let place = || format!("{name}:{}: {}", at + 1, source.text[at].trim());
        if is_crate_field(line) || line.contains("(pub(crate) ") || line.contains(", pub(crate) ") {
            shape.crate_fields.push(place());
        }
        if is_function(line) && block_end(&source.code, at) - at >= FUNCTION_LINES_MAX {
            let lines = block_end(&source.code, at) - at + 1;
            shape.long_functions.push(format!("{} ({lines} lines)", place()));
        }
        if is_public_item(line) && !is_documented(&source.text, at) {
            shape.undocumented.push(place());
        }
    }
}

/// `pub(crate) name: Type`
fn is_crate_field(line: &str) -> bool {
    let rest = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub(super) "));
    rest.is_some_and(is_field)
}
fn is_field(rest: &str) -> bool {
    let name = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(0);
    name > 0 && rest[name..].starts_with(": ")
}

fn is_function(line: &str) -> bool {
    let mut words = line.split(' ').skip_while(|word| {
        word.starts_with("pub") || matches!(*word, "const" | "async" | "unsafe" | "extern" | "")
    });
    words.next() == Some("fn")
}

fn is_public_item(line: &str) -> bool {
    let Some(rest) = line.strip_prefix("pub ") else { return false };
    let kinds = ["fn ", "struct ", "enum ", "trait ", "const ", "type ", "static ", "async fn ", "unsafe "];
    is_field(rest)
        || kinds.iter().any(|kind| rest.strip_prefix(kind).is_some_and(|name| !name.starts_with('$')))
}

fn is_documented(text: &[String], item: usize) -> bool {
    let mut at = item;
    while at > 0 {
        at -= 1;
        let line = text[at].trim();
        if line.starts_with("///") || line.starts_with("#[doc") || line.ends_with("*/") {
            return true;
        }
        if line.starts_with("#[") {
            continue;
        }
        // The rest of an attribute over several lines.
        let column = indent(&text[at]);
        if line.ends_with(")]") && column == indent(&text[item]) {
            at = (0..at).rev().find(|&i| text[i].trim().starts_with("#[")).unwrap_or(0);
            continue;
        }
        return false;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules(files: &[(&str, &str)]) -> BTreeMap<ModulePath, Vec<(String, Source)>> {
        files
            .iter()
            .map(|(name, text)| (module_path(name), vec![((*name).to_owned(), Source::parse(text))]))
            .collect()
    }

    #[test]
    fn a_circle_through_a_front_door_is_seen_and_the_door_is_not_part_of_it() {
        let files = modules(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\npub use a::A;\npub use c::C;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { crate::A::new() }\n"),
            ("c/mod.rs", "use crate::A;\n"),
        ]);
        assert_eq!(largest_circle(&imports(&files)), ["a", "b"]);
    }

    #[test]
    fn fields_long_functions_and_missing_documentation_are_found() {
        let body = "    x();\n".repeat(FUNCTION_LINES_MAX);
        let text = format!(
            "pub struct S {{\n    pub(crate) a: u8,\n    pub b: u8,\n}}\n/// Fine.\n#[must_use]\npub fn f(\n    a: u8,\n) {{\n{body}}}\nfn g() {{}}\n"
        );
        let mut shape = Shape::default();
        count_items("x.rs", &Source::parse(&text), &mut shape);
        assert_eq!(shape.crate_fields, ["x.rs:2: pub(crate) a: u8,"]);
        assert_eq!(shape.undocumented, ["x.rs:1: pub struct S {", "x.rs:3: pub b: u8,"]);
        assert_eq!(shape.long_functions, ["x.rs:7: pub fn f( (74 lines)"]);
    }
}
