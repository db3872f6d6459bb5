//! Changes: the transaction, the transno and the reply record are one unit.
//!
//! Invariants: a change on behalf of a request and its reply record are one transaction; a request whose export has ended
//! changes nothing; a change is admitted before it takes effect (`admitted.rs`).

use crate::admitted::Admitted;
use crate::clients::rows::reply_key;
use crate::recovery::RECOVERY_KEY;
use crate::target_core::TargetCore;
use core::mem;
use nacre_osd::{Pins, Reservation, Tx, table};
use nacre_rpc::ReplyRecord;
use nacre_types::{Codec, Errno, Failure, ProtocolOutcome, Transno};

/// Rows that a reply record adds to a transaction.
pub const RECORD_ROWS: u32 = 1;
/// Bytes that a reply record adds to a transaction.
pub const RECORD_BYTES: u32 = 96;

impl TargetCore {
    /// One change on behalf of a request: the closure's rows, the transno and the reply record are one unit.
    /// The reservation has room for [`RECORD_ROWS`] and [`RECORD_BYTES`] beyond the rows of the closure.
    ///
    /// # Errors
    /// Those of the closure; [`ProtocolOutcome::ExportGone`] when the export has ended while the bytes of a write were
    /// written.
    pub fn transact<T>(
        &self,
        admitted: Admitted<'_>,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Failure>,
    ) -> Result<(Transno, T), Failure> {
        let request = admitted.request();
        let (tag, xid) = (request.header.tag, request.header.xid);
        let (keeps_record, has_rows) = {
            let exports = self.clients().exports();
            let entry = exports.get(request.export).ok_or(ProtocolOutcome::ExportGone)?;
            let keeps_record = self.config.reply_records && tag.0 != 0 && entry.rpc.keeps_record(tag, xid);
            (keeps_record, entry.has_lease())
        };
        let mut written = None;
        let replayed = request.replayed_transno();
        let done = self.osd.transact_at(replayed, pins, reservation, |tx| {
            let value = change(tx)?;
            if let Some(replayed) = replayed {
                // A second loss resumes the recovery after this change.
                let base = self.recovery().base().map_or(replayed, |base| replayed.max(base));
                tx.put(table::TARGET, RECOVERY_KEY, base.to_vec());
            }
            if keeps_record {
                let mut note = request.note();
                let record = ReplyRecord {
                    transno: tx.transno(),
                    xid,
                    data: note.data,
                    result: 0,
                    generation: request.export,
                    tag,
                    pre_versions: note.versions,
                    fid: note.fid,
                    results: mem::take(&mut note.results),
                };
                if has_rows {
                    tx.put_encoded(table::REPLY, &reply_key(request.export, tag), |w| record.encode(w));
                }
                written = Some(record);
            }
            Ok::<T, Failure>(value)
        })?;
        if let Some(entry) = self.clients().exports_mut().get_mut(request.export) {
            if let Some(record) = written {
                entry.rpc.remember(record);
            }
            if replayed.is_none() && !request.note().reply_waits_for_commit {
                entry.reply_order.executed(done.0, self.osd.last_committed());
            }
        }
        Ok(done)
    }

    /// A change of the target's own (background work), without a reply record.
    pub fn transact_local<T>(
        &self,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Errno>,
    ) -> Result<(Transno, T), Errno> {
        self.osd.transact(pins, reservation, change)
    }
}
