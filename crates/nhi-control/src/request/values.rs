//! Words that are neither numbers nor paths.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;

/// A way along a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// From its first end to its second
    Forth,
    /// From its second end to its first
    Back,
}

/// A ring of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RingKind {
    /// Frames the host sends
    Tx,
    /// Frames the host receives
    Rx,
}

/// Where control packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Towards {
    /// From the router to its host
    Host,
    /// From the host to its router
    Router,
}

macro_rules! display_as_value {
    ($($name:ty),*) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.to_possible_value() {
                    Some(value) => f.write_str(value.get_name()),
                    None => Ok(()),
                }
            }
        })*
    };
}
display_as_value!(Way, RingKind, Towards);

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Nanoseconds.
    pub nanos: u64,
}

/// Why a word is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    /// Of a time.
    #[error("a time is a whole number of ns, us, ms or s, as in 50us")]
    Span,
    /// Of bytes.
    #[error("bytes are pairs of hexadecimal digits")]
    Hex,
    /// Of a name.
    #[error("a name has 1 to 64 letters, digits or any of . _ - : / =")]
    Name,
}

/// Nanoseconds of each unit, the largest first.
const UNITS: [(&str, u64); 4] = [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];

impl FromStr for Span {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        if word == "0" {
            return Ok(Self { nanos: 0 });
        }
        let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = word.get(digits.len()..).unwrap_or_default();
        let (_, nanos) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or(ValueError::Span)?;
        let count: u64 = digits.parse().map_err(|_| ValueError::Span)?;
        let nanos = count.checked_mul(*nanos).ok_or(ValueError::Span)?;
        Ok(Self { nanos })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .iter()
            .find(|(_, unit)| self.nanos % unit == 0)
            .filter(|_| self.nanos > 0);
        match whole {
            Some((name, unit)) => write!(f, "{}{name}", self.nanos / unit),
            None => f.write_str("0"),
        }
    }
}

/// Bytes, written as hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hex(pub Vec<u8>);

impl FromStr for Hex {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = word.as_bytes().chunks(2).map(byte).collect();
        bytes.map(Self).ok_or(ValueError::Hex)
    }
}

impl fmt::Display for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The name of a mark: a word that needs no quoting anywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = ValueError;

    fn from_str(word: &str) -> Result<Self, ValueError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-:/=".contains(c);
        if word.is_empty() || word.len() > 64 || !word.chars().all(plain) {
            return Err(ValueError::Name);
        }
        Ok(Self(word.to_owned()))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_its_largest_whole_unit() {
        for (word, nanos, told) in [
            ("0", 0, "0"),
            ("0ms", 0, "0"),
            ("1500us", 1_500_000, "1500us"),
            ("2000us", 2_000_000, "2ms"),
            ("3s", 3_000_000_000, "3s"),
            ("7ns", 7, "7ns"),
        ] {
            let span: Span = word.parse().unwrap();
            assert_eq!((span.nanos, span.to_string().as_str()), (nanos, told));
        }
        for word in ["", "5", "us", "-1us", "1.5us", "1 us", "99999999999999999999s"] {
            assert_eq!(word.parse::<Span>(), Err(ValueError::Span), "{word}");
        }
    }

    #[test]
    fn bytes_are_pairs_of_digits() {
        assert_eq!("00fFa0".parse(), Ok(Hex(vec![0, 0xff, 0xa0])));
        for word in ["0", "0g", "é", "+1"] {
            assert_eq!(word.parse::<Hex>(), Err(ValueError::Hex), "{word}");
        }
    }

    #[test]
    fn a_name_needs_no_quoting() {
        assert!("bw.write.1024:a=1/2".parse::<Name>().is_ok());
        for word in ["", "a b", "\"", "é", &"x".repeat(65)] {
            assert_eq!(word.parse::<Name>(), Err(ValueError::Name), "{word}");
        }
    }
}
