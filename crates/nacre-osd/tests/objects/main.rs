//! Byte objects against a model of plain byte vectors: random changes, restarts, crashes, damage, concurrent writers.

mod changes;
mod damage;
mod kills;
mod logged;
mod logged_races;
mod machine_loss;
mod many;
mod model;
mod rot;
mod scrub;
mod support;
mod sync_many;
