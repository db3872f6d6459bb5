//! The state of an import for administrators, in the field's formats: `state`, `import`, `rpc_stats`.

use crate::targets::target::Target;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::Write;
use nacre_node::Ctx;
use nacre_types::{Instant, TargetKind, TargetName, Timestamp, clocks};
use nacre_wire::target::features;

/// `current_state` and the latest states with the wall clock second each began.
pub(crate) fn state(ctx: &Ctx, target: &Target) -> String {
    target.peer.with_import(|import| {
        let mut out = format!("current_state: {}\nstate_history:\n", import.state());
        // An import is made before its island's first visit tells the time.
        let first =
            import.history().iter().map(|(at, _)| at).find(|at| *at > Instant(0)).unwrap_or(ctx.now());
        for (at, state) in import.history().iter() {
            let at = at.max(first);
            line(&mut out, format_args!(" - [ {}, {state} ]", wall_of(ctx, at).sec));
        }
        out
    })
}

/// The import in the format of Lustre; fields that nacre does not have are left out.
pub(crate) fn import(device: &str, target: &Target) -> String {
    let connected = target.peer.is_connected();
    target.peer.with_import(|import| {
        let (connects, resent, evictions) = import.counts();
        let config = import.config();
        let nids: Vec<String> = config.addresses.iter().map(|a| format!("\"{a}\"")).collect();
        let mut out = String::from("import:\n");
        line(&mut out, format_args!("    name: {device}"));
        line(&mut out, format_args!("    target: {}_UUID", target.name));
        line(&mut out, format_args!("    state: {}", import.state()));
        line(&mut out, format_args!("    connect_flags: [ {} ]", features::names(import.features())));
        line(&mut out, format_args!("    connect_data:"));
        line(&mut out, format_args!("       flags: {:#x}", import.features()));
        line(&mut out, format_args!("       instance: {}", import.instance().unwrap_or(0)));
        line(&mut out, format_args!("       max_mod_rpcs: {}", import.server_max_mod_rpcs().unwrap_or(0)));
        line(&mut out, format_args!("    connection:"));
        line(&mut out, format_args!("       failover_nids: [ {} ]", nids.join(", ")));
        let current = if connected { import.current_address() } else { None };
        line(&mut out, format_args!("       current_connection: \"{}\"", current.unwrap_or("<none>")));
        line(&mut out, format_args!("       connection_attempts: {connects}"));
        line(&mut out, format_args!("       generation: {}", import.generation()));
        line(&mut out, format_args!("       evictions: {evictions}"));
        if let Some(error) = import.last_error() {
            line(&mut out, format_args!("       last_error: \"{error}\""));
        }
        line(&mut out, format_args!("    rpcs:"));
        line(&mut out, format_args!("       inflight: {}", import.in_flight()));
        line(&mut out, format_args!("       waiting: {}", import.waiting()));
        line(&mut out, format_args!("       resent: {resent}"));
        line(&mut out, format_args!("       avg_waittime: {} usecs", target.requests.average("usecs")));
        line(&mut out, format_args!("    transactions:"));
        line(&mut out, format_args!("       peer_committed: {}", import.last_committed()));
        line(&mut out, format_args!("       peer_stable: {}", import.last_stable()));
        let kept = import.replay_list();
        line(&mut out, format_args!("       kept_for_replay: {}", kept.len()));
        line(&mut out, format_args!("       kept_bytes: {}", kept.bytes()));
        out
    })
}

/// Histogram of modifying requests in flight, from 0 up to the row that reaches 100 %.
pub(crate) fn rpc_stats(ctx: &Ctx, target: &Target) -> String {
    let mut out = clocks(target.slots_since(), ctx.wall(), ":", 26);
    target.peer.with_import(|import| {
        line(&mut out, format_args!("modify_RPCs_in_flight:  {}\n", import.slots().in_flight()));
        histogram(&mut out, import.slots().histogram().counts());
    });
    out
}

/// Rows up to the one that reaches 100 %; the field's spelling, doubled signs included.
fn histogram(out: &mut String, counts: &[u64]) {
    line(out, format_args!("\t\t\tmodify"));
    line(out, format_args!("rpcs in flight        rpcs   %% cum %%"));
    let total: u64 = counts.iter().sum();
    let counts = if counts.is_empty() { &[0][..] } else { counts };
    let mut sum = 0;
    for (in_flight, &count) in counts.iter().enumerate() {
        sum += count;
        let percent = |n: u64| (n * 100).checked_div(total).unwrap_or(0);
        let place = format!("{in_flight}:");
        line(out, format_args!("{place}\t\t{count:>10} {:>3} {:>3}", percent(count), percent(sum)));
    }
}

fn line(out: &mut String, args: core::fmt::Arguments<'_>) {
    writeln!(out, "{args}").expect("a string takes everything");
}

/// Wall clock of a moment of the past.
fn wall_of(ctx: &Ctx, at: Instant) -> Timestamp {
    let ago = i128::try_from((ctx.now() - at).as_nanos()).unwrap_or(0);
    Timestamp::from_nanos(ctx.wall().as_nanos() - ago)
}

/// The error for a value beyond the limit that the server has granted; it names the parameter of that limit.
pub(crate) fn check_server_limit(limit: u16, target: &Target) -> Result<(), String> {
    match target.peer.with_import(|import| import.server_max_mod_rpcs()) {
        Some(theirs) if limit > theirs => {
            let is_ost = TargetName::parse(&target.name).is_some_and(|name| name.kind() == TargetKind::Ost);
            let component = if is_ost { "obdfilter" } else { "mdt" };
            Err(format!(
                "Numerical result out of range: the server allows {theirs}\nhint: raise \
                 {component}.{}.max_mod_rpcs_in_flight on the server; it applies from the next connect on",
                target.name
            ))
        }
        _ => Ok(()),
    }
}

/// Limits of modifying requests and of all, as they hold: not beyond what the server agreed to.
pub(crate) fn limits(target: &Target) -> (String, String) {
    target.peer.with_import(|i| {
        let agreed = i.server_max_mod_rpcs().map(|_| i.slots().limit());
        let changes = agreed.unwrap_or(i.config().max_mod_rpcs);
        (changes.to_string(), i.config().max_rpcs.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_goes_up_to_the_row_that_completes_it() {
        let mut out = String::new();
        histogram(&mut out, &[0, 3, 0, 30, 1967]);
        let want = "\t\t\tmodify\nrpcs in flight        rpcs   %% cum %%\n\
                    0:\t\t         0   0   0\n1:\t\t         3   0   0\n2:\t\t         0   0   0\n\
                    3:\t\t        30   1   1\n4:\t\t      1967  98 100\n";
        assert_eq!(out, want);
        out.clear();
        histogram(&mut out, &[]);
        assert!(out.ends_with("0:\t\t         0   0   0\n"));
    }
}
