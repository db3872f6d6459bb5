//! `nacre bench md --sweep`: the same load at several limits of modifying requests in flight, as a table and a picture.
//!
//! The limit is set on the mounts of this machine and put back at the end. Values above the server's limit are refused
//! by the mount (it says where to raise it). All limits are measured in each round, so that a noisy machine
//! disturbs all alike; the ratio is against the first limit.

use super::md::{MdArgs, measure, median, phases};
use super::worker::Phase;
use crate::{lctl, say};
use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use std::fmt::Write as _;

const PARAM: &str = "mdc.*.max_mod_rpcs_in_flight";
const PHASES: [Phase; 6] = [
    Phase::FileCreate,
    Phase::FileSetattr,
    Phase::FileRemove,
    Phase::DirCreate,
    Phase::DirSetattr,
    Phase::DirRemove,
];
const COLOURS: [&str; 8] =
    ["#1b6ca8", "#d1495b", "#2e933c", "#8e5ea2", "#c77700", "#00798c", "#555555", "#a0522d"];

#[derive(Serialize)]
struct Row {
    phase: &'static str,
    /// Median operations per second at each limit.
    ops_per_second: Vec<f64>,
    /// Against the first limit.
    ratio: Vec<f64>,
}

#[derive(Serialize)]
struct Report<'a> {
    limits: &'a [u16],
    processes: u32,
    items_per_process: u32,
    rounds: u32,
    rows: Vec<Row>,
}

pub(super) fn run(args: &MdArgs, limits: &[u16]) -> Result<()> {
    ensure!(!limits.is_empty(), "--sweep needs at least one limit");
    let phases = phases(args, &PHASES)?;
    let bar = say::progress(u64::from(args.rounds) * (limits.len() * phases.len()) as u64, "phases");
    let mut rates = vec![vec![Vec::new(); limits.len()]; phases.len()];
    let outcome = (|| -> Result<()> {
        for _ in 0..args.rounds {
            for (column, limit) in limits.iter().enumerate() {
                lctl::apply(&format!("{PARAM}={limit}"))
                    .context("the sweep needs a mount on this machine")?;
                let (ours, _) = measure(&args.one_round(), &phases, &bar)?;
                for (row, values) in ours.into_iter().enumerate() {
                    rates[row][column].extend(values);
                }
            }
        }
        Ok(())
    })();
    bar.finish_and_clear();
    lctl::apply(&format!("{PARAM}=7"))?;
    outcome?;
    let rows = phases.iter().zip(&rates).map(|(phase, columns)| {
        let medians: Vec<f64> = columns.iter().map(|values| median(values)).collect();
        let first = medians.first().copied().unwrap_or(0.0).max(1e-9);
        Row {
            phase: phase.name(),
            ratio: medians.iter().map(|m| m / first).collect(),
            ops_per_second: medians,
        }
    });
    let report = Report {
        limits,
        processes: args.processes,
        items_per_process: args.items,
        rounds: args.rounds,
        rows: rows.collect(),
    };
    if let Some(file) = &args.picture {
        std::fs::write(file, picture(&report)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    if args.json {
        return say::json(&report);
    }
    say::line(&format!(
        "{} process(es), {} items each, {} round(s); operations per second at {PARAM}, and times the first",
        args.processes, args.items, args.rounds
    ));
    let head: Vec<String> = limits.iter().map(u16::to_string).collect();
    let mut table = say::Table::new(&["phase"]);
    table.head.extend(head);
    for row in &report.rows {
        let cells =
            row.ops_per_second.iter().zip(&row.ratio).map(|(rate, ratio)| format!("{rate:.0} (×{ratio:.1})"));
        table.row(std::iter::once(row.phase.to_owned()).chain(cells).collect());
    }
    table.print();
    Ok(())
}

/// Lines over the limits on a logarithmic axis.
fn picture(report: &Report<'_>) -> String {
    const WIDTH: f64 = 720.0;
    const HEIGHT: f64 = 420.0;
    const LEFT: f64 = 70.0;
    const BOTTOM: f64 = 50.0;
    let right = WIDTH - 150.0;
    let most = report.rows.iter().flat_map(|r| &r.ops_per_second).copied().fold(1.0, f64::max) * 1.05;
    let widest = f64::from(report.limits.iter().copied().max().unwrap_or(1).max(2)).log2();
    let x = |limit: u16| LEFT + f64::from(limit.max(1)).log2() / widest * (right - LEFT);
    let y = |rate: f64| HEIGHT - BOTTOM - rate / most * (HEIGHT - BOTTOM - 20.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut add = |text: String| writeln!(out, "{text}").expect("a string takes everything");
    for part in 0..=4 {
        let rate = most * f64::from(part) / 4.0;
        add(format!(
            "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{rate:.0}</text>",
            y(rate),
            LEFT - 6.0,
            y(rate) + 4.0
        ));
    }
    for &limit in report.limits {
        add(format!(
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{limit}</text>",
            x(limit),
            HEIGHT - BOTTOM + 18.0
        ));
    }
    add(format!(
        "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">max_mod_rpcs_in_flight (operations per second, {} processes)</text>",
        (LEFT + right) / 2.0,
        HEIGHT - 12.0,
        report.processes
    ));
    for (number, row) in report.rows.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<String> = report
            .limits
            .iter()
            .zip(&row.ops_per_second)
            .map(|(limit, rate)| format!("{:.1},{:.1}", x(*limit), y(*rate)))
            .collect();
        add(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
             <text x=\"{}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            points.join(" "),
            right + 10.0,
            40 + 18 * number,
            row.phase
        ));
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_has_a_line_for_each_phase() {
        let row = |phase| Row { phase, ops_per_second: vec![100.0, 400.0], ratio: vec![1.0, 4.0] };
        let rows = vec![row("file-create"), row("dir-create")];
        let report = Report { limits: &[1, 8], processes: 16, items_per_process: 10, rounds: 1, rows };
        let text = picture(&report);
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        assert_eq!(text.matches("<polyline").count(), 2);
    }
}
