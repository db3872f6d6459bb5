//! SEEK_DATA and SEEK_HOLE of lseek(2).
//!
//! Every object is asked for its first byte of data, or hole, from the offset on; the first of them in the file is the
//! result. A hole has whole blocks of 4 KiB, and the end of the file is one. Like a glimpse, this takes no lock: a change
//! that another mount makes at the same time may be seen in one object and not yet in another.

use crate::client::Client;
use crate::data::stripes::Laid;
use alloc::vec::Vec;
use nacre_node::join_all;
use nacre_types::{Failure, OpenHandle};
use nacre_wire::ost::{Seek, SeekReply};

impl Client {
    /// The first offset from `offset` on at which there is data (`is_data`), or a hole.
    ///
    /// # Errors
    /// ENXIO if there is no data up to the end, or `offset` is not before it; EIO if an object is lost.
    pub async fn seek(&self, handle: OpenHandle, offset: u64, is_data: bool) -> Result<u64, Failure> {
        let _timing = self.stats.time("seek");
        let open = self.handle_under_lease(handle).await?;
        let file = &open.file;
        self.flush_file(file.fid).await;
        let component = &file.component()?;
        if file.dom_bytes() > 0
            && let Some((data, _)) = self.read_from_mdt(file, 0, u64::MAX).await?
        {
            let size = data.len() as u64;
            self.check_lease(&open).await?;
            return if offset < size { Ok(if is_data { offset } else { size }) } else { Err(Failure::ENXIO) };
        }
        let one = |stripe: u32, ost| async move {
            let Laid { object, laid } = Laid::new(component, file.fid, stripe);
            let start = component.object_size(stripe, offset);
            let seek = Seek { object, laid, offset: start, is_data };
            match self.ost(ost).await?.call(&seek).await {
                Ok(reply) => Ok((stripe, start, reply)),
                // Never written, or removed in the meantime.
                Err(Failure::ENOENT) => {
                    Ok((stripe, start, SeekReply { found: None, state: Default::default() }))
                }
                Err(e) => Err(e),
            }
        };
        let replies = join_all((0u32..).zip(&component.stripes).map(|(stripe, &ost)| one(stripe, ost))).await;
        let replies: Vec<_> = replies.into_iter().collect::<Result<_, Failure>>()?;
        self.check_lease(&open).await?;
        let sizes = replies.iter().map(|(stripe, _, reply)| component.file_size(*stripe, reply.state.size));
        let size = sizes.max().unwrap_or(0);
        let places = replies.iter().filter_map(|(stripe, start, reply)| {
            // Where an object ends, a hole begins.
            let at = if is_data { reply.found? } else { reply.found.unwrap_or(*start) };
            Some(component.file_size(*stripe, at.saturating_add(1)).saturating_sub(1))
        });
        match places.min() {
            _ if offset >= size => Err(Failure::ENXIO),
            Some(at) if !is_data => Ok(at.min(size)),
            Some(at) => Ok(at),
            None => Err(Failure::ENXIO),
        }
    }
}
