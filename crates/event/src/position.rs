use std::fmt;
use std::str::FromStr;

use crate::Lsn;

/// Where an event stands in its database's history: the commit LSN of its transaction and its
/// ordinal among the rows that transaction inserted.
///
/// PostgreSQL sends transactions in commit order and a transaction's rows in the order they were
/// written, and names the commit LSN in the Begin message. So positions are totally ordered, known
/// before the transaction has been read to its end, and the same after every restart. A row's own
/// LSN would not do: one COPY record gives many rows the same LSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The LSN of the transaction's commit record.
    pub commit_lsn: Lsn,
    /// Counts the rows inserted by the transaction, from 0.
    pub ordinal: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.commit_lsn, self.ordinal)
    }
}

/// The text is not a position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a position: expected an LSN, a colon and a row number, as in 16/B374D848:0"
)]
pub struct ParsePositionError {
    text: String,
}

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (lsn, ordinal) = text.split_once(':')?;
            if !ordinal.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            Some(Self { commit_lsn: lsn.parse().ok()?, ordinal: ordinal.parse().ok()? })
        };
        parse().ok_or_else(|| ParsePositionError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let position = Position { commit_lsn: Lsn::new(0x16_B374_D848), ordinal: 12 };
        assert_eq!(position.to_string(), "16/B374D848:12");
        assert_eq!("16/B374D848:12".parse(), Ok(position));
        for text in ["", "16/B374D848", "16/B374D848:", "16/B374D848:+1", "16/B374D848:x", ":1"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_commit_decides_before_the_row() {
        let at = |lsn, ordinal| Position { commit_lsn: Lsn::new(lsn), ordinal };
        assert!(at(1, 9) < at(2, 0));
        assert!(at(2, 0) < at(2, 1));
    }
}
