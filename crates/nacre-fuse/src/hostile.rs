//! External input as fuzz targets (`fuzz/`): requests of the kernel, and texts of `/proc` and of users.
//!
//! Every request gets one reply, whatever its bytes; its handler never panics (the front end would return EIO).

use crate::abi::{Field as _, InHeader, op};
use crate::caller::Look;
use crate::device::Channel;
use crate::door::{Door, FuseEffect};
use crate::holders::Looked;
use crate::ops::Ops;
use crate::request::FuseRequest;
use crate::virtual_xattr::{VirtualName, parse_template};
use bytes::Bytes;
use nacre_client::{ReaddirPage, ResolvedInode};
use nacre_node::{Ctx, Effect, Event, Logic, visit};
use nacre_types::{Errno, Fid, Instant, Timestamp};
use std::rc::Rc;
use std::sync::Arc;

/// A file system in which nothing is found.
struct Nothing;
impl Ops for Nothing {
    async fn lookup(&self, _: Fid, _: &[u8]) -> Result<ResolvedInode, Errno> {
        Err(Errno::ENOENT)
    }
    async fn parent(&self, _: Fid) -> Result<ResolvedInode, Errno> {
        Err(Errno::ENOENT)
    }
    async fn getattr(&self, _: Fid) -> Result<ResolvedInode, Errno> {
        Err(Errno::ENOENT)
    }
    async fn readdir(&self, _: Fid, _: u64, _: u32, _: bool) -> Result<ReaddirPage, Errno> {
        Ok(ReaddirPage { entries: Vec::new(), eof: true })
    }
}

struct At<'a>(&'a Rc<Ctx>, &'a Rc<Door<Nothing>>, Option<FuseRequest>);
impl Logic for At<'_> {
    fn ctx(&self) -> &Rc<Ctx> {
        self.0
    }
    fn handle(&mut self, _: Event) {
        if let Some(request) = self.2.take() {
            self.1.handle(request);
        }
    }
}

/// A request of the kernel, unchanged and with a header that matches its length.
pub fn request(data: &[u8]) {
    take_in(data);
    if data.len() >= InHeader::BYTES {
        let mut sized = data.to_vec();
        sized[..4].copy_from_slice(&u32::try_from(data.len()).unwrap_or(u32::MAX).to_le_bytes());
        take_in(&sized);
    }
}

fn take_in(data: &[u8]) {
    let Ok(request) = FuseRequest::parse(Bytes::copy_from_slice(data), Arc::new(Channel::detached())) else {
        return;
    };
    let opcode = request.opcode();
    let ctx = Ctx::new(1);
    let door = Door::new(&ctx, Rc::new(Nothing));
    let mut replies = 0;
    let mut logic = At(&ctx, &door, Some(request));
    visit(&mut logic, Instant(1), Timestamp::default(), Event::Start);
    // An interrupt of a request that is not known yet is asked again after a while.
    visit(&mut logic, Instant(60_000_000_000), Timestamp::default(), Event::Timer);
    let mut effects = ctx.take_effects();
    for effect in &effects {
        // Nothing is known of the caller.
        if let Effect::Door(item) = effect
            && let Some(FuseEffect::LookAtFiles { unique, .. }) = item.downcast_ref()
        {
            door.event(Box::new(Looked::new(*unique, Look::new(0, None, Vec::new()))));
        }
    }
    visit(&mut logic, Instant(60_000_000_001), Timestamp::default(), Event::Timer);
    effects.extend(ctx.take_effects());
    for effect in effects {
        if let Effect::Door(item) = effect
            && let Ok(effect) = item.downcast::<FuseEffect>()
            && let FuseEffect::Reply(reply) = *effect
        {
            replies += 1;
            assert_ne!(
                reply.unique_and_error().1,
                -Errno::EIO.number(),
                "{} stopped on a bug",
                op::name(opcode)
            );
        }
    }
    let is_silent = [op::FORGET, op::BATCH_FORGET, op::NOTIFY_REPLY, op::INTERRUPT].contains(&opcode);
    assert!(replies == 1 || is_silent && replies <= 1, "{replies} replies to {}", op::name(opcode));
    assert_eq!(door.running(), 0);
}

/// Tables of the kernel, and values that users write into extended attributes.
pub fn text(data: &[u8]) {
    for line in crate::table::parse(data) {
        assert!(line.point.as_os_str().len() <= data.len());
    }
    let _names = VirtualName::parse(data);
    let text = String::from_utf8_lossy(data);
    crate::call::look_at(&text);
    crate::caller::look_at(&text);
    if let Some(template) = parse_template(&text) {
        let again = format!(
            "count={},size={},first={}",
            template.stripe_count, template.stripe_bytes, template.first_ost
        );
        assert_eq!(parse_template(&again), Some(template));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::replay_corpus::{replay, seeds};

    fn request_of(opcode: u32, extlen: u16, args: &[u8]) -> Vec<u8> {
        let len = (InHeader::BYTES + args.len()) as u32;
        let mut data = Vec::new();
        InHeader { len, opcode, unique: 8, nodeid: 1, pid: 7, total_extlen: extlen, ..InHeader::default() }
            .put(&mut data);
        data.extend_from_slice(args);
        data
    }
    fn with(put: impl FnOnce(&mut Vec<u8>), rest: &[u8]) -> Vec<u8> {
        let mut args = Vec::new();
        put(&mut args);
        args.extend_from_slice(rest);
        args
    }

    #[test]
    fn requests_of_the_kernel() {
        let mkdir = with(
            |out| {
                abi::MkdirIn { mode: 0o755, umask: 0o22 }.put(out);
                out.extend_from_slice(b"dir\0");
                abi::ExtHeader { size: 16, kind: abi::EXT_GROUPS }.put(out);
                1u32.put(out);
                77u32.put(out);
            },
            b"",
        );
        let setxattr =
            with(|out| abi::SetxattrIn { size: 7, ..Default::default() }.put(out), b"nacre.layout\0count=1");
        let all = [
            ("lookup", request_of(op::LOOKUP, 0, b"name\0")),
            ("mkdir", request_of(op::MKDIR, 2, &mkdir)),
            ("create", request_of(op::CREATE, 0, &with(|out| abi::CreateIn::default().put(out), b"name\0"))),
            ("tmpfile", request_of(op::TMPFILE, 0, &with(|out| abi::CreateIn::default().put(out), b"/\0"))),
            ("symlink", request_of(op::SYMLINK, 0, b"name\0target\0")),
            (
                "rename",
                request_of(op::RENAME2, 0, &with(|out| abi::Rename2In::default().put(out), b"a\0b\0")),
            ),
            ("setattr", request_of(op::SETATTR, 0, &with(|out| abi::SetattrIn::default().put(out), b""))),
            (
                "write",
                request_of(
                    op::WRITE,
                    0,
                    &with(|out| abi::WriteIn { size: 3, ..Default::default() }.put(out), b"abc"),
                ),
            ),
            (
                "read",
                request_of(
                    op::READ,
                    0,
                    &with(|out| abi::ReadIn { size: 4096, ..Default::default() }.put(out), b""),
                ),
            ),
            ("setxattr", request_of(op::SETXATTR, 0, &setxattr)),
            ("setlk", request_of(op::SETLKW, 0, &with(|out| abi::LkIn::default().put(out), b""))),
            (
                "interrupt",
                request_of(op::INTERRUPT, 0, &with(|out| abi::InterruptIn { unique: 8 }.put(out), b"")),
            ),
        ];
        seeds("request", &all);
        replay("request", request);
    }

    #[test]
    fn texts_of_the_kernel_and_of_users() {
        let all: [(&str, &[u8]); 5] = [
            ("mounts", b"30 22 0:31 / /mnt/a\\040b rw,nosuid shared:1 - fuse.nacre unix:/x rw\n"),
            ("layout", b"count=-1,size=1048576,first=2"),
            ("layout-json", br#"{"count": -1, "size": 1048576, "first": 2}"#),
            ("path", b"nacre.path.[0x100:0x1:0x0]"),
            ("stat", b"7 (a) b) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 99 0 0 0 0 0 0 0 0 0 256 0 0 0"),
        ];
        seeds("outside", &all.map(|(name, bytes)| (name, bytes.to_vec())));
        replay("outside", text);
    }
}
