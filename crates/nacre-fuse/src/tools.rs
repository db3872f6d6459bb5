//! Messages for the mount itself: a tool connects to it by name, as to a target, and asks for parameters.
//!
//! The protocol is the targets': Connect, Ping, GetParams, SetParam, Disconnect. A tool has no record and no lease.

use nacre_node::{ConnId, Ctx, Effect, Event};
use nacre_types::{Codec, Errno};
use nacre_wire::params::{BoundParam, set_matching};
use nacre_wire::target::{Connect, ConnectReply, Empty, GetParams, ParamList, PingReply, SetParam};
use nacre_wire::{Frame, Header, Kind, Opcode, matches};

/// Handles an event that is not the client's: frames of tools, whose connections leave no record. `params` lists the
/// parameters of the mount.
pub(crate) fn handle<'a>(ctx: &Ctx, params: impl FnOnce() -> Vec<BoundParam<'a>>, event: Event) {
    if let Event::Frame { conn, frame } = event
        && frame.header.kind == Kind::Request
    {
        if frame.header.opcode == Opcode::Connect.number() {
            ctx.push(Effect::Admit { conn });
        }
        let result = execute(params, ctx, &frame);
        reply(ctx, conn, &frame.header, result);
    }
}

fn execute<'a>(
    params: impl FnOnce() -> Vec<BoundParam<'a>>,
    ctx: &Ctx,
    frame: &Frame,
) -> Result<Vec<u8>, Errno> {
    match Opcode::from_number(frame.header.opcode) {
        Some(Opcode::Connect) => {
            let connect = Connect::from_slice(&frame.body)?;
            Ok(ConnectReply {
                max_mod_rpcs: connect.max_mod_rpcs,
                server_time: ctx.wall(),
                ..ConnectReply::default()
            }
            .to_vec())
        }
        Some(Opcode::Ping) => {
            Ok(PingReply { config_version: 0, recovery_ms: 0, process: 0, ended: 0 }.to_vec())
        }
        Some(Opcode::Disconnect) => Ok(Empty {}.to_vec()),
        Some(Opcode::GetParams) => {
            let GetParams { pattern } = GetParams::from_slice(&frame.body)?;
            let params = params().into_iter().filter(|p| matches(&pattern, p.name()));
            let mut params: Vec<_> = params.map(BoundParam::into_param).collect();
            params.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(ParamList { params }.to_vec())
        }
        Some(Opcode::SetParam) => {
            let SetParam { name: pattern, value } = SetParam::from_slice(&frame.body)?;
            Ok(set_matching(params(), &pattern, &value).to_vec())
        }
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn reply(ctx: &Ctx, conn: ConnId, request: &Header, result: Result<Vec<u8>, Errno>) {
    let mut header = Header::new(Kind::Reply, request.opcode);
    header.xid = request.xid;
    header.tag = request.tag;
    header.epoch = request.epoch;
    let body = result.unwrap_or_else(|errno| {
        header.status = errno.into();
        Vec::new()
    });
    ctx.push(Effect::Send { conn, frame: Frame::new(header, body) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_wire::params::{Arm, MountParam, bind};
    use nacre_wire::target::SetParamReply;

    /// A mount with one parameter.
    fn one() -> Vec<BoundParam<'static>> {
        bind("llite.demo-1", "", |param| match param {
            MountParam::Stats => Arm::counters("v", || ()),
            MountParam::Uuid => Arm::shown_if(None::<&str>),
            MountParam::DirAttrCache | MountParam::ReadOnly | MountParam::WriteBack => {
                Arm::switch(true, |_| ())
            }
            MountParam::MaxDirtyMb => Arm::number(64, |_: u64| ()),
            MountParam::DirtyBytes => Arm::shown_if(None::<&str>),
            MountParam::Atime | MountParam::DirAtime => Arm::word("noatime", |_| Ok(())),
        })
    }

    fn ask<'a, T: Codec<'a>>(opcode: Opcode, body: &T) -> Frame {
        let ctx = Ctx::new(1);
        let mut header = Header::new(Kind::Request, opcode.number());
        header.xid = nacre_types::Xid(7);
        let frame = Frame::new(header, body.to_vec());
        handle(&ctx, one, Event::Frame { conn: ConnId(3), frame });
        match ctx.take_effects().pop() {
            Some(Effect::Send { conn: ConnId(3), frame }) => frame,
            _ => panic!("no reply"),
        }
    }

    #[test]
    fn a_tool_reads_and_sets_parameters_by_pattern() {
        let reply = ask(Opcode::GetParams, &GetParams { pattern: "llite.*.st*s".to_owned() });
        assert_eq!(reply.header.xid, nacre_types::Xid(7));
        assert_eq!(ParamList::from_slice(&reply.body).unwrap().params.len(), 1);
        let none = ask(Opcode::GetParams, &GetParams { pattern: "llite.*".to_owned() });
        assert!(ParamList::from_slice(&none.body).unwrap().params.is_empty());
        let set = ask(Opcode::SetParam, &SetParam { name: "*.*.stats".to_owned(), value: "bad".to_owned() });
        let set = SetParamReply::from_slice(&set.body).unwrap();
        assert_eq!(set.matched, 1);
        assert!(set.refused.starts_with("llite.demo-1.stats=bad: "), "{}", set.refused);
        assert_eq!(ask(Opcode::Statfs, &Empty {}).header.status, Errno::EOPNOTSUPP.into());
    }
}
