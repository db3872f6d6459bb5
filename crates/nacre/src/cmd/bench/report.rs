//! The figures of a load on one directory, or on several in turn.
//!
//! Every ratio is the median of the ratios round by round, because a busy machine is as slow for one directory as for
//! the others within a round, but not from round to round.

use crate::output;
use anyhow::Result;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The unit of a figure.
#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    #[serde(rename = "op/s")]
    Rate,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "MiB/s")]
    Bandwidth,
}
impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Rate | Self::Bandwidth => format!("{value:.0}"),
            Self::Seconds => format!("{value:.4}"),
        }
    }
    /// How much faster the first directory is than another one.
    fn ratio(self, first: f64, other: f64) -> f64 {
        match self {
            Self::Rate | Self::Bandwidth => first / other.max(1e-9),
            Self::Seconds => other / first.max(1e-9),
        }
    }
}

pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The figures of one row on another directory.
#[derive(Serialize)]
struct Versus {
    rounds: Vec<f64>,
    median: f64,
    ratio: f64,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    rounds: Vec<f64>,
    median: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    vs: Vec<Versus>,
}

/// All rows of a load; `options` are those of the load.
#[derive(Serialize)]
pub(super) struct Report<O> {
    directory: PathBuf,
    vs: Vec<PathBuf>,
    unit: Unit,
    #[serde(flatten)]
    options: O,
    rows: Vec<Row>,
}

/// Measures each row in all directories, then the next row, round by round: `start` prepares a directory for a round, and
/// `run` measures one row there. Every other round takes the directories in reverse: the first one works beside what the
/// last round has left to do, and it gets the memory that was used last.
pub(super) fn measure<P, O>(
    (dirs, unit, options): (&[PathBuf], Unit, O),
    names: &[&'static str],
    rounds: u32,
    start: impl Fn(&Path, u32) -> Result<P>,
    run: impl Fn(&mut P, usize) -> Result<f64>,
) -> Result<Report<O>> {
    let bar = output::progress(u64::from(rounds) * names.len() as u64, "rows");
    // Per row, per directory, per round.
    let mut figures = vec![vec![Vec::new(); dirs.len()]; names.len()];
    for round in 0..rounds {
        let mut places = dirs.iter().map(|dir| start(dir, round)).collect::<Result<Vec<_>>>()?;
        for (at, row) in figures.iter_mut().enumerate() {
            let mut order: Vec<_> = places.iter_mut().zip(row).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for (place, of_place) in order {
                of_place.push(run(place, at)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let rows = names.iter().zip(figures).map(|(name, mut dirs)| {
        let first = if dirs.is_empty() { Vec::new() } else { dirs.remove(0) };
        let versus = |rounds: Vec<f64>| {
            let ratios: Vec<f64> = first.iter().zip(&rounds).map(|(a, b)| unit.ratio(*a, *b)).collect();
            Versus { median: median(&rounds), ratio: median(&ratios), rounds }
        };
        Row { name, vs: dirs.into_iter().map(versus).collect(), median: median(&first), rounds: first }
    });
    let mut dirs = dirs.iter().cloned();
    Ok(Report {
        directory: dirs.next().unwrap_or_default(),
        vs: dirs.collect(),
        unit,
        options,
        rows: rows.collect(),
    })
}

impl<O: Serialize> Report<O> {
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.rows.iter().map(|row| row.name)
    }
    /// The figure of a row in a directory; 0 is the first directory.
    pub(super) fn median(&self, row: usize, dir: usize) -> f64 {
        let row = self.rows.get(row);
        let figure = match dir.checked_sub(1) {
            None => row.map(|row| row.median),
            Some(other) => row.and_then(|row| row.vs.get(other)).map(|versus| versus.median),
        };
        figure.unwrap_or(0.0)
    }
    /// As JSON with stable keys, or a table below the sentence that `head` makes of the options.
    pub(super) fn print(&self, json: bool, head: impl Fn(&O) -> String) -> Result<()> {
        if json {
            return output::json(self);
        }
        let unit = match self.unit {
            Unit::Rate => "op/s",
            Unit::Seconds => "seconds",
            Unit::Bandwidth => "MiB/s",
        };
        let mut table = output::Table::new(&["row", &format!("{unit} (median)"), "lowest", "highest"]);
        for dir in &self.vs {
            let name = dir.file_name().map_or_else(|| output::name(dir), output::name);
            table.add_columns([format!("{name} {unit}"), "ratio".to_owned()]);
        }
        for row in &self.rows {
            let low = row.rounds.iter().copied().fold(f64::INFINITY, f64::min);
            let high = row.rounds.iter().copied().fold(0.0, f64::max);
            let mut cells = vec![row.name.to_owned()];
            cells.extend([row.median, low, high].map(|value| self.unit.show(value)));
            for versus in &row.vs {
                cells.extend([self.unit.show(versus.median), format!("{:.4}", versus.ratio)]);
            }
            table.row(cells);
        }
        output::line(&head(&self.options));
        table.print();
        Ok(())
    }
}
