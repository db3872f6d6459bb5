//! The parameters of all islands of a cluster against the table: each row has an owner that shows and sets it.

mod support;

use nacre_wire::params::{CLEAR, GROUPS, Kind, Row, SetWhen, row_of};
use std::collections::BTreeSet;
use support::{SEC, cluster, run};

/// Rows of the FUSE front end, which the simulator does not have (`nacre/tests/tools.rs`).
const FRONT: &str = "Requests of the kernel to a mount";

fn name_of(row: &Row, component: &str) -> String {
    row.name(&format!("{component}.*"), "*")
}

fn check(name: &str, value: &str, seen: &mut BTreeSet<String>) -> &'static Row {
    let row = row_of(name).unwrap_or_else(|| panic!("{name} is not in the table"));
    let component = name.split('.').next().expect("a component");
    assert!(row.components.contains(&component), "{name}");
    seen.insert(name_of(row, component));
    if let Kind::Gauge(_) = row.kind {
        assert!(value.parse::<u64>().is_ok(), "{name} is no number: {value:?}");
    }
    row
}

/// A value to set that changes little: the present one.
fn same<'a>(row: &Row, value: &'a str) -> &'a str {
    match row.kind {
        Kind::Counters(_) => CLEAR,
        Kind::Work(_) => "stop",
        _ => value,
    }
}

#[test]
fn every_row_has_an_owner_that_shows_and_sets_it() {
    let mut c = cluster(1, 1, 1);
    c.world.run_for(2 * SEC); // the MDT knows the OST
    let mut seen = BTreeSet::new();
    for (server, name, value) in c.params(|_| true) {
        let row = check(&name, &value, &mut seen);
        if matches!(row.set, SetWhen::Running | SetWhen::Permanently) {
            let servers = c.servers.clone();
            let number = servers.iter().position(|node| c.world.name(*node) == server).expect("a server");
            c.set_param(number, &name, same(row, &value));
        }
    }
    let mount = c.mounts[0];
    let of_mount = run(&mut c, mount, async |client| {
        for param in client.params() {
            let row = row_of(&param.name).unwrap_or_else(|| panic!("{} is not in the table", param.name));
            let set = client.set_param(&param.name, same(row, &param.value));
            assert_eq!(set.is_ok(), param.writable, "{}: {set:?}", param.name);
            assert_eq!(set.is_err_and(|why| why.contains("read-only")), !param.writable, "{}", param.name);
        }
        client.params().into_iter().map(|p| (p.name, p.value)).collect::<Vec<_>>()
    });
    for (name, value) in of_mount {
        check(&name, &value, &mut seen);
    }
    for group in GROUPS.iter().filter(|group| group.title != FRONT) {
        for row in group.rows {
            for component in row.components {
                assert!(seen.contains(&name_of(row, component)), "nobody shows {}", name_of(row, component));
            }
        }
    }
}
