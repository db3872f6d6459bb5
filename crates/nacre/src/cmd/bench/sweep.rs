//! `nacre bench md --sweep`: the same load at several limits of modifying requests in flight, as a table and a picture.
//!
//! Only `max_mod_rpcs_in_flight` varies; it is put back at the end. Values above the server's limit are refused by
//! the mount (it says where to raise it). All limits are measured in each round, so that a noisy machine disturbs
//! all alike; the ratio is against the first limit. The mount itself reports (`rpc_stats`) whether a limit was reached and
//! how many requests an operation takes: a program that looks up names between its changes uses its slots only part of
//! the time.

use super::chart::{self, Line, Panel};
use super::md_args::MdArgs;
use super::report::median;
use super::site::{Mdc, Site};
use super::worker::Phase;
use crate::output;
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

const LIMIT: &str = "max_mod_rpcs_in_flight";
const ALL_LIMIT: &str = "max_rpcs_in_flight";
const ALL_LIMIT_MAX: u32 = 512;

/// A plain record: the keys of the JSON output.
#[derive(Serialize, Default)]
pub(super) struct Row {
    pub(super) phase: &'static str,
    /// Median operations per second at each limit.
    pub(super) ops_per_second: Vec<f64>,
    /// Against the first limit.
    pub(super) ratio: Vec<f64>,
    /// Modifying requests in flight when each was sent: mean at each limit, from the latest round.
    pub(super) in_flight_mean: Vec<f64>,
    pub(super) in_flight_most: Vec<u64>,
    /// Requests to the MDT per operation, of all limits.
    pub(super) rpcs_per_operation: f64,
}

/// A plain record: the keys of the JSON output.
#[derive(Serialize, Default)]
pub(super) struct Report<'a> {
    pub(super) limits: &'a [u16],
    pub(super) processes: u32,
    pub(super) items_per_process: u32,
    pub(super) rounds: u32,
    /// Changes in a request, without the kernel; absent: programs on a mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) batch: Option<u16>,
    /// The shortest time that any request took.
    pub(super) round_trip_us: u64,
    pub(super) rows: Vec<Row>,
}

/// The results of one phase at one limit, round by round.
#[derive(Default, Clone)]
struct Cell {
    rates: Vec<f64>,
    in_flight: (f64, u64),
    requests: u64,
    round_trip_us: Option<u64>,
}

pub(super) fn run(args: &MdArgs, limits: &[u16], site: &mut dyn Site) -> Result<()> {
    ensure!(!limits.is_empty(), "--sweep needs at least one limit");
    let phases = args.changes()?;
    let before = site.mdc()?;
    ensure!(
        before.named(LIMIT).next().is_some(),
        "no nacre mount replies on this machine\nhint: nacre status lists them"
    );
    let cells = measure(args, limits, &phases, site);
    // The sum of the limits bounds the one of changes, so it is put back first.
    for param in before.named(ALL_LIMIT).chain(before.named(LIMIT)) {
        site.set(param, &param.value).context("the limits cannot be put back")?;
    }
    let report = report(args, limits, &phases, &cells?);
    if let Some(file) = &args.picture {
        chart::draw(&title(&report), &panels(&report), file)?;
    }
    if args.json { output::json(&report) } else { print(&report) }
}

fn measure(args: &MdArgs, limits: &[u16], phases: &[Phase], site: &mut dyn Site) -> Result<Vec<Vec<Cell>>> {
    let mut cells = vec![vec![Cell::default(); limits.len()]; phases.len()];
    let most = limits.iter().copied().max().unwrap_or(1);
    // Room for every worker's reads beside all slots.
    let room = (u32::from(most) + args.processes + 1).min(ALL_LIMIT_MAX);
    set_all(site, ALL_LIMIT, &room.to_string())?;
    let bar = output::progress(u64::from(args.rounds) * (limits.len() * phases.len()) as u64, "phases");
    for round in 0..args.rounds {
        for (column, limit) in limits.iter().enumerate() {
            set_all(site, LIMIT, &limit.to_string())?;
            site.begin(round)?;
            for (row, &phase) in phases.iter().enumerate() {
                set_all(site, "rpc_stats", "0")?;
                set_all(site, "stats", "0")?;
                let rate = site.run(phase)?;
                let after = site.mdc()?;
                let cell = &mut cells[row][column];
                cell.rates.push(rate);
                cell.in_flight = after.in_flight();
                cell.requests += after.requests();
                cell.round_trip_us = cell.round_trip_us.min(after.round_trip_us()).or(after.round_trip_us());
                bar.inc(1);
            }
            site.end()?;
        }
    }
    bar.finish_and_clear();
    Ok(cells)
}

fn set_all(site: &mut dyn Site, field: &str, value: &str) -> Result<()> {
    let Mdc(params) = site.mdc()?;
    for param in Mdc(params).named(field) {
        site.set(param, value)?;
    }
    Ok(())
}

fn report<'a>(args: &MdArgs, limits: &'a [u16], phases: &[Phase], cells: &[Vec<Cell>]) -> Report<'a> {
    let operations = f64::from(args.rounds) * f64::from(args.items) * f64::from(args.processes);
    let rows = phases.iter().zip(cells).map(|(phase, columns)| {
        let ops_per_second: Vec<f64> = columns.iter().map(|c| median(&c.rates)).collect();
        let first = ops_per_second.first().copied().unwrap_or(0.0).max(1e-9);
        let requests: u64 = columns.iter().map(|c| c.requests).sum();
        Row {
            phase: phase.name(),
            ratio: ops_per_second.iter().map(|rate| rate / first).collect(),
            ops_per_second,
            in_flight_mean: columns.iter().map(|c| c.in_flight.0).collect(),
            in_flight_most: columns.iter().map(|c| c.in_flight.1).collect(),
            rpcs_per_operation: requests as f64 / operations / limits.len() as f64,
        }
    });
    Report {
        limits,
        processes: args.processes,
        items_per_process: args.items,
        rounds: args.rounds,
        batch: args.batch,
        round_trip_us: cells.iter().flatten().filter_map(|c| c.round_trip_us).min().unwrap_or(0),
        rows: rows.collect(),
    }
}

/// The callers of the load.
fn who(report: &Report<'_>) -> String {
    match report.batch {
        Some(1) => "tasks of one client".to_owned(),
        Some(n) => format!("tasks of one client, {n} changes in a request"),
        None => "processes on one mount".to_owned(),
    }
}

fn title(report: &Report<'_>) -> String {
    let round_trip_ms = report.round_trip_us as f64 / 1000.0;
    format!("{} {}, round trip {round_trip_ms:.1} ms: operations per second", report.processes, who(report))
}

/// The picture: files and directories side by side. The limits are evenly spaced when each is twice the one before.
fn panels(report: &Report<'_>) -> Vec<Panel> {
    let (files, dirs): (Vec<&Row>, Vec<&Row>) =
        report.rows.iter().partition(|row| row.phase.starts_with("file"));
    let panels = [("files", files), ("directories", dirs)].into_iter().filter(|(_, rows)| !rows.is_empty());
    panels
        .map(|(name, rows)| {
            let marks = report.limits.iter();
            let marks = marks.map(|limit| (f64::from((*limit).max(1)).log2(), limit.to_string()));
            let lines = rows.into_iter().map(|row| {
                let best = row.ratio.iter().copied().fold(0.0, f64::max);
                Line::new(format!("{} (up to ×{best:.1})", row.phase), row.ops_per_second.clone())
            });
            Panel::new(name.to_owned(), format!("mdc.*.{LIMIT}"), marks.collect(), lines.collect())
        })
        .collect()
}

fn print(report: &Report<'_>) -> Result<()> {
    let who = who(report);
    output::line(&format!(
        "{} {who}, {} items each, {} round(s), round trip {:.2} ms",
        report.processes,
        report.items_per_process,
        report.rounds,
        report.round_trip_us as f64 / 1000.0
    ));
    let head: Vec<String> = report.limits.iter().map(u16::to_string).collect();
    let table = |title: &str, last: &str, cells: &dyn Fn(&Row) -> (Vec<String>, String)| {
        output::line(&format!("\n{title}"));
        let mut table = output::Table::new(&["phase"]);
        table.add_columns(head.iter().cloned());
        table.add_columns((!last.is_empty()).then(|| last.to_owned()));
        for row in &report.rows {
            let (mut all, end) = cells(row);
            all.insert(0, row.phase.to_owned());
            all.push(end);
            table.row(all);
        }
        table.print();
    };
    table(&format!("operations per second at mdc.*.{LIMIT}, and times the first"), "RPCs/op", &|row| {
        let cells = row.ops_per_second.iter().zip(&row.ratio);
        (
            cells.map(|(rate, ratio)| format!("{rate:.0} ×{ratio:.2}")).collect(),
            format!("{:.2}", row.rpcs_per_operation),
        )
    });
    table("modifying requests in flight when each was sent: mean (most)", "", &|row| {
        let cells = row.in_flight_mean.iter().zip(&row.in_flight_most);
        (cells.map(|(mean, most)| format!("{mean:.1} ({most})")).collect(), String::new())
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_a_line_for_each_phase_and_a_mark_for_each_limit() {
        let row = |phase| Row {
            phase,
            ops_per_second: vec![100.0, 400.0],
            ratio: vec![1.0, 4.0],
            ..Row::default()
        };
        let rows = vec![row("file-create"), row("dir-create"), row("dir-remove")];
        let report = Report { limits: &[1, 8], processes: 16, rows, ..Report::default() };
        assert!(title(&report).contains("16 processes on one mount"));
        let panel = |name: &str, lines: &[&str]| {
            let lines = lines.iter().map(|name| Line::new((*name).to_owned(), vec![100.0, 400.0]));
            let marks = vec![(0.0, "1".to_owned()), (3.0, "8".to_owned())];
            Panel::new(name.to_owned(), format!("mdc.*.{LIMIT}"), marks, lines.collect())
        };
        let dirs = ["dir-create (up to ×4.0)", "dir-remove (up to ×4.0)"];
        let expected = [panel("files", &["file-create (up to ×4.0)"]), panel("directories", &dirs)];
        assert_eq!(panels(&report), expected);
    }
}
