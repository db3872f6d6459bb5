//! The table of bounds: the highest allowed count per crate, in `bounds.txt`.
//!
//! A count above its bound fails. A count below it is reported, and `--lower` writes it down. A crate that is not in the
//! table has bounds of 0. Raising a bound is an edit by hand, which a reviewer sees.

use super::shape::Shape;
use anyhow::{Context as _, Result, ensure};
use nacre_e2e::shell::root;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

const HEADER: &str = "\
# Highest allowed counts per crate; checked by `cargo xtask policy`, lowered by `cargo xtask policy --lower`.
# circle: files in the largest import circle. fields: `pub(crate)` fields. long: functions of more than 70 lines.
# undocumented: public items and fields without documentation.
";

type Counts = [usize; 4];

fn counts(shape: &Shape) -> Counts {
    [shape.circle.len(), shape.crate_fields.len(), shape.long_functions.len(), shape.undocumented.len()]
}

const NAMES: [&str; 4] = ["circle", "fields", "long", "undocumented"];

fn path() -> PathBuf {
    root().join("xtask/src/policy/bounds.txt")
}

fn parse(text: &str) -> Result<BTreeMap<String, Counts>> {
    let mut table = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        if name == "crate" {
            continue; // the heading
        }
        let numbers: Vec<usize> = words.map(str::parse).collect::<Result<_, _>>().context(line.to_owned())?;
        let numbers =
            numbers.try_into().map_err(|_| anyhow::anyhow!("bounds.txt: not four numbers: {line}"))?;
        table.insert(name.to_owned(), numbers);
    }
    Ok(table)
}

fn render(table: &BTreeMap<String, Counts>) -> Result<String> {
    let mut out = String::new();
    let [a, b, c, d] = NAMES;
    writeln!(out, "{:<16}{a:>8}{b:>8}{c:>6}{d:>14}", "crate")?;
    for (name, [a, b, c, d]) in table {
        writeln!(out, "{name:<16}{a:>8}{b:>8}{c:>6}{d:>14}")?;
    }
    Ok(out)
}

/// Prints the counts and fails if one is above its bound.
pub(super) fn check(shapes: &BTreeMap<String, Shape>, lower: bool) -> Result<()> {
    let text = std::fs::read_to_string(path()).with_context(|| path().display().to_string())?;
    let bounds = parse(&text)?;
    let now: BTreeMap<String, Counts> =
        shapes.iter().map(|(name, shape)| (name.clone(), counts(shape))).collect();
    let (mut problems, mut may_fall) = (Vec::new(), 0);
    for (name, counts) in &now {
        let bound = bounds.get(name).copied().unwrap_or_default();
        for (what, (count, bound)) in NAMES.iter().zip(counts.iter().zip(bound)) {
            if *count > bound {
                problems.push(format!("{name}: {what} is {count}, the bound is {bound}"));
            }
            may_fall += usize::from(*count < bound);
        }
    }
    eprint!("{}", render(&now)?);
    ensure!(
        problems.is_empty(),
        "policy:\n  {}\nhint: cargo xtask policy --show CRATE lists what is counted",
        problems.join("\n  ")
    );
    if lower {
        std::fs::write(path(), format!("{HEADER}{}", render(&now)?))?;
    } else if may_fall > 0 {
        eprintln!("{may_fall} bounds are higher than their counts: cargo xtask policy --lower");
    }
    Ok(())
}

/// Lists what is counted in one crate.
pub(super) fn show(shapes: &BTreeMap<String, Shape>, name: &str) -> Result<()> {
    let shape = shapes.get(name).with_context(|| format!("no crate is called {name}"))?;
    let lists =
        [&shape.circle, &shape.crate_fields, &shape.long_functions, &shape.undocumented].into_iter().zip([
            "largest import circle",
            "pub(crate) fields",
            "functions of more than 70 lines",
            "public items without documentation",
        ]);
    for (list, title) in lists {
        println!("{title}: {}", list.len());
        list.iter().for_each(|line| println!("  {line}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rendered_table_is_read_back() {
        let table = BTreeMap::from([("nacre".to_owned(), [1, 2, 3, 4]), ("xtask".to_owned(), [0; 4])]);
        let text = format!("{HEADER}{}", render(&table).unwrap());
        assert_eq!(parse(&text).unwrap(), table);
    }
}
