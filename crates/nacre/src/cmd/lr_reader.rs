//! `nacre lr_reader` (and the link named `lr_reader`): the rows of clients that a target needs after a restart.
//!
//! A stopped target is read from its store without changing it; one that is served is asked over its socket.

use crate::output;
use crate::process::overlay::Overlay;
use crate::process::{registry, store, target_dir};
use crate::query::tool;
use anyhow::{Context as _, Result, anyhow, bail};
use nacre_osd::{Osd, table};
use nacre_rpc::ReplyRecord;
use nacre_target::ClientRow;
use nacre_target::last_rcvd::{LastRcvd, of_known_clients, render};
use nacre_types::{Codec, TargetName};
use nacre_wire::target::RecoveryRows;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(clap::Args, Debug)]
#[command(
    about = "Show a target's records of its clients: last_rcvd and reply data",
    long_about = "Show a target's records of its clients, by which every change is executed\n\
        exactly once: the header of last_rcvd, its clients (-c) and their reply records (-r), as YAML.\n\
        \n\
        A stopped target is read without being changed; a target that is served on this machine\n\
        is asked. A link to this program named `lr_reader` is this command.\n\
        \n\
        A client's own last_* numbers stay 0, as in Lustre, because its reply records have them. Each used\n\
        slot has one record, of the latest change in the slot, even if the client is known to have the\n\
        reply. last_data is the part of a reply that reconstruction needs (of an open: its disposition).",
    after_help = "Examples:\n\
        \x20 nacre lr_reader /data/mdt0\n\
        \x20 nacre lr_reader -c -r /data/mdt0\n\
        \x20 nacre lr_reader -r demo-MDT0000      by name, while it is served (also one in memory)"
)]
pub(crate) struct LrReaderArgs {
    /// Display client information
    #[arg(short, long)]
    client: bool,
    /// Display reply data information
    #[arg(short, long)]
    reply: bool,
    #[command(flatten)]
    timeout: tool::TimeoutArgs,
    /// Directory of a target, or the name of one that is served on this machine
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
}

/// Everything that can be shown.
struct Records {
    header: LastRcvd,
    clients: Vec<ClientRow>,
    replies: Vec<ReplyRecord>,
}

pub(crate) fn run(args: &LrReaderArgs) -> Result<()> {
    let records = match args.device.to_str().and_then(TargetName::parse) {
        Some(name) if !args.device.exists() => live(&name.to_string(), args.timeout)?,
        _ => of_directory(&args.device, args.timeout)?,
    };
    let clients = args.client.then_some(&records.clients[..]);
    let replies = args.reply.then_some(&records.replies[..]);
    output::raw(&render(&records.header, clients, replies));
    Ok(())
}

/// Stopped: read here. Served: asked where it is served.
fn of_directory(dir: &Path, timeout: tool::TimeoutArgs) -> Result<Records> {
    target_dir::check_is_target(dir)?;
    match store::open_dir_read_only(dir) {
        Ok(store) => stopped(store).with_context(|| dir.display().to_string()),
        Err(error) => {
            let holder = nacre_osd_fs::FsStore::holder(dir).ok().flatten();
            let Some(holder) = holder else { return Err(error) };
            let entry = registry::entries()?.into_iter().find(|e| u32::try_from(e.pid) == Ok(holder.pid));
            let Some(entry) = entry else {
                bail!("{} is served by {holder}, which cannot be asked from here", dir.display())
            };
            let bytes = std::fs::read(dir.join("super")).context("its label cannot be read")?;
            let label = nacre_osd::label_of(&bytes).map_err(|e| anyhow!("{}: {e}", dir.display()))?;
            if !entry.islands.contains(&label.name) {
                bail!("{} is served by {holder}, which does not reply about {}", dir.display(), label.name);
            }
            ask(&entry.socket, &label.name, timeout)
        }
    }
}

fn live(name: &str, timeout: tool::TimeoutArgs) -> Result<Records> {
    let entry = registry::entries()?.into_iter().find(|e| e.islands.iter().any(|island| island == name));
    let Some(entry) = entry else {
        bail!("{name} is not served on this machine\nhint: give the directory of a stopped target");
    };
    ask(&entry.socket, name, timeout)
}

fn ask(socket: &Path, name: &str, timeout: tool::TimeoutArgs) -> Result<Records> {
    pages(socket, name, timeout).map_err(|error| match tool::is_no_reply(&error) {
        true => anyhow!(
            "{error}\nhint: once the process has ended, the directory of the target can be read: nacre lr_reader DIR"
        ),
        false => error,
    })
}

fn pages(socket: &Path, name: &str, timeout: tool::TimeoutArgs) -> Result<Records> {
    let mut tool = tool::Tool::connect(socket, name, timeout.limit())?;
    let mut pages = |replies: bool| -> Result<(LastRcvd, Vec<bytes::Bytes>)> {
        let (mut from, mut rows) = (bytes::Bytes::new(), Vec::new());
        loop {
            let page = tool.call(&RecoveryRows { replies, from })?;
            rows.extend(page.rows);
            match page.next {
                Some(next) => from = next,
                None => {
                    let header = LastRcvd {
                        name: page.name,
                        incompat: page.incompat,
                        last_transaction: page.last_transaction,
                        target_index: page.target_index,
                        mount_count: page.mount_count,
                    };
                    return Ok((header, rows));
                }
            }
        }
    };
    let (_, clients) = pages(false)?;
    let (header, replies) = pages(true)?;
    Ok(records(header, &clients, &replies))
}

/// Rows that cannot be read are reported and left out.
fn records(header: LastRcvd, clients: &[bytes::Bytes], replies: &[bytes::Bytes]) -> Records {
    fn readable<T: for<'a> Codec<'a>>(rows: &[bytes::Bytes], what: &str) -> Vec<T> {
        rows.iter()
            .filter_map(|row| match T::from_slice(row) {
                Ok(row) => Some(row),
                Err(error) => {
                    output::note(&format!("a {what} record cannot be read and is left out: {error}"));
                    None
                }
            })
            .collect()
    }
    let clients: Vec<ClientRow> = readable(clients, "client");
    let replies = of_known_clients(readable(replies, "reply"), &clients);
    Records { header, clients, replies }
}

fn stopped(store: Arc<dyn nacre_node::Store>) -> Result<Records> {
    let overlay: Arc<dyn nacre_node::Store> = Arc::new(Overlay::new(store)?);
    let rows = store::run_alone(&overlay, |ctx| async move {
        let osd = Osd::open(&ctx, store::osd_config()).await?;
        let clients = osd.scan(table::CLIENT, &[], &[], u32::MAX).await?;
        let replies = osd.scan(table::REPLY, &[], &[], u32::MAX).await?;
        let instance = osd.get(table::TARGET, b"instance").await?;
        let incompat = osd.get(table::TARGET, b"incompat").await?;
        let last = osd.last_transno();
        Ok::<_, nacre_osd::OsdError>((osd.label().clone(), clients, replies, instance, incompat, last))
    })?;
    let (label, clients, replies, instance, incompat, last) = rows.map_err(|e| anyhow!("{e}"))?;
    let index = match label.target() {
        Some(TargetName::Of { index, .. }) => index,
        Some(TargetName::Mgs) | None => 0,
    };
    let header = LastRcvd {
        name: label.name,
        incompat: incompat.and_then(|row| u32::from_slice(&row).ok()).unwrap_or(0),
        last_transaction: last.0,
        target_index: index,
        mount_count: instance.and_then(|row| u64::from_slice(&row).ok()).unwrap_or(0),
    };
    let values =
        |rows: Vec<(bytes::Bytes, bytes::Bytes)>| rows.into_iter().map(|(_, row)| row).collect::<Vec<_>>();
    Ok(records(header, &values(clients), &values(replies)))
}
