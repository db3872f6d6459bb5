//! One row of the table of parameters: name, values, default, when it can be set, help, metric.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The value that clears counters, as replies show it.
pub const CLEAR: &str = "clear";

/// The values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A text that is only shown.
    Text,
    /// Lines `key: value` that are only shown; each number becomes a metric.
    Report,
    /// A number that is only shown, with its unit; empty: it has none.
    Gauge(&'static str),
    /// Counters, which can only be cleared.
    Counters(Calls),
    /// 0 or 1.
    Switch,
    /// A number from `least` to `most`. With the unit `%` the sign may follow it.
    Number {
        /// The smallest value.
        least: u64,
        /// The largest value.
        most: u64,
        /// The unit of the number.
        unit: &'static str,
    },
    /// One of some words.
    Words(&'static [&'static str]),
    /// A text that the owner checks, with a description of what it accepts.
    Checked(&'static str),
    /// Work that is started and stopped with one of some words, and is shown like a report.
    Work(&'static [&'static str]),
}

/// The contents of counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Lines `NAME n samples [unit] least greatest sum squares`.
    PerName,
    /// Requests by the number in flight.
    InFlight,
    /// A table for people, without metrics.
    Table,
}

/// The value that holds unless another one is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// The parameter is only shown, or counts.
    None,
    /// A number; a switch has 0 or 1.
    Number(u64),
    /// A word.
    Word(&'static str),
    /// The owner computes it as described.
    Computed(&'static str),
}

/// When a parameter can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetWhen {
    /// It is only shown.
    Never,
    /// With the named option, when the process starts.
    AtStart(&'static str),
    /// While the process runs.
    Running,
    /// While the process runs, and with `set_param -P` for good.
    Permanently,
}

/// A parameter. Its name is `COMPONENT.DEVICE.FIELD`.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// First parts of the name: all components that have this parameter.
    pub components: &'static [&'static str],
    /// The parts after the device. `*`: the name of one of several things, such as a client or an OST.
    pub field: &'static str,
    /// Its values.
    pub kind: Kind,
    /// Its default.
    pub default: Default,
    /// When it can be set.
    pub set: SetWhen,
    /// A new value holds for connections that begin afterwards, instead of at once.
    pub from_next_connect: bool,
    /// The meaning in full sentences, without range and default.
    pub help: &'static str,
}

const fn row(field: &'static str, kind: Kind, help: &'static str) -> Row {
    let (default, set) = (Default::None, SetWhen::Never);
    Row { components: &[], field, kind, default, set, from_next_connect: false, help }
}
const fn tunable(field: &'static str, kind: Kind, default: Default, help: &'static str) -> Row {
    let mut row = row(field, kind, help);
    (row.default, row.set) = (default, SetWhen::Permanently);
    row
}

/// Constructors of rows. A tunable can be set permanently unless a modifier says otherwise.
impl Row {
    /// A text that is only shown.
    pub const fn text(field: &'static str, help: &'static str) -> Self {
        row(field, Kind::Text, help)
    }
    /// Lines `key: value` that are only shown.
    pub const fn report(field: &'static str, help: &'static str) -> Self {
        row(field, Kind::Report, help)
    }
    /// A number that is only shown.
    pub const fn gauge(field: &'static str, unit: &'static str, help: &'static str) -> Self {
        row(field, Kind::Gauge(unit), help)
    }
    /// Counters. Clearing them cannot be permanent.
    pub const fn counters(field: &'static str, calls: Calls, help: &'static str) -> Self {
        row(field, Kind::Counters(calls), help).set(SetWhen::Running)
    }
    /// A tunable of 0 or 1.
    pub const fn switch(field: &'static str, default: bool, help: &'static str) -> Self {
        tunable(field, Kind::Switch, Default::Number(default as u64), help)
    }
    /// A tunable number with its range, unit and default.
    pub const fn number(
        field: &'static str,
        (least, most, unit): (u64, u64, &'static str),
        default: Default,
        help: &'static str,
    ) -> Self {
        tunable(field, Kind::Number { least, most, unit }, default, help)
    }
    /// A tunable that takes one of some words.
    pub const fn words(
        field: &'static str,
        words: &'static [&'static str],
        default: &'static str,
        help: &'static str,
    ) -> Self {
        tunable(field, Kind::Words(words), Default::Word(default), help)
    }
    /// A tunable text that its owner checks.
    pub const fn checked(
        field: &'static str,
        accepts: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        tunable(field, Kind::Checked(accepts), Default::Word(default), help)
    }

    /// Work that runs on request. A request cannot be permanent.
    pub const fn work(field: &'static str, words: &'static [&'static str], help: &'static str) -> Self {
        row(field, Kind::Work(words), help).set(SetWhen::Running)
    }

    /// Replaces the time at which it can be set.
    pub const fn set(mut self, set: SetWhen) -> Self {
        self.set = set;
        self
    }
    /// A new value holds for connections that begin afterwards.
    pub const fn from_next_connect(mut self) -> Self {
        self.from_next_connect = true;
        self
    }
    /// Only these components have the parameter, and not all of its group.
    pub const fn only(mut self, components: &'static [&'static str]) -> Self {
        self.components = components;
        self
    }
    pub(crate) const fn or_components(self, components: &'static [&'static str]) -> Self {
        if self.components.is_empty() { self.only(components) } else { self }
    }
}

/// The part of a row that its owner reads.
impl Row {
    /// The default of a number, for constants.
    ///
    /// # Panics
    /// The row has no such default, or it does not fit: a bug that a constant finds when it is compiled.
    pub const fn default_u32(&self) -> u32 {
        match self.default {
            Default::Number(n) if n <= u32::MAX as u64 => n as u32,
            _ => panic!("the row has no default that fits"),
        }
    }
    /// The same for a small number.
    ///
    /// # Panics
    /// As [`Row::default_u32`].
    pub const fn default_u16(&self) -> u16 {
        let n = self.default_u32();
        assert!(n <= u16::MAX as u32, "the default is no small number");
        n as u16
    }
    /// The default of a switch, for constants.
    ///
    /// # Panics
    /// The row is no switch.
    pub const fn default_switch(&self) -> bool {
        match (self.kind, self.default) {
            (Kind::Switch, Default::Number(n)) => n == 1,
            _ => panic!("the row is no switch"),
        }
    }
    /// The smallest and the largest value of a number.
    ///
    /// # Panics
    /// The row is no number.
    pub const fn range(&self) -> (u64, u64) {
        match self.kind {
            Kind::Number { least, most, .. } => (least, most),
            _ => panic!("the row is no number"),
        }
    }
    /// The full name. `prefix` is `COMPONENT.DEVICE`, `part` replaces the `*` of the field.
    pub fn name(&self, prefix: &str, part: &str) -> String {
        format!("{prefix}.{}", self.field.replace('*', part))
    }
}

/// The description of a row for people.
impl Row {
    /// The values it accepts, or the unit of a shown number: `1 to 512 requests`. Empty for a text that is only shown.
    pub fn values(&self) -> String {
        match self.kind {
            Kind::Text | Kind::Report => String::new(),
            Kind::Gauge(unit) => unit.to_string(),
            Kind::Counters(_) => format!("{CLEAR} or 0"),
            Kind::Switch => "0 or 1".to_string(),
            Kind::Number { least, most, unit } => format!("{least} to {most} {unit}"),
            Kind::Words(words) | Kind::Work(words) => words.join(" or "),
            Kind::Checked(accepts) => accepts.to_string(),
        }
    }
    /// The default as people write it; empty if there is none.
    pub fn default_text(&self) -> String {
        match (self.default, self.kind) {
            (Default::None, _) => String::new(),
            (Default::Number(n), Kind::Number { unit: "%", .. }) => format!("{n}%"),
            (Default::Number(n), _) => n.to_string(),
            (Default::Word(text) | Default::Computed(text), _) => text.to_string(),
        }
    }
    /// The help with values, default, and when it can be set.
    pub fn describe(&self) -> String {
        let mut details = Vec::from([self.values()]);
        if self.default != Default::None {
            details.push(format!("default {}", self.default_text()));
        }
        if let SetWhen::AtStart(option) = self.set {
            details.push(format!("set at the start with {option}"));
        }
        if self.from_next_connect {
            details.push("from the next connect on".to_string());
        }
        details.retain(|detail| !detail.is_empty());
        if details.is_empty() {
            self.help.to_string()
        } else {
            format!("{} [{}]", self.help, details.join(", "))
        }
    }
    /// The name of the metric, or the beginning of the names with their forms; `None` if it is not exported.
    pub fn metric(&self, component: &str) -> Option<String> {
        let name = metric_name(component, &self.field.split('.').collect::<Vec<_>>());
        match self.kind {
            Kind::Text | Kind::Words(_) | Kind::Checked(_) | Kind::Counters(Calls::Table) => None,
            Kind::Number { unit: "%", .. } => None,
            Kind::Gauge(_) | Kind::Switch | Kind::Number { .. } => Some(name),
            Kind::Report | Kind::Work(_) => Some(format!("{name}_KEY")),
            Kind::Counters(Calls::PerName) => {
                Some(format!("{name}_samples_total, _seconds_total, _bytes_total"))
            }
            Kind::Counters(Calls::InFlight) => Some(format!("{name} (histogram)")),
        }
    }
}

/// The name of a metric. Of the parts of a client's parameter (`exports.CLIENT.FIELD`) the client becomes a label, and of
/// those of `ldlm.namespaces` (`DEVICE.FIELD`) the device.
pub fn metric_name(component: &str, parts: &[&str]) -> String {
    let field = match parts {
        ["exports", _, field] => format!("exports_{field}"),
        [_, field] if component == "ldlm" => (*field).to_string(),
        _ => parts.join("_"),
    };
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    format!("nacre_{component}_{field}").chars().map(word).collect()
}
