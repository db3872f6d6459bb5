//! Scrub: a pass over all objects that compares every written block with its checksum, so that damage is found before the
//! bytes are needed, while a copy elsewhere still exists.
//!
//! A pass inspects one region (256 KiB) at a time, under the lock of that region (`object/inspect.rs`), and pauses between
//! regions so that it stays below its rate. Objects that exist during the whole pass are visited; those that come or go
//! meanwhile may be. Damage is logged where it is found, and listed up to [`DAMAGE_MAX`] places (`scrub_status.rs`).
//!
//! Invariants: a pass changes nothing; at most one is current; a pass that is not, or whose target stops, ends with the
//! inspection that it is in.
//! Not here: the position of a pass after a restart. It is forgotten, and so are the findings, which are in the log.

use crate::error::OsdError;
use crate::maintenance::scrub_status::{DAMAGE_MAX, Damage, DamageKind, ScrubState, ScrubStatus};
use crate::object::objects::Objects;
use crate::object::rows::{ObjectRow, block_key, region_of_key};
use crate::object::scan::is_stopped;
use crate::table;
use alloc::rc::Rc;
use core::time::Duration;
use nacre_types::ObjectId;

/// A region, and an object beside its regions, counts as at least so many bytes against the rate: a device reads them in
/// the time of one request.
const PIECE_BYTES_MIN: u64 = 32 << 10;
/// A pass makes up for at most so much time in which it was slower than its rate.
const LAG_MAX: Duration = Duration::from_millis(100);
/// Block rows of one scan.
const PAGE: u32 = 64;

impl Objects {
    /// Begins a pass at the first object, unless one runs.
    pub fn start_scrub(self: &Rc<Self>) {
        if self.scrub().is_running() || self.tasks().is_stopping() {
            return;
        }
        *self.scrub().status_mut() =
            ScrubStatus { state: ScrubState::Running, started: self.ctx().wall(), ..ScrubStatus::default() };
        let this = self.clone();
        let pass = self.scrub().pass();
        self.spawn_task(async move {
            let result = this.scrub_objects(pass).await;
            if this.scrub().pass() != pass {
                return; // it was stopped, and another may run
            }
            let state = match result {
                Ok(()) if this.is_current(pass) => ScrubState::Finished,
                Ok(()) => ScrubState::Stopped,
                Err(error) if is_stopped(&error) => ScrubState::Stopped,
                Err(error) => {
                    tracing::error!(target_name = %this.osd().label().name, %error, "a scrub cannot list the objects");
                    ScrubState::Failed
                }
            };
            this.scrub().end(state, this.ctx().wall());
        });
    }
    /// Ends the pass that runs, if any. Its findings stay until the next one starts.
    pub fn stop_scrub(&self) {
        if self.scrub().is_running() {
            self.scrub().end(ScrubState::Stopped, self.ctx().wall());
            self.scrub().wake();
        }
    }
    /// The latest pass.
    pub fn scrub_status(&self) -> ScrubStatus {
        self.scrub().status().clone()
    }
    /// Limits a pass to so many bytes per second, at once; 0: no limit. Each object and each
    /// region counts as at least 32 KiB.
    pub fn set_scrub_rate(&self, bytes_per_second: u64) {
        self.scrub().set_rate(bytes_per_second);
    }

    /// The pass goes on.
    fn is_current(&self, pass: u64) -> bool {
        self.scrub().pass() == pass && !self.tasks().is_stopping() && !self.osd().has_failed()
    }

    async fn scrub_objects(self: &Rc<Self>, pass: u64) -> Result<(), OsdError> {
        self.each_object(async |object, row| {
            let result = match row {
                Ok(row) => self.scrub_object(pass, object, row).await,
                Err(error) => Err(error),
            };
            match result {
                Err(error) if is_stopped(&error) => return Err(error),
                Err(error) => {
                    tracing::warn!(target_name = %self.osd().label().name, %object, %error,
                        "the rows of an object cannot be read");
                    self.report_damage(pass, Damage { object, from: 0, to: 0, kind: DamageKind::Rows });
                }
                Ok(()) => {}
            }
            if self.is_current(pass) {
                self.scrub().status_mut().objects += 1;
                self.pause(pass, 0).await;
            }
            Ok(self.is_current(pass))
        })
        .await
    }

    async fn scrub_object(
        self: &Rc<Self>,
        pass: u64,
        object: ObjectId,
        row: ObjectRow,
    ) -> Result<(), OsdError> {
        match self.healthy_row(object).await {
            Err(OsdError::Quarantined(_)) => {
                self.report_damage(
                    pass,
                    Damage { object, from: 0, to: row.size, kind: DamageKind::Quarantined },
                );
                return Ok(());
            }
            other => drop(other?),
        }
        let (mut next, last) = (block_key(object, 0), block_key(object, u64::MAX));
        loop {
            let rows = self.osd().scan(table::BLOCK, &next, &last, PAGE).await?;
            if rows.is_empty() {
                return Ok(());
            }
            for (key, _) in &rows {
                let region = region_of_key(key).unwrap_or_default();
                next = block_key(object, region + 1);
                let found = self.inspect_region(object, region).await?;
                if !self.is_current(pass) {
                    return Ok(());
                }
                {
                    let mut status = self.scrub().status_mut();
                    status.bytes += found.allocated_bytes();
                    status.verified_bytes += found.verified_bytes();
                    status.unverified_regions += u64::from(found.is_unverified());
                }
                for (range, kind) in found.damage() {
                    let (from, to) = (range.start, range.end);
                    self.report_damage(pass, Damage { object, from, to, kind: *kind });
                }
                self.pause(pass, found.verified_bytes()).await;
            }
        }
    }

    /// Waits until the next piece may be read, after one of `bytes`.
    async fn pause(&self, pass: u64, bytes: u64) {
        let scrub = self.scrub();
        let now = self.ctx().now();
        if scrub.rate() == 0 {
            // Requests that have arrived meanwhile come first.
            return self.ctx().next_visit().await;
        }
        let nanos = bytes.max(PIECE_BYTES_MIN).saturating_mul(1_000_000_000) / scrub.rate();
        let late = now > scrub.due() + LAG_MAX;
        let begin = if late { now } else { scrub.due() };
        scrub.set_due(begin + Duration::from_nanos(nanos));
        while self.is_current(pass) && self.ctx().now() < scrub.due() {
            self.ctx().timeout(scrub.due(), scrub.event()).await;
        }
        // A pass that is behind its rate leaves the visit, too.
        self.ctx().next_visit().await;
    }

    fn report_damage(&self, pass: u64, new: Damage) {
        if !self.is_current(pass) {
            return;
        }
        let mut status = self.scrub().status_mut();
        status.damaged_bytes += new.to - new.from;
        let is_next = |last: &Damage| {
            last.object == new.object && last.kind == new.kind && last.to == new.from && new.from > 0
        };
        if let Some(last) = status.damage.last_mut().filter(|last| is_next(last)) {
            last.to = new.to;
            return;
        }
        status.damaged_places += 1;
        let target_name = &self.osd().label().name;
        if status.damage.len() < DAMAGE_MAX {
            status.damage.push(new);
            let Damage { object, from, to, kind } = new;
            tracing::error!(target_name = %target_name, %object, fid = %object.fid, from, to, ?kind,
                "a scrub found damage: restore the file from a copy, or remove it\nhint: nacre scrub status names it");
        } else if status.damaged_places == DAMAGE_MAX as u64 + 1 {
            tracing::error!(target_name = %target_name, "a scrub found more damage, which is only counted");
        }
    }
}
