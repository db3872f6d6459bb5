//! Offline verification of the engine's own files: superblock, log, runs, order of rows, checksums.
//!
//! Every row is passed to the caller, whose crates know the meaning of the rows (`nacre_mdt::check`,
//! `nacre_ost::check`). Usage per owner is reported, so that it can be compared with the totals of the rows. Nothing is
//! changed.

use crate::engine::osd::Osd;
use crate::engine::superblock::Label;
use crate::error::OsdError;
use crate::offline::offline;
use crate::table::Table;
use crate::table::accounts::Usage;
use crate::table::pages::Page;
use crate::table::run::{COPIES, Run, open_block};
use crate::table::run_copies::{check_copy, read_copy};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use nacre_node::{FileId, FileKind, Store};

const PAGE: u32 = 1000;
/// Sentences that are kept.
const SENTENCES_MAX: usize = 1000;

/// The findings of a check.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// From the superblock; `None` if it cannot be read.
    pub label: Option<Label>,
    /// It was stopped as planned.
    pub was_clean: bool,
    /// Number of times that the store was opened.
    pub instance: u64,
    /// The latest change in log or runs; 0: none.
    pub last_transno: u64,
    /// Bytes of the log segments in use.
    pub log_bytes: u64,
    /// Number of runs.
    pub runs: u64,
    /// Bytes of the files of all runs.
    pub run_bytes: u64,
    /// Rows per table, newest versions only.
    pub rows: BTreeMap<u8, u64>,
    /// Usage per (kind, id): kind 0 user, 1 group, 2 project.
    pub usage: BTreeMap<(u8, u32), Usage>,
    /// Ranges of rows that cannot be read. What other rows say of those is not known.
    pub unread: u64,
    /// All problems found; more than `sentences` has if it is full.
    pub problems: u64,
    /// The first of them, in words.
    pub sentences: Vec<String>,
}

impl Report {
    /// Adds a problem.
    pub fn problem(&mut self, sentence: String) {
        self.problems += 1;
        if self.sentences.len() < SENTENCES_MAX {
            self.sentences.push(sentence);
        }
    }
    /// Compares the accounts with what the rows add up to.
    pub fn compare_usage(&mut self, rows: &BTreeMap<(u8, u32), Usage>) {
        let kinds = ["user", "group", "project"];
        let ids: Vec<(u8, u32)> = self.usage.keys().chain(rows.keys()).copied().collect();
        let mut last = None;
        let mut ids = ids;
        ids.sort_unstable();
        for id in ids {
            if last.replace(id) == Some(id) {
                continue;
            }
            let account = self.usage.get(&id).copied().unwrap_or_default();
            let found = rows.get(&id).copied().unwrap_or_default();
            if account != found {
                let kind = kinds.get(usize::from(id.0)).unwrap_or(&"owner");
                self.problem(format!(
                    "{kind} {}: {} bytes in {} objects are charged, the rows add up to {} bytes in {} objects",
                    id.1, account.bytes, account.objects, found.bytes, found.objects
                ));
            }
        }
    }
}

/// Verifies a stopped store; `row` is shown every row in key order.
pub fn check(store: &dyn Store, row: impl FnMut(Table, &[u8], &[u8]) + 'static) -> Report {
    match offline(store, async move |osd| check_open(&osd, row).await) {
        Ok(report) => report,
        Err(e) => {
            let mut report = Report::default();
            report.problem(match e {
                OsdError::Format(text) => text,
                other => format!("the store cannot be opened: {other}"),
            });
            report
        }
    }
}

/// The same on an engine that is open (and idle).
pub async fn check_open(osd: &Rc<Osd>, mut row: impl FnMut(Table, &[u8], &[u8])) -> Report {
    let stats = osd.stats();
    let mut report = Report {
        label: Some(osd.label().clone()),
        was_clean: osd.was_clean(),
        // Opening counts.
        instance: osd.instance() - 1,
        last_transno: osd.last_transno().0,
        log_bytes: stats.log_bytes,
        runs: stats.runs,
        run_bytes: stats.run_bytes,
        ..Report::default()
    };
    if let Some(copy) = osd.state().damaged_superblock() {
        report.problem(copy.found().to_string());
    }
    for (segment, record) in osd.state().damaged_copies() {
        report.problem(format!(
            "log segment {segment}: one of the two copies of record {record} is damaged: the next start of the target uses the other one and writes both"
        ));
    }
    let runs = osd.state().runs.list();
    for run in runs.iter() {
        osd.check_run(run, &mut report).await;
    }
    match crate::engine::files::list(osd.ctx(), FileKind::Run).await {
        Ok(files) => {
            for (file, len) in files {
                let FileId::Run(id) = file else { continue };
                if let Some(run) = runs.iter().find(|r| r.meta.id == id)
                    && run.meta.bytes != len
                {
                    report.problem(format!("run {id} has {len} bytes, {} are listed", run.meta.bytes));
                }
            }
        }
        Err(e) => report.problem(format!("the runs cannot be listed: {e}")),
    }
    check_rows(osd, &mut report, &mut row).await;
    let state = osd.state();
    report.usage = state.accounts.iter().filter(|(_, u)| *u != Usage::default()).collect();
    report
}

/// Shows every row but those of damaged blocks.
async fn check_rows(osd: &Rc<Osd>, report: &mut Report, row: &mut impl FnMut(Table, &[u8], &[u8])) {
    for table in 0..=u8::MAX {
        let table = Table(table);
        let mut pages = osd.pages(table, PAGE);
        loop {
            match pages.next_or_damage().await {
                Ok(None) => break,
                Ok(Some(Page::Damaged { from, to })) => {
                    report.unread += 1;
                    report.problem(format!(
                        "rows of table {} from {from:02x?} to {to:02x?} cannot be read",
                        table.0
                    ));
                }
                Ok(Some(Page::Rows(rows))) => {
                    *report.rows.entry(table.0).or_default() += rows.len() as u64;
                    for (key, value) in &rows {
                        row(table, key, value);
                    }
                }
                Err(e) => {
                    report.unread += 1;
                    let from = pages.reached();
                    report.problem(format!("rows of table {} from {from:02x?} on: {e}", table.0));
                    break;
                }
            }
        }
    }
}

impl Osd {
    /// Reads both copies of every block of a run.
    async fn check_run(&self, run: &Rc<Run>, report: &mut Report) {
        let id = run.meta.id;
        for copy in 0..COPIES {
            if let Err(e) = check_copy(self.ctx(), run.meta, copy).await {
                report.problem(format!("{}: {e}; the other one is used", copy_name(copy)));
            }
        }
        let mut rows = 0u64;
        let mut damaged = false;
        let mut deleted = 0u64;
        let mut last = Vec::new();
        for (index, block) in run.blocks.iter().enumerate() {
            let mut whole = None;
            let mut errors = Vec::new();
            for copy in 0..COPIES {
                let read = read_copy(self.ctx(), run.meta, copy, block.offset, u64::from(block.len)).await;
                match read.and_then(|bytes| open_block(run, index, &bytes)) {
                    Ok(rows) => whole = Some(rows),
                    Err(e) => errors.push((copy, e)),
                }
            }
            let Some(mut block_rows) = whole else {
                damaged = true;
                errors.into_iter().take(1).for_each(|(_, e)| report.problem(e.to_string()));
                continue;
            };
            for (copy, e) in errors {
                report.problem(format!("{}: {e}; the other one is used", copy_name(copy)));
            }
            if block_rows.key() != Some(block.first.raw()) {
                report.problem(format!("run {id}: block {index} does not begin with the key of the index"));
            }
            while let Some(key) = block_rows.key() {
                if rows > 0 && last[..] >= *key {
                    report.problem(format!("run {id}: rows of block {index} are out of order"));
                }
                if run.block_for(key) != Some(index) {
                    report.problem(format!(
                        "run {id}: a row of block {index} is not found by filter and index"
                    ));
                }
                last.clear();
                last.extend_from_slice(key);
                rows += 1;
                deleted += u64::from(block_rows.value().is_none());
                block_rows.step();
            }
        }
        if rows != run.meta.rows && !damaged {
            report.problem(format!("run {id} holds {rows} rows, {} are listed", run.meta.rows));
        }
        // Runs of earlier programs do not count theirs.
        if run.deleted != deleted && run.deleted != 0 && !damaged {
            report.problem(format!(
                "run {id} holds {deleted} rows of deleted keys, its footer says {}",
                run.deleted
            ));
        }
    }
}

fn copy_name(copy: u64) -> &'static str {
    if copy == 0 { "the first of two copies" } else { "the second of two copies" }
}
