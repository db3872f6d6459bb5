//! Checks of the stores of stopped targets: rows and objects agree, and nothing unused is left.

use nacre_node::store::Store;
use nacre_node::{Ctx, Effect, StoreOp};
use nacre_osd::{Label, Osd, OsdConfig, table};
use nacre_types::{Instant, Timestamp};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

/// Small bounds, so that checkpoints and segments are reached.
pub fn osd_config() -> OsdConfig {
    OsdConfig {
        dirty_bytes_max: 16 << 20,
        cache_bytes_max: 1 << 20,
        log_bytes_max: 16 << 20,
        commit_interval_ms: 200,
        ballast_bytes: 1 << 20,
        ..OsdConfig::default()
    }
}

/// Writes the label of a new target, as mkfs does.
///
/// # Panics
/// When the store refuses.
pub fn format(store: &dyn Store, label: Label, ctx: &Rc<Ctx>) {
    let outcome = Rc::new(RefCell::new(None));
    let (inner, told, name) = (ctx.clone(), outcome.clone(), label.name.clone());
    ctx.spawn(async move {
        *told.borrow_mut() = Some(Osd::format(&inner, &label, &osd_config(), false).await);
    });
    loop {
        ctx.run();
        let effects = ctx.take_effects();
        if effects.is_empty() {
            break;
        }
        for effect in effects {
            if let Effect::Io { ticket, op } = effect {
                ctx.complete_io(ticket, store.execute(op));
            }
        }
    }
    ctx.abandon();
    match outcome.take() {
        Some(Ok(())) => {}
        Some(Err(e)) => panic!("formatting {name} failed: {e}"),
        None => panic!("formatting {name} did not end"),
    }
}

/// More than any seed leaves.
const ROWS_MAX: u32 = 100_000;

/// Opens the engine of a stopped target and runs something on it.
pub fn with_engine<T: 'static, F: Future<Output = T> + 'static>(
    store: &dyn Store,
    run: impl FnOnce(Rc<Ctx>, Rc<Osd>) -> F + 'static,
) -> Result<T, String> {
    let ctx = Ctx::new(1);
    ctx.set_time(Instant(1), Timestamp::default());
    let engine: Rc<RefCell<Option<Rc<Osd>>>> = Rc::default();
    let result: Rc<RefCell<Option<Result<T, String>>>> = Rc::default();
    let (inner, opened, told) = (ctx.clone(), engine.clone(), result.clone());
    ctx.spawn(async move {
        let value = match Osd::open(&inner, osd_config()).await {
            Ok(osd) => {
                *opened.borrow_mut() = Some(osd.clone());
                Ok(run(inner, osd).await)
            }
            Err(e) => Err(e.to_string()),
        };
        *told.borrow_mut() = Some(value);
    });
    loop {
        ctx.run();
        if let Some(osd) = engine.borrow().as_ref() {
            let mut writes: Vec<StoreOp> = Vec::new();
            osd.log_writes(&mut writes);
            for op in writes {
                store.execute(op).map_err(|e| e.to_string())?;
            }
        }
        if let Some(result) = result.borrow_mut().take() {
            drop(engine.take());
            ctx.abandon(); // its tasks in the background
            assert_eq!(Rc::strong_count(&ctx), 1, "cycles keep an engine");
            return result;
        }
        let effects = ctx.take_effects();
        if effects.is_empty() {
            let at = ctx.deadline().ok_or("the check waits for nothing")?;
            ctx.set_time(at, Timestamp::default());
        }
        for effect in effects {
            if let Effect::Io { ticket, op } = effect {
                ctx.complete_io(ticket, store.execute(op));
            }
        }
    }
}

/// The rows of MDT and OSTs have no problem, no file is open; with `sums` every block has its sum.
pub fn check(mdt: &dyn Store, osts: &[&dyn Store], sums: bool) -> Result<(), String> {
    let report = with_engine(mdt, |ctx, osd| async move {
        nacre_mdt::check(&ctx, nacre_types::MdtIndex::ROOT, &osd).await
    })?
    .map_err(|e| format!("the MDT's rows cannot be read: {e}"))?;
    if report.problems > 0 {
        return Err(format!("the MDT's rows do not agree:\n  {}", report.sentences.join("\n  ")));
    }
    if report.opens + report.orphans > 0 {
        return Err(format!("{} opens and {} orphans at rest", report.opens, report.orphans));
    }
    for (n, store) in osts.iter().enumerate() {
        let found = with_engine(*store, |ctx, osd| async move { nacre_ost::check(&ctx, &osd, true).await })?
            .map_err(|e| format!("the rows of OST {n} cannot be read: {e}"))?;
        if found.problems > 0 || (sums && found.sums_differ > 0) {
            return Err(format!("OST {n}: {found:?}"));
        }
    }
    Ok(())
}

/// Every reply record belongs to a client whose row is there.
pub fn check_records(store: &dyn Store) -> Result<(), String> {
    let rows = with_engine(store, |_, osd| async move {
        let clients = osd.scan(table::CLIENT, &[], &[0xff; 16], ROWS_MAX).await?;
        Ok::<_, nacre_osd::OsdError>((clients, osd.scan(table::REPLY, &[], &[0xff; 16], ROWS_MAX).await?))
    })?;
    let (clients, replies) = rows.map_err(|e| format!("the rows of clients cannot be read: {e}"))?;
    // A record's key begins with its client's.
    let strays = replies.iter().filter(|(key, _)| clients.iter().all(|(client, _)| !key.starts_with(client)));
    match strays.count() {
        0 => Ok(()),
        n => Err(format!("{n} reply records of clients that are gone, of {}", replies.len())),
    }
}
