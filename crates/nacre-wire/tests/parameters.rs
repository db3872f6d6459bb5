//! The table of parameters and the page that is made from it, docs/parameters.md.

#![allow(clippy::unwrap_used, reason = "tests")]

use nacre_wire::params::{Default, GROUPS, Kind, Row, SetWhen};
use std::collections::BTreeSet;
use std::fmt::Write;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parameters.md");

/// `*` is left as it is; a bar would end the cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

fn when(row: &Row) -> String {
    let when = match row.set {
        SetWhen::Never => String::new(),
        SetWhen::AtStart(option) => format!("at the start: `{option}`"),
        SetWhen::Running => "while it runs".to_owned(),
        SetWhen::Permanently => "while it runs, `-P`".to_owned(),
    };
    if row.from_next_connect { format!("{when}; from the next connect on") } else { when }
}

fn page() -> String {
    let mut out = String::from(
        "# Parameters\n\
         \n\
         <!-- Made from crates/nacre-wire/src/params/table.rs: NACRE_BLESS=1 cargo test -p nacre-wire --test parameters -->\n\
         \n\
         `nacre lctl get_param NAME` shows a parameter, `set_param NAME=VALUE` sets it, and `set_param -P NAME=VALUE` sets it\n\
         in all processes, now and at each start. In the names below, `*` is the device, client, OST or file system; in a\n\
         pattern it stands for any text within one part. A parameter with an empty column *set* is only shown. The column\n\
         *metric* has its name at `/metrics` (option `--metrics`).\n",
    );
    for group in GROUPS {
        write!(
            out,
            "\n## {}\n\n| name | values | default | set | metric | meaning |\n|---|---|---|---|---|---|\n",
            group.title
        )
        .unwrap();
        for row in group.rows {
            let names: Vec<String> =
                row.components.iter().map(|c| code(&row.name(&format!("{c}.*"), "*"))).collect();
            let metrics: Vec<String> =
                row.components.iter().filter_map(|c| row.metric(c)).map(|m| code(&m)).collect();
            let cells = [
                names.join("<br>"),
                row.values(),
                row.default_text(),
                when(row),
                metrics.join("<br>"),
                row.help.to_owned(),
            ];
            writeln!(out, "| {} |", cells.map(|c| cell(&c)).join(" | ")).unwrap();
        }
    }
    out
}

#[test]
fn the_page_is_what_the_table_says() {
    let page = page();
    if std::env::var_os("NACRE_BLESS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        page == written,
        "docs/parameters.md is old: NACRE_BLESS=1 cargo test -p nacre-wire --test parameters"
    );
}

#[test]
fn rows_are_consistent() {
    let mut names = BTreeSet::new();
    for row in GROUPS.iter().flat_map(|group| group.rows) {
        for component in row.components {
            assert!(names.insert(format!("{component}.{}", row.field)), "{component}.{} twice", row.field);
        }
        let is_shown = matches!(row.kind, Kind::Text | Kind::Report | Kind::Gauge(_));
        assert_eq!(is_shown, row.set == SetWhen::Never, "{}", row.field);
        let has_default = !is_shown && !matches!(row.kind, Kind::Counters(_) | Kind::Work(_));
        assert_eq!(has_default, row.default != Default::None, "{}", row.field);
        if has_default && !matches!(row.default, Default::Computed(_)) {
            assert!(row.parse(&row.default_text()).is_ok(), "{} refuses its default", row.field);
        }
        assert!(row.help.ends_with('.') && !row.help.contains("  "), "{}: {:?}", row.field, row.help);
    }
}
