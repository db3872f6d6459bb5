//! Rows of clients and reply records for a reader of records (`lr_reader`), without secrets.

use crate::clients::rows::ClientRow;
use crate::target_core::TargetCore;
use alloc::string::ToString;
use alloc::vec::Vec;
use bytes::Bytes;
use nacre_osd::{key_after, table};
use nacre_types::{Codec, Errno, Secret, TargetName};
use nacre_wire::target::{RecoveryRows, RecoveryRowsReply};

/// Rows of one page.
const PAGE: u32 = 1000;

/// One page of rows: clients or reply records.
pub(crate) async fn recovery_rows(
    core: &TargetCore,
    args: &RecoveryRows,
) -> Result<RecoveryRowsReply, Errno> {
    let table = if args.replies { table::REPLY } else { table::CLIENT };
    let rows = core.osd.scan(table, &args.from, &[], PAGE).await?;
    let full = rows.len() >= PAGE as usize;
    let next = rows.last().filter(|_| full).map(|(key, _)| Bytes::from(key_after(key)));
    let target_index = match &core.name {
        TargetName::Mgs => 0,
        TargetName::Of { index, .. } => *index,
    };
    let rows: Vec<Bytes> = rows.into_iter().map(|(_, row)| row).collect();
    Ok(RecoveryRowsReply {
        name: core.name.to_string(),
        incompat: core.clients().incompat().flags(),
        last_transaction: core.osd.last_transno().0,
        target_index,
        mount_count: core.instance(),
        rows: if args.replies { rows } else { without_secrets(rows) },
        next,
    })
}

/// Client rows with a secret of zeros. A row that cannot be decoded is returned empty: a secret may be in it.
fn without_secrets(rows: Vec<Bytes>) -> Vec<Bytes> {
    let without = |row: Bytes| match ClientRow::from_slice(&row) {
        Ok(row) => Bytes::from(ClientRow { secret: Secret::default(), ..row }.to_vec()),
        Err(_) => Bytes::new(),
    };
    rows.into_iter().map(without).collect()
}
