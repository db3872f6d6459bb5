//! Changes whose replies were lost: the replies to their resends say what was done, whatever others have made of it
//! since. (An ESTALE would make the kernel begin anew, and the change would happen twice.)

mod support;

use nacre_client::{Client, MetadataChange};
use nacre_sim::cluster::Cluster;
use nacre_types::{Failure, Fid, LayoutTemplate, SetAttr};
use std::rc::Rc;
use support::{DIR, FILE, MDT, MS, SEC, caller, make, new, on_devices, run};

const SYMLINK: u32 = 0o120777;
const FIFO: u32 = 0o010644;
/// The first mount makes a change of `x` (or makes it) and does not hear of it; the second removes every name of it.
fn removed_before_the_resend<T: Send + 'static, F: Future<Output = Result<T, Failure>> + 'static>(
    seed: u64,
    there: bool,
    change: impl FnOnce(Rc<Client>, Fid) -> F + Send + 'static,
) -> (Cluster, Result<T, Failure>) {
    let mut c = on_devices(seed, 2);
    let [first, second] = [c.mounts[0], c.mounts[1]];
    let mdt = c.servers[MDT];
    let made = run(&mut c, first, async move |client| match there {
        true => make(&client, Fid::ROOT, "x", FILE).await,
        false => Ok(Fid::ROOT),
    });
    let fid = made.expect("made");
    support::without_cache(&mut c);
    c.world.block(mdt, first);
    let job = c.jobs.start(&mut c.world, first, async move |client| change(client, fid).await);
    c.world.run_for(300 * MS);
    let removed = run(&mut c, second, async |client| {
        let page = client.readdir(Fid::ROOT, 2, 100, false).await?;
        for entry in &page.entries {
            let directory = entry.file_type == nacre_types::FileType::Directory;
            client.unlink(Fid::ROOT, &entry.name, directory, caller()).await?;
        }
        Ok::<_, Failure>(page.entries.len())
    });
    assert!(removed.is_ok_and(|names| names > 0), "seed {seed}: the change is made");
    for _ in 0..12 {
        c.world.cut_some_link(first);
    }
    c.world.heal(mdt, first);
    let done: Option<Result<T, Failure>> = c.jobs.wait(&mut c.world, job, 60 * SEC);
    let names = run(&mut c, second, async |client| client.readdir(Fid::ROOT, 2, 100, false).await);
    assert_eq!(names.expect("readable").entries.len(), 0, "seed {seed}: nothing is made again");
    (c, done.expect("the reply comes"))
}

#[test]
fn what_was_made_and_is_removed_before_the_resend_was_made() {
    for seed in 1..=4 {
        for mode in [DIR, FILE, SYMLINK, FIFO] {
            let target: &[u8] = if mode == SYMLINK { b"to" } else { b"" };
            let make = async move |client: Rc<Client>, _| {
                client.make(nacre_client::CreateArgs { target, ..new(Fid::ROOT, "x", mode) }).await
            };
            let (c, made) = removed_before_the_resend(seed, false, make);
            let attr =
                made.unwrap_or_else(|e| panic!("{mode:o}, seed {seed}: {e}\n{}", c.world.trace(60))).attr;
            assert_eq!((attr.mode & 0o170000, attr.nlink), (mode & 0o170000, 0), "seed {seed}");
        }
    }
}

#[test]
fn what_was_changed_and_is_removed_before_the_resend_was_changed() {
    let set = || SetAttr { mode: Some(0o600), ..SetAttr::default() };
    for seed in 1..=4 {
        let linked = removed_before_the_resend(seed, true, async |client: Rc<Client>, x| {
            client.link(x, Fid::ROOT, b"y", caller()).await
        });
        let attr = linked.1.expect("linked").attr;
        assert_eq!((attr.mode & 0o170000, attr.nlink), (0o100000, 0), "seed {seed}");
        let changed = removed_before_the_resend(seed, true, async move |client: Rc<Client>, x| {
            client.setattr(x, set(), caller()).await
        });
        let attr = changed.1.expect("changed").attr;
        assert_eq!((attr.mode, attr.nlink), (0o100600, 0), "seed {seed}");
        let set_layout = removed_before_the_resend(seed, true, async |client: Rc<Client>, x| {
            let template = LayoutTemplate {
                stripe_count: 1,
                stripe_bytes: 64 << 10,
                first_ost: -1,
                ..LayoutTemplate::default()
            };
            client.set_layout(x, template, caller()).await
        });
        assert_eq!(set_layout.1, Ok(()), "seed {seed}");
        let named = removed_before_the_resend(seed, true, async |client: Rc<Client>, x| {
            client.setxattr(support::xattr(x, b"user.a", b"value")).await
        });
        assert_eq!(named.1, Ok(()), "seed {seed}");
        let batch = removed_before_the_resend(seed, true, async move |client: Rc<Client>, fid| {
            let batch = [
                MetadataChange::Setattr { fid, set: set() },
                MetadataChange::Link { fid, parent: Fid::ROOT, name: b"y" },
                MetadataChange::Make(new(Fid::ROOT, "z", DIR)),
            ];
            client.batch(&batch, &caller(), false).await
        });
        for changed in batch.1.expect("acknowledged") {
            let entry = changed.expect("changed").expect("of an inode");
            assert_eq!(entry.attr.nlink, 0, "seed {seed}");
        }
    }
}
