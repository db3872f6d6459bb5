//! Rows bound to the state of their owner: one arm per parameter reads it and, if it can be set, sets it.
//!
//! Invariant: an arm sets the kind of values that its row has. An arm that does not is a bug; listing shows it, because
//! [`BoundParam::new`] compares them.

use crate::mgs::PermanentParam;
use crate::params::pattern::matches;
use crate::params::row::{Kind, Row, SetWhen};
use crate::params::value::Value;
use crate::target::{Param, SetParamReply};
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// The keys of a group of rows: an enum of the table.
pub trait Key: Copy + 'static {
    /// All keys of the group.
    const ALL: &'static [Self];
    /// The row of a key.
    fn row(self) -> &'static Row;
}

type Set<'a, T> = Box<dyn FnOnce(T) -> Result<(), String> + 'a>;

enum Setter<'a> {
    ReadOnly,
    /// The row can be set, but not in this process, for a reason.
    Unavailable(&'static str),
    Clear(Set<'a, ()>),
    Switch(Set<'a, bool>),
    Number(Set<'a, u64>),
    Word(Set<'a, &'static str>),
    Text(Set<'a, String>),
}

/// The value of a parameter and the way to set it. A setter gets a value that the row has accepted.
pub struct Arm<'a> {
    value: Option<String>,
    setter: Setter<'a>,
}

impl<'a> Arm<'a> {
    fn new(value: impl ToString, setter: Setter<'a>) -> Self {
        Self { value: Some(value.to_string()), setter }
    }
    /// A parameter that is only shown.
    pub fn shown(value: impl ToString) -> Self {
        Self::new(value, Setter::ReadOnly)
    }
    /// The same; `None`: this process does not have it.
    pub fn shown_if(value: Option<impl ToString>) -> Self {
        Self { value: value.map(|value| value.to_string()), setter: Setter::ReadOnly }
    }
    /// A parameter that cannot be set in this process; the sentence says why.
    pub fn unavailable(value: impl ToString, reason: &'static str) -> Self {
        Self::new(value, Setter::Unavailable(reason))
    }
    /// Counters and how they are cleared.
    pub fn counters(value: impl ToString, clear: impl FnOnce() + 'a) -> Self {
        Self::new(
            value,
            Setter::Clear(Box::new(move |()| {
                clear();
                Ok(())
            })),
        )
    }
    /// A switch.
    pub fn switch(on: bool, set: impl FnOnce(bool) + 'a) -> Self {
        Self::new(
            u8::from(on),
            Setter::Switch(Box::new(move |on| {
                set(on);
                Ok(())
            })),
        )
    }
    /// A number. The value is a text because a unit may belong to it.
    pub fn number<T: TryFrom<u64>>(value: impl ToString, set: impl FnOnce(T) + 'a) -> Self {
        Self::checked_number(value, move |n| {
            set(n);
            Ok(())
        })
    }
    /// A number that the owner may refuse although it is in range; the error is the reason for the user.
    pub fn checked_number<T: TryFrom<u64>>(
        value: impl ToString,
        set: impl FnOnce(T) -> Result<(), String> + 'a,
    ) -> Self {
        let set =
            move |n: u64| set(T::try_from(n).map_err(|_| String::from("Numerical result out of range"))?);
        Self::new(value, Setter::Number(Box::new(set)))
    }
    /// One of the words of the row, or a request for work.
    pub fn word(value: impl ToString, set: impl FnOnce(&'static str) -> Result<(), String> + 'a) -> Self {
        Self::new(value, Setter::Word(Box::new(set)))
    }
    /// A text that the owner checks.
    pub fn text(value: impl ToString, set: impl FnOnce(String) -> Result<(), String> + 'a) -> Self {
        Self::new(value, Setter::Text(Box::new(set)))
    }
    fn suits(&self, row: &Row) -> bool {
        let is_fixed = matches!(row.set, SetWhen::Never | SetWhen::AtStart(_));
        match (&self.setter, row.kind) {
            (Setter::ReadOnly, _) => is_fixed,
            (Setter::Unavailable(_), _)
            | (Setter::Clear(_), Kind::Counters(_))
            | (Setter::Switch(_), Kind::Switch)
            | (Setter::Number(_), Kind::Number { .. })
            | (Setter::Word(_), Kind::Words(_) | Kind::Work(_))
            | (Setter::Text(_), Kind::Checked(_)) => !is_fixed,
            _ => false,
        }
    }
}

/// A parameter of this process.
pub struct BoundParam<'a> {
    row: &'static Row,
    name: String,
    value: String,
    setter: Setter<'a>,
}

impl<'a> BoundParam<'a> {
    /// Binds a row; `None`: this process does not have it. `prefix` and `part`: see [`Row::name`].
    ///
    /// # Panics
    /// The arm sets other values than the row has.
    pub fn new(row: &'static Row, prefix: &str, part: &str, arm: Arm<'a>) -> Option<Self> {
        assert!(arm.suits(row), "the arm of {prefix}.{} does not suit its row", row.field);
        let name = row.name(prefix, part);
        Some(Self { row, name, value: arm.value?, setter: arm.setter })
    }
    /// The full name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// The parameter as a message shows it.
    pub fn into_param(self) -> Param {
        let writable = !matches!(self.setter, Setter::ReadOnly | Setter::Unavailable(_));
        Param { name: self.name, value: self.value, writable, help: self.row.describe() }
    }
    /// Sets it.
    ///
    /// # Errors
    /// The sentence for the user, `NAME=VALUE: …`.
    pub fn set(self, text: &str) -> Result<(), String> {
        let done = match self.setter {
            Setter::ReadOnly => Err("the parameter is read-only".to_string()),
            Setter::Unavailable(reason) => Err(reason.to_string()),
            setter => self.row.parse(text).and_then(|value| match (setter, value) {
                (Setter::Clear(clear), Value::Clear) => clear(()),
                (Setter::Switch(set), Value::Switch(on)) => set(on),
                (Setter::Number(set), Value::Number(n)) => set(n),
                (Setter::Word(set), Value::Word(word)) => set(word),
                (Setter::Text(set), Value::Text(text)) => set(text),
                _ => unreachable!("the arm suits its row, see `new`"),
            }),
        };
        done.map_err(|reason| format!("{}={}: {reason}", self.name, text))
    }
}

/// Binds all rows of a group that the component of `prefix` has.
pub fn bind<'a, K: Key>(prefix: &str, part: &str, arm: impl Fn(K) -> Arm<'a>) -> Vec<BoundParam<'a>> {
    let component = prefix.split('.').next().unwrap_or_default();
    let rows = K::ALL.iter().filter(|key| key.row().components.contains(&component));
    rows.filter_map(|key| BoundParam::new(key.row(), prefix, part, arm(*key))).collect()
}

/// Sets every parameter that matches; reports the first refusal.
pub fn set_matching(params: Vec<BoundParam<'_>>, pattern: &str, value: &str) -> SetParamReply {
    let mut reply = SetParamReply { matched: 0, refused: String::new() };
    for param in params.into_iter().filter(|p| matches(pattern, &p.name)) {
        reply.matched += 1;
        if let Err(sentence) = param.set(value)
            && reply.refused.is_empty()
        {
            reply.refused = sentence;
        }
    }
    reply
}

/// Sets the permanent parameters of the MGS, in their order, as far as this process has them. Calls `refused` with each
/// refusal and the name that the MGS stores. `params` is called for each value, because setting consumes the list.
pub fn apply_permanent<'a>(
    params: impl Fn() -> Vec<BoundParam<'a>>,
    permanent: &[PermanentParam],
    refused: impl Fn(&str, &str),
) {
    for PermanentParam { name, value } in permanent {
        let is_meant = |p: &BoundParam<'_>| p.row.set == SetWhen::Permanently && matches(name, &p.name);
        for param in params().into_iter().filter(is_meant) {
            if let Err(reason) = param.set(value) {
                refused(&reason, name);
            }
        }
    }
}
