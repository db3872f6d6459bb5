//! Virtual extended attributes: information for `nacre lfs` and scripts that `stat` does not have.
//!
//! | name | on | get | set |
//! | --- | --- | --- | --- |
//! | `nacre.fid` | any | `[0xSEQ:0xOID:0x0]` | |
//! | `nacre.layout` | any | JSON, below | JSON or `count=N,size=BYTES,first=OST`, each optional; removed: the default |
//! | `nacre.path` | any | all paths from the root, without leading slash, a NUL between them | |
//! | `nacre.path.[0x..:0x..:0x0]` | any (tools use the root) | the same for that FID | |
//! | `nacre.links` | any | `[FID of the parent]/name` of every link, a NUL between them | |
//! | `nacre.df` | any | JSON list: one object per target | |
//! | `nacre.sync` | any | makes durable what this mount has completed; `ok` | the same |
//! | `nacre.mount` | any | `FSNAME-INSTANCE`, as in parameter names | |
//! | `system.nacre.df`, `system.nacre.mount` | any | the same, also while the servers are away | |
//!
//! JSON of a layout: `{"fid", "layout": {"generation", "components": [{"start", "end" (null = to the end),
//! "stripe_bytes", "stripe_count", "stripes": [{"ost", "object"}]}]} or null, "template": {"count", "size", "first"} or
//! null, "default": {...}}`. JSON to set: `{"count", "size", "first"}`. Reading needs read permission of the inode,
//! setting write permission: the kernel checks both. The kernel cannot check the names in `nacre.path*` and
//! `nacre.links`. There the MDT decides, by uid, gid and the groups that `/proc` shows: a caller gets only names that it
//! could have found by itself ([`VirtualName::tells_names`]).

use crate::ops::Ops;
use bytes::Bytes;
use nacre_types::{Caller, Errno, Extent, Fid, LayoutTemplate, ObjectId};
use nacre_wire::mdt::LayoutReply;
use serde_json::{Value, json};

const PREFIX: &[u8] = b"nacre.";
/// Also a prefix of `df` and `mount`, which do not depend on a file: for a name in `system.` the kernel does not first
/// check read permission of the inode, so the reply needs no server.
const SYSTEM_PREFIX: &[u8] = b"system.nacre.";

/// A name under `nacre.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VirtualName {
    Fid,
    Layout,
    /// Of the inode itself, or of another.
    Path(Option<Fid>),
    Links,
    Df,
    Sync,
    Mount,
}
impl VirtualName {
    /// `None`: an ordinary name. An unknown name under this prefix is ENODATA, so that no value is ever stored there.
    pub(crate) fn parse(name: &[u8]) -> Option<Result<Self, Errno>> {
        if let Some(name) = name.strip_prefix(SYSTEM_PREFIX) {
            return match name {
                b"df" => Some(Ok(Self::Df)),
                b"mount" => Some(Ok(Self::Mount)),
                _ => Some(Err(Errno::ENODATA)),
            };
        }
        let name = name.strip_prefix(PREFIX)?;
        Some(match name {
            b"fid" => Ok(Self::Fid),
            b"layout" => Ok(Self::Layout),
            b"path" => Ok(Self::Path(None)),
            b"links" => Ok(Self::Links),
            b"df" => Ok(Self::Df),
            b"sync" => Ok(Self::Sync),
            b"mount" => Ok(Self::Mount),
            other => other
                .strip_prefix(b"path.")
                .and_then(|text| str::from_utf8(text).ok())
                .and_then(Fid::parse)
                .map(|fid| Self::Path(Some(fid)))
                .ok_or(Errno::ENODATA),
        })
    }
}

impl VirtualName {
    /// Whether the reply to a GETXATTR of this name depends on the caller.
    pub(crate) fn tells_names(name: &[u8]) -> bool {
        matches!(Self::parse(name), Some(Ok(Self::Path(_) | Self::Links)))
    }
}

/// The value. `probe`: only its size is requested, so no action is taken.
pub(crate) async fn get<O: Ops>(
    ops: &O,
    fid: Fid,
    name: VirtualName,
    probe: bool,
    caller: &Caller,
) -> Result<Bytes, Errno> {
    let text = match name {
        VirtualName::Fid => fid.to_string(),
        VirtualName::Layout => layout_json(fid, &ops.layout(fid).await?).to_string(),
        VirtualName::Path(other) => {
            let paths = ops.paths(other.unwrap_or(fid), caller).await?;
            return Ok(paths.join(&0).into());
        }
        VirtualName::Links => {
            let links = ops.links(fid, caller).await?;
            let lines = links.iter().map(|(parent, name)| [format!("{parent}/").as_bytes(), name].concat());
            return Ok(lines.collect::<Vec<_>>().join(&0).into());
        }
        VirtualName::Df => df_json(ops).await?.to_string(),
        VirtualName::Sync => {
            if !probe {
                ops.sync_all().await?;
            }
            "ok".to_owned()
        }
        VirtualName::Mount => ops.mount_text(),
    };
    Ok(text.into())
}

pub(crate) async fn set<O: Ops>(
    ops: &O,
    fid: Fid,
    name: VirtualName,
    value: &[u8],
    caller: Caller,
) -> Result<(), Errno> {
    match name {
        VirtualName::Layout => {
            let text = str::from_utf8(value).map_err(|_| Errno::EINVAL)?;
            let template = parse_template(text).ok_or(Errno::EINVAL)?;
            ops.set_layout(fid, template, caller).await
        }
        VirtualName::Sync => ops.sync_all().await,
        VirtualName::Fid
        | VirtualName::Path(_)
        | VirtualName::Links
        | VirtualName::Df
        | VirtualName::Mount => Err(Errno::EPERM),
    }
}

pub(crate) async fn remove<O: Ops>(
    ops: &O,
    fid: Fid,
    name: VirtualName,
    caller: Caller,
) -> Result<(), Errno> {
    match name {
        VirtualName::Layout => ops.set_layout(fid, LayoutTemplate::default(), caller).await,
        _ => Err(Errno::EPERM),
    }
}

fn layout_json(fid: Fid, reply: &LayoutReply) -> Value {
    let template = |t: &LayoutTemplate| json!({"count": t.stripe_count, "size": t.stripe_bytes, "first": t.first_ost, "dom": t.dom_bytes});
    let layout = reply.layout.as_ref().map(|layout| {
        let components: Vec<Value> = layout
            .components
            .iter()
            .map(|c| {
                let stripes: Vec<Value> = (0u32..)
                    .zip(&c.stripes)
                    .map(
                        |(stripe, ost)| json!({"ost": ost.0, "object": ObjectId { fid, stripe }.to_string()}),
                    )
                    .collect();
                let end = (c.extent.end != Extent::ALL.end).then_some(c.extent.end);
                json!({
                    "start": c.extent.start, "end": end, "stripe_bytes": c.stripe_bytes,
                    "stripe_count": stripes.len(), "stripes": stripes,
                })
            })
            .collect();
        json!({"generation": layout.generation, "dom_bytes": layout.dom_bytes, "components": components})
    });
    json!({
        "fid": fid.to_string(),
        "layout": layout,
        "template": reply.template.as_ref().map(template),
        "default": template(&reply.default),
    })
}

async fn df_json<O: Ops>(ops: &O) -> Result<Value, Errno> {
    let targets = ops.statfs_targets().await?;
    let lines = targets.into_iter().map(|(target, numbers)| match numbers {
        Ok(s) => json!({
            "target": target, "bytes_total": s.bytes_total, "bytes_free": s.bytes_free,
            "bytes_avail": s.bytes_avail, "files_used": s.files_used, "files_free": s.files_free,
            "device": s.device, "state": if s.is_full() { "full" } else { "up" },
        }),
        Err(Errno::ENODATA) => {
            json!({"target": target, "error": "set inactive on this mount", "state": "inactive"})
        }
        Err(errno) => {
            let error = ops.target_error(&target).unwrap_or_else(|| errno.to_string());
            json!({"target": target, "error": error, "state": "down"})
        }
    });
    Ok(lines.collect())
}

/// JSON, or `count=..,size=..,first=..,dom=..`; `None` for anything else.
pub(crate) fn parse_template(text: &str) -> Option<LayoutTemplate> {
    let text = text.trim().trim_end_matches('\0');
    let mut template = LayoutTemplate::default();
    let mut put = |key: &str, number: i64| -> Option<()> {
        match key {
            "count" => template.stripe_count = i32::try_from(number).ok()?,
            "size" => template.stripe_bytes = u32::try_from(number).ok()?,
            "first" => template.first_ost = i32::try_from(number).ok()?,
            "dom" => template.dom_bytes = Some(u32::try_from(number).ok()?),
            _ => return None,
        }
        Some(())
    };
    if text.starts_with('{') {
        let Ok(Value::Object(fields)) = serde_json::from_str(text) else { return None };
        for (key, value) in &fields {
            put(key, value.as_i64()?)?;
        }
    } else {
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (key, number) = part.split_once('=')?;
            put(key.trim(), number.trim().parse().ok()?)?;
        }
    }
    Some(template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Component, Layout, OstIndex};

    #[test]
    fn templates_are_read_as_json_and_as_text() {
        let want = LayoutTemplate {
            stripe_count: -1,
            stripe_bytes: 1 << 20,
            first_ost: 2,
            ..LayoutTemplate::default()
        };
        let at_mdt = LayoutTemplate { dom_bytes: Some(8192), ..want };
        assert_eq!(parse_template("count=-1,size=1048576,first=2,dom=8192"), Some(at_mdt));
        assert_eq!(parse_template(r#"{"count": -1, "size": 1048576, "first": 2}"#), Some(want));
        assert_eq!(parse_template("count=-1,size=1048576,first=2"), Some(want));
        assert_eq!(parse_template(""), Some(LayoutTemplate::default()));
        for bad in ["count", "count=x", "colour=3", "{\"count\": \"4\"}", "{", "size=-1"] {
            assert_eq!(parse_template(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_groups_of_a_caller_are_wanted_where_names_are_told() {
        for name in ["nacre.path", "nacre.path.[0x0:0x1:0x0]", "nacre.links"] {
            assert!(VirtualName::tells_names(name.as_bytes()), "{name}");
        }
        for name in ["nacre.fid", "nacre.df", "nacre.path.x", "user.nacre.path", "security.capability", ""] {
            assert!(!VirtualName::tells_names(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn unknown_names_under_the_prefix_are_never_stored() {
        assert_eq!(VirtualName::parse(b"user.x"), None);
        assert_eq!(VirtualName::parse(b"nacre.colour"), Some(Err(Errno::ENODATA)));
        assert_eq!(VirtualName::parse(b"system.nacre.df"), Some(Ok(VirtualName::Df)));
        for name in ["system.nacre.path", "system.nacre.links", "system.nacre.layout", "system.nacre.sync"] {
            assert_eq!(VirtualName::parse(name.as_bytes()), Some(Err(Errno::ENODATA)), "{name}");
        }
        assert_eq!(
            VirtualName::parse(b"nacre.path.[0x0:0x1:0x0]"),
            Some(Ok(VirtualName::Path(Some(Fid::ROOT))))
        );
    }

    #[test]
    fn a_layout_is_told_with_its_objects() {
        let component = Component {
            extent: Extent::ALL,
            stripe_bytes: 65536,
            stripes: vec![OstIndex(3), OstIndex(0)],
            laid: vec![],
        };
        let reply = LayoutReply {
            layout: Some(Layout { generation: 1, dom_bytes: 0, components: vec![component] }),
            template: None,
            default: LayoutTemplate::default(),
        };
        let value = layout_json(Fid::ROOT, &reply);
        let first = &value["layout"]["components"][0];
        assert_eq!((first["end"].is_null(), &first["stripes"][1]["object"]), (true, &json!("0x0:0x1:0x1")));
        assert_eq!((&first["stripes"][0]["ost"], &value["default"]["first"]), (&json!(3), &json!(-1)));
    }
}
