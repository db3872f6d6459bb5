//! The parameters of all processes (`lctl get_param`, `set_param`, `list_param`) in one table.
//!
//! How to add one: write its row in `table.rs` and its arm in the `match` of its owner, the file named beside the rows.
//! A row without an arm does not compile. The row gives the range check, the help of `lctl`, what `set_param -P` accepts,
//! the metric, and, with `NACRE_BLESS=1 cargo test -p nacre-wire --test parameters`, the page `docs/parameters.md`.
//!
//! - `table.rs`: the rows; `row.rs`: what a row says; `value.rs`: values as texts.
//! - `bind.rs`: rows bound to the state of an owner, which lists and sets them.
//! - `lookup.rs`: rows by name, permanent values, similar names; `pattern.rs`: patterns of names.
//!
//! Not here: the values that the MGS stores (`nacre-mgs`, `nacre-target/src/params/permanent.rs`), and the options of the
//! command line (`nacre/src/cmd/`).

mod bind;
mod lookup;
mod pattern;
mod row;
mod table;
mod value;

pub use bind::{Arm, BoundParam, Key, apply_permanent, bind, set_matching};
pub use lookup::{NotPermanent, check_permanent, explain_unmatched, permanent_rows, row_of};
pub use pattern::matches;
pub use row::{CLEAR, Calls, Default, Kind, Row, SetWhen, metric_name};
pub use table::*;
pub use value::Value;
