//! `nacre bench md --batch N`: changes one by one and N in a request, in turn, through the client library.

use super::library::Library;
use super::md_args::MdArgs;
use super::report::median;
use super::site::Site as _;
use crate::output;
use anyhow::Result;
use serde::Serialize;

/// Figures of a phase one by one and in batches.
#[derive(Serialize)]
struct Row {
    phase: &'static str,
    one_by_one: Figures,
    batch: Figures,
    /// Median of the ratios round by round.
    ratio: f64,
}

#[derive(Serialize, Default, Clone)]
struct Figures {
    ops_per_second: Vec<f64>,
    median: f64,
    rpcs_per_operation: f64,
    #[serde(skip)]
    requests: u64,
}
impl Figures {
    fn close(&mut self, operations: f64) {
        self.median = median(&self.ops_per_second);
        self.rpcs_per_operation = self.requests as f64 / operations;
    }
}

#[derive(Serialize)]
struct Report {
    batch: u16,
    tasks: u32,
    items_per_task: u32,
    shared_directory: bool,
    rounds: u32,
    round_trip_us: u64,
    rows: Vec<Row>,
}

pub(super) fn run(args: &MdArgs, batch: u16) -> Result<()> {
    let phases = args.changes()?;
    let mut library = Library::start(args, batch)?;
    let mut figures = vec![[Figures::default(), Figures::default()]; phases.len()];
    let bar = output::progress(u64::from(args.rounds) * 2 * phases.len() as u64, "phases");
    for round in 0..args.rounds {
        for (way, size) in [1, batch].into_iter().enumerate() {
            library.set_batch(size);
            library.begin(round)?;
            for (row, &phase) in phases.iter().enumerate() {
                let before = library.mdc()?.requests();
                let rate = library.run(phase)?;
                let cell = &mut figures[row][way];
                cell.ops_per_second.push(rate);
                cell.requests += library.mdc()?.requests() - before;
                bar.inc(1);
            }
            library.end()?;
        }
    }
    bar.finish_and_clear();
    let operations = f64::from(args.rounds) * f64::from(args.items) * f64::from(args.processes);
    let rows = phases.iter().zip(figures).map(|(phase, [mut one, mut many])| {
        one.close(operations);
        many.close(operations);
        let ratios: Vec<f64> =
            many.ops_per_second.iter().zip(&one.ops_per_second).map(|(b, a)| b / a.max(1e-9)).collect();
        Row { phase: phase.name(), one_by_one: one, batch: many, ratio: median(&ratios) }
    });
    let report = Report {
        batch,
        tasks: args.processes,
        items_per_task: args.items,
        shared_directory: args.shared,
        rounds: args.rounds,
        rows: rows.collect(),
        round_trip_us: library.mdc()?.round_trip_us().unwrap_or(0),
    };
    library.stop()?;
    if args.json { output::json(&report) } else { print(&report) }
}

fn print(report: &Report) -> Result<()> {
    output::line(&format!(
        "{} task(s) of one client, {} items each, {} directory, {} round(s), round trip {:.2} ms",
        report.tasks,
        report.items_per_task,
        if report.shared_directory { "one shared" } else { "own" },
        report.rounds,
        report.round_trip_us as f64 / 1000.0
    ));
    let batch = format!("op/s, {} in a request", report.batch);
    let mut table = output::Table::new(&["phase", "op/s, one by one", "RPCs/op", &batch, "RPCs/op", "times"]);
    for row in &report.rows {
        table.row(vec![
            row.phase.into(),
            format!("{:.0}", row.one_by_one.median),
            format!("{:.3}", row.one_by_one.rpcs_per_operation),
            format!("{:.0}", row.batch.median),
            format!("{:.3}", row.batch.rpcs_per_operation),
            format!("{:.2}", row.ratio),
        ]);
    }
    table.print();
    Ok(())
}
