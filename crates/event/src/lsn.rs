use std::fmt;
use std::str::FromStr;

/// A byte position in PostgreSQL's write-ahead log.
///
/// Printed and parsed in PostgreSQL's own form, two hexadecimal halves (`16/B374D848`). `0/0` is
/// PostgreSQL's `InvalidXLogRecPtr`: it never names a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// The invalid LSN, below every real one.
    pub const ZERO: Self = Self(0);

    /// The LSN with this 64-bit value.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// The 64-bit value.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Bytes of log from `earlier` up to here; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text is not an LSN.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not an LSN: expected two hexadecimal numbers of at most 8 digits, as in 16/B374D848"
)]
pub struct ParseLsnError {
    text: String,
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            plain.then(|| u64::from_str_radix(digits, 16).ok()).flatten()
        };
        text.split_once('/')
            .and_then(|(high, low)| Some(Self(half(high)? << 32 | half(low)?)))
            .ok_or_else(|| ParseLsnError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_is_postgresqls() {
        for (value, text) in [
            (0, "0/0"),
            (0x16_B374_D848, "16/B374D848"),
            (0xFFFF_FFFF, "0/FFFFFFFF"),
            (0x1_0000_0000, "1/0"),
            (u64::MAX, "FFFFFFFF/FFFFFFFF"),
        ] {
            assert_eq!(Lsn::new(value).to_string(), text);
            assert_eq!(text.parse(), Ok(Lsn::new(value)));
        }
        assert_eq!("0/16b3748".parse(), Ok(Lsn::new(0x16B_3748)));
    }

    #[test]
    fn other_text_is_refused() {
        for text in ["", "/", "1", "1/", "/1", "g/0", "+1/0", "1/ 0", "123456789/0", "0/0/0"] {
            assert!(text.parse::<Lsn>().is_err(), "{text}");
        }
    }

    #[test]
    fn order_crosses_the_half() {
        assert!(Lsn::new(0xFFFF_FFFF) < Lsn::new(0x1_0000_0000));
        assert_eq!(Lsn::new(0x1_0000_0000).bytes_since(Lsn::new(0xFFFF_FFF0)), 0x10);
        assert_eq!(Lsn::new(1).bytes_since(Lsn::new(2)), 0);
    }
}
