//! Values of parameters: parsed from texts by their rows.

use crate::params::row::{CLEAR, Kind, Row};
use alloc::format;
use alloc::string::{String, ToString};
use core::num::IntErrorKind;

/// A value that a row accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Clears counters.
    Clear,
    /// A switch.
    Switch(bool),
    /// A number in the range of its row.
    Number(u64),
    /// One of the words of its row.
    Word(&'static str),
    /// A text that the owner checks.
    Text(String),
}

impl Value {
    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        if let Self::Number(n) = self { Some(*n) } else { None }
    }
}

impl Row {
    /// Parses a value.
    ///
    /// # Errors
    /// The reason for the user, with the values that are accepted.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let trimmed = text.trim();
        let invalid = || format!("Invalid argument ({})", self.values());
        match self.kind {
            Kind::Text | Kind::Report | Kind::Gauge(_) => Err("the parameter is read-only".to_string()),
            Kind::Counters(_) if matches!(trimmed, CLEAR | "0") => Ok(Value::Clear),
            Kind::Counters(_) => Err(format!("{}: counters can only be cleared", invalid())),
            Kind::Switch => match trimmed {
                "0" => Ok(Value::Switch(false)),
                "1" => Ok(Value::Switch(true)),
                _ => Err(invalid()),
            },
            Kind::Number { least, most, unit } => {
                let digits = if unit == "%" { trimmed.strip_suffix('%').unwrap_or(trimmed) } else { trimmed };
                match digits.parse::<i128>() {
                    Ok(n) if (i128::from(least)..=i128::from(most)).contains(&n) => {
                        Ok(Value::Number(n as u64))
                    }
                    Err(e) if matches!(e.kind(), IntErrorKind::InvalidDigit | IntErrorKind::Empty) => {
                        Err(invalid())
                    }
                    _ => Err(format!("Numerical result out of range ({})", self.values())),
                }
            }
            Kind::Words(words) | Kind::Work(words) => {
                words.iter().find(|word| **word == trimmed).map(|word| Value::Word(word)).ok_or_else(invalid)
            }
            Kind::Checked(_) => Ok(Value::Text(trimmed.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::row::{Calls, Default};

    #[test]
    fn a_value_out_of_range_is_refused_with_range_and_unit() {
        let number = Row::number("n", (1, 512, "requests"), Default::None, "");
        assert_eq!(number.parse(" 512\n"), Ok(Value::Number(512)));
        for beyond in ["0", "513", "-1", "99999999999999999999", &"9".repeat(60)] {
            let why = number.parse(beyond).expect_err("beyond the range");
            assert_eq!(why, "Numerical result out of range (1 to 512 requests)", "{beyond}");
        }
        for no_number in ["", "many", "1.5", "7%"] {
            assert_eq!(
                number.parse(no_number),
                Err("Invalid argument (1 to 512 requests)".into()),
                "{no_number}"
            );
        }
        let percent = Row::number("p", (0, 100, "%"), Default::None, "");
        assert_eq!(
            (percent.parse("17%"), percent.parse("17")),
            (Ok(Value::Number(17)), Ok(Value::Number(17)))
        );
    }

    #[test]
    fn counters_switches_and_words_take_nothing_else() {
        let counters = Row::counters("n", Calls::PerName, "");
        assert_eq!((counters.parse("clear"), counters.parse(" 0\n")), (Ok(Value::Clear), Ok(Value::Clear)));
        for bad in ["", "5", "1", "clean", "00"] {
            assert!(counters.parse(bad).is_err_and(|why| why.contains("clear or 0")), "{bad}");
        }
        let switch = Row::switch("s", true, "");
        assert_eq!((switch.parse("1"), switch.parse("2").is_err()), (Ok(Value::Switch(true)), true));
        let words = Row::words("w", &["open", "known"], "open", "");
        assert_eq!(words.parse("known "), Ok(Value::Word("known")));
        assert_eq!(words.parse("closed"), Err("Invalid argument (open or known)".into()));
        assert!(Row::text("t", "").parse("x").is_err_and(|why| why.contains("read-only")));
    }
}
