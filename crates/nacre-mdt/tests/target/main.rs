//! A metadata target as its clients see it: names, opens, sizes, file locks; restarts, evictions, lost connections.

#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

mod batches;
mod cold;
mod leavers;
mod moves;
mod resend;
mod support;

use nacre_mdt::row::Row;
use nacre_ost::Ost;
use nacre_types::*;
use nacre_wire::mdt::*;
use nacre_wire::mgs::SetPermanentParam;
use std::collections::BTreeSet;
use support::*;

#[test]
fn a_file_is_made_written_listed_and_removed_with_its_object() {
    let mut c = Cluster::new(1, 2, 1);
    let fid = c.run(0, |c| async move {
        let dir = c.make(Fid::ROOT, b"dir", DIR).await.unwrap();
        let made = c.make_open(dir, b"file", REG, Some((1, O_RDWR)), true).await.unwrap();
        assert!(made.created);
        let fid = made.entry.attr.fid;
        assert_eq!(c.getattr(fid).await.unwrap().size_state, SizeState::Open);
        let state = c.write(&made.entry, 0, 5000).await;
        c.close(fid, 1, true, written(&state)).await.unwrap();
        let attr = c.lookup(dir, b"file").await.unwrap();
        assert_eq!((attr.size, attr.size_state), (5000, SizeState::Exact));
        let page = c.readdir(dir, 0, 100).await;
        assert!(page.eof);
        assert_eq!(page.entries.iter().map(|e| &e.name[..]).collect::<Vec<_>>(), [b"file"]);
        assert_eq!(c.unlink(Fid::ROOT, b"dir", true).await, Err(Failure::ENOTEMPTY));
        c.unlink(dir, b"file", false).await.unwrap();
        c.unlink(Fid::ROOT, b"dir", true).await.unwrap();
        assert_eq!(c.lookup(Fid::ROOT, b"dir").await, Err(Failure::ENOENT));
        fid
    });
    assert_eq!(c.run(0, move |c| async move { c.getattr(fid).await }), Err(Failure::ESTALE));
    c.run_ms(5000);
    let (report, osts) = c.check();
    assert_eq!((report.inodes, report.entries, report.destroys), (1, 0, 0));
    assert_eq!(osts.iter().map(|o| o.objects).sum::<u64>(), 0, "the object was destroyed");
}

#[test]
fn an_existing_name_is_opened_and_an_exclusive_create_fails() {
    let mut c = Cluster::new(2, 1, 2);
    let fid = c.run(0, |c| async move { c.make(Fid::ROOT, b"f", REG).await.unwrap() });
    c.run(1, move |c| async move {
        let exclusive = c.make_open(Fid::ROOT, b"f", REG, Some((1, O_RDWR)), true).await;
        assert_eq!(exclusive.map(|r| r.created), Err(Failure::EEXIST));
        let opened = c.make_open(Fid::ROOT, b"f", REG, Some((1, O_RDWR)), false).await.unwrap();
        assert_eq!((opened.created, opened.entry.attr.fid), (false, fid));
        c.close(fid, 1, false, None).await.unwrap();
        assert_eq!(c.close(fid, 1, false, None).await, Err(Failure::EBADF));
        let foreign = Create {
            fid: Fid::new(fid.seq, Oid(77)),
            parent: Fid::ROOT,
            name: Some(name_of(b"g")),
            mode: DIR,
            rdev: 0,
            target: b"",
            layout: None,
            open: None,
            exclusive: true,
            caller: Caller::root(),
            time: c.now(),
        };
        assert_eq!(c.call(&foreign).await.map(|_| ()), Err(Failure::EPERM), "a sequence of somebody else");
        let impossible = Create { fid: Fid::new(Seq(1 << 41), Oid(1)), ..foreign };
        assert_eq!(c.call(&impossible).await.map(|_| ()), Err(Failure::EINVAL));
    });
    c.check();
}

#[test]
fn fids_carry_the_index_of_the_mdt_that_granted_them() {
    let mut c = Cluster::with_mdt(MdtIndex(1), 2, 1, 1, nacre_sim::bed::target::<nacre_mdt::Mdt>);
    let fid = c.run(0, |c| async move { c.make(Fid::ROOT, b"f", REG).await.unwrap() });
    assert_eq!((fid.mdt(), fid.seq), (MdtIndex(1), Seq(0x4000_0100)));
    c.restart();
    let attr = c.run(0, |c| async move { c.lookup(Fid::ROOT, b"f").await.unwrap() });
    assert_eq!(attr.fid, fid);
    c.check();
}

#[test]
fn a_check_finds_sequences_of_another_mdt() {
    let mut check = nacre_mdt::check::Check::new(MdtIndex(1));
    for seq in [0x100u64, 0x4000_0100] {
        let client = ClientUuid([7; 16]).to_row();
        check.row(nacre_mdt::table::SEQUENCE, &seq.to_be_bytes(), &client);
    }
    check.row(nacre_mdt::table::META, nacre_mdt::table::meta::NEXT_SEQ, &0x4000_0101u64.to_row());
    let report = check.finish();
    let foreign = "sequence 0x100 was granted and is not in the range of MDT 0001";
    assert!(report.sentences.iter().any(|found| found == foreign), "{:?}", report.sentences);
    assert!(!report.sentences.iter().any(|found| found.contains("0x40000100")), "{:?}", report.sentences);
}

#[test]
fn an_unlinked_open_file_survives_a_restart_and_ends_with_its_close() {
    let mut c = Cluster::new(3, 1, 1);
    let fid = c.run(0, |c| async move {
        let made = c.make_open(Fid::ROOT, b"f", REG, Some((1, O_RDWR)), true).await.unwrap();
        c.write(&made.entry, 0, 100).await;
        c.unlink(Fid::ROOT, b"f", false).await.unwrap();
        made.entry.attr.fid
    });
    c.restart();
    c.run(0, move |c| async move {
        assert_eq!(c.getattr(fid).await.unwrap().nlink, 0);
        c.close(fid, 1, true, None).await.unwrap();
        assert_eq!(c.getattr(fid).await, Err(Failure::ESTALE));
    });
    c.run_ms(5000);
    let (report, osts) = c.check();
    assert_eq!((report.inodes, report.orphans, report.opens), (1, 0, 0));
    assert_eq!(osts[0].objects, 0);
}

#[test]
fn a_directory_that_is_removed_while_open_stays_empty_and_nameless_until_its_close() {
    let mut c = Cluster::new(31, 1, 2);
    let dir = c.run(0, |c| async move {
        let dir = c.make(Fid::ROOT, b"d", DIR).await.unwrap();
        c.open(dir, 1, O_RDONLY).await.unwrap();
        dir
    });
    // Another client takes it away: one by rmdir, one by a rename over it.
    let over = c.run(1, move |c| async move {
        c.unlink(Fid::ROOT, b"d", true).await.unwrap();
        let over = c.make(Fid::ROOT, b"over", DIR).await.unwrap();
        c.open(over, 1, O_RDONLY).await.unwrap();
        over
    });
    c.run(0, move |c| async move {
        c.make(Fid::ROOT, b"new", DIR).await.unwrap();
        c.rename((Fid::ROOT, b"new"), (Fid::ROOT, b"over"), 0).await.unwrap();
    });
    c.restart();
    for (client, fid) in [(0, dir), (1, over)] {
        c.run(client, move |c| async move {
            assert_eq!(c.getattr(fid).await.unwrap().nlink, 0);
            let page = c.readdir(fid, 0, 10).await;
            assert_eq!((page.entries.len(), page.eof), (0, true));
            assert_eq!(c.make(fid, b"x", DIR).await, Err(Failure::ENOENT));
            assert_eq!(c.rename((Fid::ROOT, b"over"), (fid, b"x"), 0).await, Err(Failure::ENOENT));
            c.close(fid, 1, false, None).await.unwrap();
            assert_eq!(c.getattr(fid).await, Err(Failure::ESTALE));
        });
    }
    let (report, _) = c.check();
    assert_eq!((report.inodes, report.orphans, report.opens), (2, 0, 0));
}

#[test]
fn a_client_that_vanishes_loses_its_opens_orphans_and_locks() {
    let mut c = Cluster::new(4, 1, 2);
    let fid = c.run(0, |c| async move {
        let made = c.make_open(Fid::ROOT, b"orphan", REG, Some((1, O_RDWR)), true).await.unwrap();
        c.write(&made.entry, 0, 100).await;
        c.unlink(Fid::ROOT, b"orphan", false).await.unwrap();
        let made = c.make_open(Fid::ROOT, b"kept", REG, Some((2, O_RDWR)), true).await.unwrap();
        c.write(&made.entry, 0, 7777).await;
        let fid = made.entry.attr.fid;
        assert_eq!(c.flock(fid, FlockType::Write, (0, 9), None).await, Ok(FlockOutcome::Granted));
        fid
    });
    let waiter = c.start(1, move |c| async move {
        c.open(fid, 1, O_RDONLY).await.unwrap();
        assert_eq!(c.flock(fid, FlockType::Read, (5, 5), Some(11)).await, Ok(FlockOutcome::Waiting));
        let granted = c.granted(11).await;
        c.flock(fid, FlockType::Unlock, (0, u64::MAX), None).await.unwrap();
        c.close(fid, 1, false, None).await.unwrap();
        granted
    });
    c.run_ms(1000);
    let node = c.client_node(0);
    c.world.kill(node);
    assert_eq!(c.wait(&waiter), FlockOutcome::Granted);
    c.run_ms(20_000);
    let attr = c.run(1, move |c| async move { c.getattr(fid).await.unwrap() });
    assert_eq!((attr.size, attr.size_state), (7777, SizeState::Exact), "the OST was asked");
    let (report, osts) = c.check();
    assert_eq!((report.inodes, report.orphans, report.opens, report.open_sizes), (2, 0, 0, 0));
    assert_eq!(osts[0].objects, 1);
}

#[test]
fn a_size_is_left_to_a_writer_who_is_alone() {
    let mut c = Cluster::new(6, 2, 2);
    let yours = |c: &mut Cluster, client, fid| {
        c.run(client, move |c| async move { c.call(&Getattr { fid }).await.unwrap().yours })
    };
    let made = c
        .run(0, |c| async move { c.make_open(Fid::ROOT, b"f", REG, Some((1, O_RDWR)), true).await.unwrap() });
    let fid = made.entry.attr.fid;
    assert!(yours(&mut c, 0, fid) && !yours(&mut c, 1, fid));
    // Somebody else cuts it, or opens it for writing: it is nobody's until the last close.
    c.run(1, move |c| async move { c.open(fid, 1, O_RDWR).await.unwrap() });
    assert!(!yours(&mut c, 0, fid) && !yours(&mut c, 1, fid));
    c.run(1, move |c| async move { c.close(fid, 1, false, None).await.unwrap() });
    assert!(!yours(&mut c, 0, fid));
    c.run(0, move |c| async move { c.close(fid, 1, false, None).await.unwrap() });
    c.run(0, |c| async move { c.sleep_ms(3000).await });
    assert!(!yours(&mut c, 0, fid), "the size is exact");
    c.run(0, move |c| async move {
        c.open(fid, 2, O_RDWR).await.unwrap();
        assert!(c.call(&Getattr { fid }).await.unwrap().yours);
        let set = SetAttr { size: Some(20), ..SetAttr::default() };
        let truncate = Setattr { fid, set, caller: Caller::root(), time: c.now() };
        c.call(&truncate).await.unwrap();
        assert!(!c.call(&Getattr { fid }).await.unwrap().yours, "being cut");
    });
}

#[test]
fn the_size_after_two_writers_or_an_unsure_one_comes_from_the_osts() {
    let mut c = Cluster::new(5, 2, 2);
    let made = c
        .run(0, |c| async move { c.make_open(Fid::ROOT, b"f", REG, Some((1, O_RDWR)), true).await.unwrap() });
    let fid = made.entry.attr.fid;
    let entry = made.entry.clone();
    c.run(1, move |c| async move {
        c.open(fid, 1, O_RDWR).await.unwrap();
        let state = c.write(&entry, 0, 100).await;
        c.close(fid, 1, true, written(&state)).await.unwrap();
    });
    let entry = made.entry.clone();
    c.run(0, move |c| async move {
        let state = c.write(&entry, 0, 50).await;
        // An older view than the object's.
        let old = Written { size: 50, blocks: 8, mtime: state.mtime };
        c.close(fid, 1, true, Some(old)).await.unwrap();
        c.sleep_ms(3000).await;
        let attr = c.getattr(fid).await.unwrap();
        assert_eq!((attr.size, attr.size_state), (100, SizeState::Exact));
        // Unsure: the client does not say what it wrote.
        let reply = c.open(fid, 2, O_RDWR).await.unwrap();
        c.write(&reply, 300, 10).await;
        c.close(fid, 2, true, None).await.unwrap();
        c.sleep_ms(3000).await;
        let attr = c.getattr(fid).await.unwrap();
        assert_eq!((attr.size, attr.size_state), (310, SizeState::Exact));
        // A truncate: open until reported.
        let set = SetAttr { size: Some(20), ..SetAttr::default() };
        let truncate = Setattr { fid, set, caller: Caller::root(), time: c.now() };
        let reply = c.call(&truncate).await.unwrap();
        assert_eq!(reply.attr.size_state, SizeState::Open);
        let state = c.truncate(&reply, 20).await;
        let report = ReportSize { fid, written: written(&state).unwrap(), truncate: true };
        let attr = c.call(&report).await.unwrap().attr;
        assert_eq!((attr.size, attr.size_state), (20, SizeState::Exact));
    });
    c.check();
}

#[test]
fn a_listing_under_change_shows_every_lasting_entry_once() {
    let mut c = Cluster::new(6, 1, 2);
    let dir = c.run(0, |c| async move {
        let dir = c.make(Fid::ROOT, b"d", DIR).await.unwrap();
        for n in 0..300 {
            c.make(dir, format!("keep{n}").as_bytes(), DIR).await.unwrap();
            c.make(dir, format!("go{n}").as_bytes(), mode::LNK | 0o777).await.unwrap();
        }
        dir
    });
    let changer = c.start(1, move |c| async move {
        for n in 0..300 {
            c.unlink(dir, format!("go{n}").as_bytes(), false).await.unwrap();
            c.make(dir, format!("come{n}").as_bytes(), DIR).await.unwrap();
        }
    });
    let names = c.run(0, move |c| async move {
        let (mut cookie, mut names) = (0, Vec::new());
        loop {
            let page = c.readdir(dir, cookie, 7).await;
            assert!(page.entries.is_sorted_by_key(|e| e.cookie));
            cookie = page.entries.last().map_or(cookie, |e| e.cookie);
            names.extend(page.entries.into_iter().map(|e| e.name));
            if page.eof {
                return names;
            }
            c.sleep_ms(2).await;
        }
    });
    c.wait(&changer);
    let set: BTreeSet<_> = names.iter().collect();
    assert_eq!(set.len(), names.len(), "a name twice");
    assert_eq!(names.iter().filter(|n| n.starts_with(b"keep")).count(), 300);
    let all = c.run(0, move |c| async move { c.readdir(dir, 0, 10_000).await });
    assert_eq!((all.entries.len(), all.eof), (600, true));
    let (report, _) = c.check();
    assert_eq!(report.entries, 601);
}

#[test]
fn two_clients_that_wait_for_each_other_are_told_of_the_deadlock() {
    let mut c = Cluster::new(7, 1, 2);
    let (a, b) = c.run(0, |c| async move {
        let a = c.make(Fid::ROOT, b"a", REG).await.unwrap();
        (a, c.make(Fid::ROOT, b"b", REG).await.unwrap())
    });
    let all = (0, u64::MAX);
    c.run(0, move |c| async move {
        assert_eq!(c.flock(a, FlockType::Write, all, None).await, Ok(FlockOutcome::Granted));
    });
    c.run(1, move |c| async move {
        assert_eq!(c.flock(b, FlockType::Write, all, None).await, Ok(FlockOutcome::Granted));
        assert_eq!(c.flock(a, FlockType::Write, (1, 1), None).await, Ok(FlockOutcome::Conflict));
        let test = FileLock {
            family: FlockFamily::Posix,
            kind: FlockType::Read,
            start: 0,
            end: 0,
            owner: 9,
            pid: 1,
        };
        let conflict = c.call(&FlockTest { fid: a, lock: test }).await.unwrap().conflict.unwrap();
        assert_eq!((conflict.pid, conflict.kind, conflict.end), (77, FlockType::Write, u64::MAX));
        assert_eq!(c.flock(a, FlockType::Write, (1, 1), Some(5)).await, Ok(FlockOutcome::Waiting));
    });
    c.run(0, move |c| async move {
        assert_eq!(c.flock(b, FlockType::Read, (1, 1), Some(5)).await, Ok(FlockOutcome::Deadlock));
        c.flock(a, FlockType::Unlock, all, None).await.unwrap();
    });
    assert_eq!(c.run(1, |c| async move { c.granted(5).await }), FlockOutcome::Granted);
    // Held locks are rows: a killed MDT still has them.
    c.restart();
    c.run(0, move |c| async move {
        assert_eq!(c.flock(a, FlockType::Read, (1, 1), None).await, Ok(FlockOutcome::Conflict));
        assert_eq!(c.flock(a, FlockType::Read, (2, 2), None).await, Ok(FlockOutcome::Granted));
    });
    c.check();
}

#[test]
fn without_an_ost_a_file_is_enospc_and_a_directory_is_made() {
    let mut c = Cluster::new(8, 0, 1);
    c.run(0, |c| async move {
        c.make(Fid::ROOT, b"d", DIR).await.unwrap();
        assert_eq!(c.make(Fid::ROOT, b"f", REG).await, Err(Failure::ENOSPC));
    });
    c.check();
}

#[test]
fn a_stopped_ost_is_left_out_and_its_destroys_wait_for_it() {
    let mut c = Cluster::new(9, 2, 1);
    c.run(0, |c| async move {
        for n in 0..8u64 {
            let name = format!("f{n}");
            let made = c.make_open(Fid::ROOT, name.as_bytes(), REG, Some((n, O_RDWR)), true).await.unwrap();
            let state = c.write(&made.entry, 0, 10).await;
            c.close(made.entry.attr.fid, n, true, written(&state)).await.unwrap();
        }
    });
    let node = c.ost_node(1);
    c.world.kill(node);
    c.run_ms(15_000);
    let osts = c.run(0, |c| async move {
        let mut osts = BTreeSet::new();
        for n in 0..8 {
            c.unlink(Fid::ROOT, format!("f{n}").as_bytes(), false).await.unwrap();
            let made = c.make_open(Fid::ROOT, format!("g{n}").as_bytes(), REG, None, true).await.unwrap();
            osts.extend(made.entry.layout.unwrap().components[0].stripes.clone());
        }
        osts
    });
    assert_eq!(osts, BTreeSet::from([OstIndex(0)]));
    c.world.start(node);
    c.run_ms(40_000);
    let (report, osts) = c.check();
    assert_eq!(report.destroys, 0);
    assert_eq!(osts.iter().map(|o| o.objects).sum::<u64>(), 0);
}

#[test]
fn an_ost_that_comes_later_is_as_the_administrator_wants_all_of_them_for_good() {
    let mut c = Cluster::new(9, 1, 1);
    let active = |c: &mut Cluster| c.run(0, |c| async move { param(&c, "osp.*.active").await });
    c.run(0, |c| async move {
        c.make(Fid::ROOT, b"f", REG).await.unwrap();
        c.mgs
            .call(&SetPermanentParam { name: "osp.*.active".into(), value: Some("0".into()) })
            .await
            .unwrap();
    });
    c.run_ms(5000);
    assert_eq!(active(&mut c), "0");
    c.add_target::<Ost>("demo-OST0001", 65, 1 << 30);
    c.run_ms(5000);
    assert_eq!(active(&mut c), "00");
    c.restart();
    let created = c.run(0, |c| async move { c.make(Fid::ROOT, b"g", REG).await });
    assert_eq!(created, Err(Failure::ENOSPC));
    assert_eq!(active(&mut c), "00");
}

#[test]
fn changes_happen_once_over_lost_connections_and_restarts() {
    for seed in 0..6 {
        let mut c = Cluster::new(100 + seed, 2, 2);
        let job = |me: u64| {
            move |c: std::rc::Rc<support::Client>| async move {
                let dir = c.make(Fid::ROOT, format!("d{me}").as_bytes(), DIR).await.unwrap();
                for n in 0..40u64 {
                    let (a, b) = (format!("a{n}"), format!("b{n}"));
                    let made = c.make_open(dir, a.as_bytes(), REG, Some((n, O_RDWR)), true).await.unwrap();
                    assert!(made.created);
                    c.rename((dir, a.as_bytes()), (dir, b.as_bytes()), 0).await.unwrap();
                    c.setattr(made.entry.attr.fid, SetAttr { uid: Some(5), ..SetAttr::default() })
                        .await
                        .unwrap();
                    c.close(made.entry.attr.fid, n, false, None).await.unwrap();
                    if n % 2 == 0 {
                        c.unlink(dir, b.as_bytes(), false).await.unwrap();
                    }
                }
                let page = c.readdir(dir, 0, 1000).await;
                assert_eq!(page.entries.len(), 20);
            }
        };
        let (a, b) = (c.start(0, job(0)), c.start(1, job(1)));
        let mut rounds = 0;
        while a.borrow().is_none() || b.borrow().is_none() {
            rounds += 1;
            assert!(rounds < 4000, "it does not end, seed {seed}:\n{}", c.world.trace(40));
            c.run_ms(20);
            match c.world.rng().below(12) {
                0 => c.restart(),
                1..=3 => {
                    let node = [c.mdt, c.client_node(0), c.client_node(1)][rounds % 3];
                    c.world.cut_some_link(node);
                }
                _ => {}
            }
        }
        c.run_ms(20_000);
        let (report, osts) = c.check();
        assert_eq!((report.entries, report.opens), (42, 0), "seed {seed}");
        assert_eq!(osts.iter().map(|o| o.objects).sum::<u64>(), 0);
    }
}

#[test]
fn layouts_come_from_the_request_the_directory_and_the_default() {
    let mut c = Cluster::new(10, 3, 1);
    c.run_ms(3000); // the MDT knows all OSTs
    c.run(0, |c| async move {
        let dir = c.make(Fid::ROOT, b"d", DIR).await.unwrap();
        let template = LayoutTemplate {
            stripe_count: 2,
            stripe_bytes: 4 << 20,
            first_ost: -1,
            ..LayoutTemplate::default()
        };
        let set = |fid, template| SetLayout { fid, template, caller: Caller::root(), time: c.now() };
        c.call(&set(dir, template)).await.unwrap();
        let sub = c.make(dir, b"sub", DIR).await.unwrap();
        let f = c.make(sub, b"f", REG).await.unwrap();
        let told = c.call(&GetLayout { fid: f }).await.unwrap();
        let component = &told.layout.unwrap().components[0];
        assert_eq!((component.stripes.len(), component.stripe_bytes), (2, 4 << 20));
        assert_eq!((told.default.stripe_count, told.default.stripe_bytes), (1, 1 << 20));
        assert_eq!(c.call(&GetLayout { fid: sub }).await.unwrap().template, Some(template));
        // Never written: it may change; then not any more.
        let all = LayoutTemplate { stripe_count: -1, stripe_bytes: 0, first_ost: 2, dom_bytes: Some(0) };
        let reply = c.call(&set(f, all)).await.unwrap();
        let layout = reply.layout.unwrap();
        let osts: Vec<u32> = layout.components[0].stripes.iter().map(|o| o.0).collect();
        assert_eq!((layout.generation, osts), (1, vec![2, 0, 1]));
        let reply = c.open(f, 1, O_RDWR).await.unwrap();
        let state = c.write(&reply, 0, 1).await;
        c.close(f, 1, true, written(&state)).await.unwrap();
        assert_eq!(c.call(&set(f, template)).await.map(|_| ()), Err(Failure::EEXIST));
        let odd = LayoutTemplate { stripe_bytes: 1000, ..template };
        assert_eq!(c.call(&set(dir, odd)).await.map(|_| ()), Err(Failure::EINVAL));
        let unknown = LayoutTemplate { first_ost: 9, ..template };
        c.call(&set(dir, unknown)).await.unwrap();
        assert_eq!(c.make(dir, b"x", REG).await, Err(Failure::ENXIO));
        let links = c.call(&FidLinks { fid: f, caller: Caller::root() }).await.unwrap().links;
        assert_eq!(links, [(sub, bytes::Bytes::from_static(b"f"))]);
    });
    c.check();
}

#[test]
fn names_are_told_by_fid_only_to_who_could_have_found_them() {
    let mut c = Cluster::new(12, 1, 1);
    c.run(0, |c| async move {
        let private = c.make(Fid::ROOT, b"private", DIR).await.unwrap();
        let below = c.make(private, b"below", DIR).await.unwrap();
        let file = c.make(below, b"file", REG).await.unwrap();
        let who = |uid, gid, groups: &[u32]| Caller { uid, gid, pid: 1, umask: 0, groups: groups.to_vec() };
        let ask = |fid, caller| {
            let c = c.clone();
            async move { c.call(&FidLinks { fid, caller }).await.map(|reply| reply.links.len()) }
        };
        let owned =
            |uid, mode| SetAttr { uid: Some(uid), gid: Some(70), mode: Some(mode), ..SetAttr::default() };
        c.setattr(Fid::ROOT, owned(0, 0o755)).await.unwrap();
        c.setattr(private, owned(7, 0o700)).await.unwrap();
        c.setattr(below, owned(7, 0o755)).await.unwrap();
        c.setattr(file, owned(9, 0o644)).await.unwrap();
        for (caller, of_below) in [
            (Caller::root(), Ok(1)),
            (who(7, 1, &[]), Ok(1)),
            (who(8, 1, &[]), Err(Failure::EACCES)),
            (who(8, 70, &[]), Err(Failure::EACCES)),
        ] {
            assert_eq!(ask(below, caller.clone()).await, of_below, "{caller:?}");
            assert_eq!(ask(private, caller.clone()).await, Ok(1), "{caller:?}: the root is open to all");
            assert_eq!(ask(file, caller).await, Ok(1), "of one step the directory itself decides");
        }
        // The group, also a supplementary one; what can be searched but not listed is told to owners only.
        c.setattr(private, owned(7, 0o750)).await.unwrap();
        assert_eq!(ask(below, who(8, 1, &[3, 70])).await, Ok(1));
        assert_eq!(ask(below, who(8, 1, &[3])).await, Err(Failure::EACCES));
        c.setattr(private, owned(7, 0o711)).await.unwrap();
        assert_eq!(ask(below, who(8, 1, &[])).await, Err(Failure::EACCES));
        c.setattr(below, owned(9, 0o711)).await.unwrap();
        assert_eq!(ask(file, who(9, 1, &[])).await, Ok(1));
        assert_eq!(ask(below, who(9, 1, &[])).await, Ok(1), "the owner of what is named");
        // A link elsewhere is told alone.
        let time = c.now();
        let link =
            Link { fid: file, parent: Fid::ROOT, name: name_of(b"link"), caller: Caller::root(), time };
        c.call(&link).await.unwrap();
        assert_eq!(ask(file, who(8, 1, &[])).await, Ok(1));
        assert_eq!(ask(file, Caller::root()).await, Ok(2));
        assert_eq!(ask(Fid::ROOT, who(8, 1, &[])).await, Ok(0));
    });
    c.check();
}

#[test]
fn owners_of_objects_follow_a_chown() {
    let mut c = Cluster::new(11, 1, 1);
    c.run(0, |c| async move {
        let made = c.make_open(Fid::ROOT, b"f", REG, Some((1, O_RDWR)), true).await.unwrap();
        let fid = made.entry.attr.fid;
        let state = c.write(&made.entry, 0, 9000).await;
        c.close(fid, 1, true, written(&state)).await.unwrap();
        c.setattr(fid, SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() }).await.unwrap();
    });
    c.run_ms(5000);
    let (report, osts) = c.check();
    assert_eq!(report.owners.get(&Owner { uid: 7, gid: 8, projid: 0 }), Some(&1));
    assert_eq!((osts[0].objects, osts[0].problems), (1, 0));
}

#[test]
fn a_clean_stop_keeps_the_reservation_and_a_kill_does_not_lose_files() {
    let mut c = Cluster::new(12, 1, 1);
    c.run(0, |c| async move { c.make(Fid::ROOT, b"a", REG).await.unwrap() });
    c.stop_mdt();
    let node = c.mdt;
    c.world.start(node);
    c.run(0, |c| async move {
        c.make(Fid::ROOT, b"b", REG).await.unwrap();
        assert_eq!(c.readdir(Fid::ROOT, 0, 10).await.entries.len(), 2);
    });
    let (report, _) = c.check();
    assert_eq!(report.inodes, 3);
}

/// The rows of the reservation that it kept go at the start.
#[test]
fn a_target_whose_disk_others_have_filled_starts_and_what_is_there_can_be_removed() {
    let mut c = Cluster::new(13, 1, 1);
    c.run(0, |c| async move { c.make(Fid::ROOT, b"a", REG).await.unwrap() });
    c.run_ms(3000);
    c.stop_mdt();
    c.fill_disk_of_mdt();
    let node = c.mdt;
    c.world.start(node);
    c.run(0, |c| async move {
        assert_eq!(c.make(Fid::ROOT, b"b", DIR).await, Err(Failure::ENOSPC));
        c.unlink(Fid::ROOT, b"a", false).await.unwrap();
    });
    let (report, _) = c.check();
    assert_eq!(report.inodes, 1);
}

/// The most bytes that an MDT keeps of a file fit into the change that makes them.
#[test]
fn a_file_of_the_mdt_grows_to_the_most_bytes_by_a_truncate() {
    let mut c = Cluster::new(14, 1, 1);
    c.run(0, |c| async move {
        let file = c.make(Fid::ROOT, b"file", REG).await.unwrap();
        let template = LayoutTemplate { dom_bytes: Some(DOM_BYTES_MAX), ..LayoutTemplate::default() };
        let kept = SetLayout { fid: file, template, caller: Caller::root(), time: c.now() };
        c.call(&kept).await.unwrap();
        let size = u64::from(DOM_BYTES_MAX);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        let truncate = Setattr { fid: file, set, caller: Caller::root(), time: c.now() };
        assert_eq!(c.call(&truncate).await.map(|reply| reply.attr.size), Ok(size));
        let read = c.call(&ReadData { fid: file }).await.unwrap();
        assert_eq!(read.data.map(|data| data.len() as u64), Some(size));
    });
    c.check();
}

/// Changes that wait for locks of an earlier start wait without slots, like those that wait for locks of this one.
#[test]
fn a_client_opens_a_file_while_its_changes_wait_for_locks_of_an_earlier_start() {
    let mut c = Cluster::new(15, 1, 2);
    let file = c.run(0, |c| async move { c.make(Fid::ROOT, b"file", REG).await.unwrap() });
    c.run(1, |c| async move { c.keep_locks() });
    c.restart();
    let made: Vec<_> = (0..10u8)
        .map(|n| c.start(0, move |c| async move { c.make(Fid::ROOT, &[b'a' + n], DIR).await.map(drop) }))
        .collect();
    c.run_ms(3000); // the recovery has ended
    assert!(made.iter().all(|made| made.borrow().is_none()), "they wait");
    let begun = c.world.now_ns();
    c.run(0, move |c| async move { c.open(file, 1, O_RDONLY).await.unwrap() });
    let waited_ms = (c.world.now_ns() - begun) / 1_000_000;
    assert!(waited_ms < 1000, "{waited_ms} ms");
    for made in &made {
        assert_eq!(c.wait(made), Ok(()));
    }
    c.check();
}
