use std::fmt;

/// The longest subject the relay publishes to, in bytes.
///
/// nats-server reads a protocol line of at most 4,096 bytes by default (`max_control_line`), and
/// the subject shares it with the reply inbox and two sizes.
pub const SUBJECT_BYTES_MAX: usize = 1_024;

/// A subject that a message can be published to: non-empty tokens parted by dots, no wildcard, no
/// white space, no control character, at most [`SUBJECT_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(String);

/// Why a text is not a subject to publish to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The subject has no token, or an empty one.
    #[error("subject `{0}` has an empty token")]
    EmptyToken(String),
    /// The subject holds a character that the protocol or a wildcard claims.
    #[error("subject {0:?} has the character {1:?}, which is not allowed in a subject")]
    Character(String, char),
    /// The subject is longer than [`SUBJECT_BYTES_MAX`].
    #[error("subject of {0} bytes is over the limit of {SUBJECT_BYTES_MAX}")]
    TooLong(usize),
}

impl Subject {
    /// Checks a subject.
    ///
    /// # Errors
    /// Names the first fault, see [`SubjectError`].
    pub fn new(text: impl Into<String>) -> Result<Self, SubjectError> {
        let text = text.into();
        if text.len() > SUBJECT_BYTES_MAX {
            return Err(SubjectError::TooLong(text.len()));
        }
        if let Some(bad) =
            text.chars().find(|&c| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>'))
        {
            return Err(SubjectError::Character(text, bad));
        }
        if text.split('.').any(str::is_empty) {
            return Err(SubjectError::EmptyToken(text));
        }
        Ok(Self(text))
    }

    /// The subject as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Writes any text as one subject token.
///
/// ASCII letters, digits, `-`, `_`, `~`, `:`, `@`, `+`, `=` and `,` stand for themselves; every
/// other byte of the UTF-8 form is written `%XX`; the empty text is a lone `%`. So no two texts
/// share a token and [`unescape_token`] gives the text back.
#[must_use]
pub fn escape_token(text: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    if text.is_empty() {
        return "%".to_owned();
    }
    let mut token = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~:@+=,".contains(&byte) {
            token.push(char::from(byte));
        } else {
            token.push('%');
            token.push(char::from(HEX[usize::from(byte >> 4)]));
            token.push(char::from(HEX[usize::from(byte & 0xF)]));
        }
    }
    token
}

/// Gives back the text that [`escape_token`] wrote; `None` when the token is not one of its own.
#[must_use]
pub fn unescape_token(token: &str) -> Option<String> {
    if token == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(token.len());
    let mut rest = token.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = tail.get(..2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.is_empty() && escape_token(&text) == token).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_as_documented() {
        for (text, token) in [
            ("A", "A"),
            ("order-7_b", "order-7_b"),
            ("urn:x@y+z=1,2~", "urn:x@y+z=1,2~"),
            ("", "%"),
            ("a b", "a%20b"),
            ("a.b", "a%2Eb"),
            ("*", "%2A"),
            (">", "%3E"),
            ("a\tb", "a%09b"),
            ("a\r\nPUB evil 1", "a%0D%0APUB%20evil%201"),
            ("café", "caf%C3%A9"),
            ("%41", "%2541"),
            ("$JS", "%24JS"),
            ("%", "%25"),
        ] {
            assert_eq!(escape_token(text), token);
            assert_eq!(unescape_token(token).as_deref(), Some(text));
            assert!(Subject::new(format!("events.{token}")).is_ok());
        }
    }

    #[test]
    fn foreign_tokens_are_not_decoded() {
        for token in ["", "%4", "%zz", "%41", "%c3%a9", "%FF", "a b", "%+1"] {
            assert_eq!(unescape_token(token), None, "{token}");
        }
    }

    #[test]
    fn subjects_name_their_fault() {
        assert_eq!(Subject::new(""), Err(SubjectError::EmptyToken(String::new())));
        assert_eq!(Subject::new("a..b"), Err(SubjectError::EmptyToken("a..b".into())));
        assert_eq!(Subject::new("a.*"), Err(SubjectError::Character("a.*".into(), '*')));
        assert_eq!(Subject::new("a b"), Err(SubjectError::Character("a b".into(), ' ')));
        assert_eq!(Subject::new("a".repeat(1_025)), Err(SubjectError::TooLong(1_025)));
        assert!(Subject::new("a".repeat(1_024)).is_ok());
    }

    proptest! {
        #[test]
        fn escaping_is_reversible_and_legal(text in any::<String>()) {
            let token = escape_token(&text);
            prop_assert!(!token.contains('.') && token.is_ascii());
            prop_assert_eq!(unescape_token(&token), Some(text));
            if token.len() <= SUBJECT_BYTES_MAX {
                prop_assert!(Subject::new(token).is_ok());
            }
        }

        #[test]
        fn unescape_gives_only_its_own_back(token in "[%A-F0-9a-z.]{0,12}") {
            if let Some(text) = unescape_token(&token) {
                prop_assert_eq!(escape_token(&text), token);
            }
        }
    }
}
