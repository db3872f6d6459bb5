//! The effect of the faults on the workers: recovery times and pauses, for people and as JSON.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a tool for developers talks on the terminal")]

use super::faults::Fault;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A call that begins so long after the end of a fault may still feel it.
const AFTERMATH: Duration = Duration::from_millis(200);

/// A fault that was injected: a plain record.
pub(super) struct Happened {
    pub(super) fault: Fault,
    pub(super) began: Instant,
    /// Until it was undone.
    pub(super) lasted: Duration,
    /// From then until calls that need everybody came back.
    pub(super) recovery: Duration,
}

pub(super) struct Report {
    kills: u64,
    faults: Vec<(Happened, Duration)>,
}

impl Report {
    /// `slow`: long calls of workers. Each belongs to the first fault that it overlaps.
    pub(super) fn new(happened: Vec<Happened>, slow: &[(Instant, Instant)], kills: u64) -> Self {
        let mut pauses = vec![Duration::ZERO; happened.len()];
        for (began, ended) in slow {
            let of = happened
                .iter()
                .position(|h| h.began < *ended && h.began + h.lasted + h.recovery + AFTERMATH > *began);
            if let Some(pause) = of.and_then(|at| pauses.get_mut(at)) {
                *pause = (*pause).max(*ended - *began);
            }
        }
        Self { kills, faults: happened.into_iter().zip(pauses).collect() }
    }

    /// The last line is what scripts read.
    pub(super) fn show(&self, as_json: bool, operations: u64, violations: &[String]) {
        let mut kinds: BTreeMap<Fault, Vec<&(Happened, Duration)>> = BTreeMap::new();
        self.faults.iter().for_each(|f| kinds.entry(f.0.fault).or_default().push(f));
        let mut table = format!(
            "{:<12} {:>5} {:>18} {:>18} {:>18}\n",
            "fault", "times", "lasted, s", "recovery, s", "longest call, s"
        );
        table.push_str(&format!(
            "{:<18} {:>18} {:>18} {:>18}\n",
            "", "median/worst", "median/worst", "median/worst"
        ));
        let mut rows = Vec::new();
        for (fault, all) in &kinds {
            let sorted = |of: &dyn Fn(&(Happened, Duration)) -> Duration| {
                let mut times: Vec<f64> = all.iter().map(|f| of(f).as_secs_f64()).collect();
                times.sort_by(f64::total_cmp);
                let at = |at: usize| times.get(at).copied().unwrap_or_default();
                (at(times.len() / 2), at(times.len().saturating_sub(1)))
            };
            let (lasted, recovery) = (sorted(&|f| f.0.lasted), sorted(&|f| f.0.recovery));
            let pause = sorted(&|f| f.1);
            let text = |(median, worst): (f64, f64)| format!("{median:.2} / {worst:.2}");
            table.push_str(&format!(
                "{:<12} {:>5} {:>18} {:>18} {:>18}\n",
                format!("{fault:?}"),
                all.len(),
                text(lasted),
                text(recovery),
                text(pause)
            ));
            rows.push(json!({
                "fault": format!("{fault:?}"), "times": all.len(),
                "recovery_median_s": recovery.0, "recovery_worst_s": recovery.1,
                "pause_median_s": pause.0, "pause_worst_s": pause.1,
                "pauses_s": all.iter().map(|f| f.1.as_secs_f64()).collect::<Vec<_>>(),
            }));
        }
        let last = format!("{} kills, {operations} operations, {} violations", self.kills, violations.len());
        if as_json {
            eprintln!("{table}{last}");
            let report = json!({
                "kills": self.kills, "operations": operations, "violations": violations, "faults": rows,
            });
            println!("{report:#}");
            return;
        }
        println!("{table}");
        if let [(fault, all)] = &kinds.iter().collect::<Vec<_>>()[..] {
            let pauses: Vec<String> = all.iter().map(|f| format!("{:.2}", f.1.as_secs_f64())).collect();
            println!("longest call of each {fault:?}, s: {}", pauses.join(" "));
        }
        println!("{last}");
    }
}
