use event::{Position, SourceId, headers};
use relay_core::Occupant;

/// What the relay reads from the headers of a message in the stream, whoever wrote it.
///
/// Parsed from raw bytes: a foreign message may hold anything, a lone CR or broken UTF-8 included,
/// on which the client library's own parser must not be trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredHeaders {
    pub(crate) message_id: Option<String>,
    pub(crate) source: Option<String>,
    pub(crate) position: Option<String>,
    pub(crate) event_id: Option<String>,
    pub(crate) replay: Option<String>,
}

impl StoredHeaders {
    /// Reads a raw header block: the version line, then `name: value` lines, ended by CRLF.
    pub(crate) fn parse(raw: &[u8]) -> Self {
        let text = String::from_utf8_lossy(raw);
        let mut found = Self::default();
        for line in text.split("\r\n").skip(1) {
            let Some((name, value)) = line.split_once(':') else { continue };
            let field = if name.eq_ignore_ascii_case(headers::MESSAGE_ID) {
                &mut found.message_id
            } else if name.eq_ignore_ascii_case(headers::SOURCE) {
                &mut found.source
            } else if name.eq_ignore_ascii_case(headers::POSITION) {
                &mut found.position
            } else if name.eq_ignore_ascii_case(headers::EVENT_ID) {
                &mut found.event_id
            } else if name.eq_ignore_ascii_case(headers::REPLAY) {
                &mut found.replay
            } else {
                continue;
            };
            field.get_or_insert_with(|| value.trim().to_owned());
        }
        found
    }

    fn writer(&self, relay: &str) -> Option<SourceId> {
        let source: SourceId = self.source.as_deref()?.parse().ok()?;
        (source.relay == relay).then_some(source)
    }

    /// Whether the message is this relay's, published once more out of its place.
    pub(crate) fn is_replay(&self, relay: &str) -> bool {
        self.replay.is_some() && self.writer(relay).is_some()
    }

    /// The writer and the position, if the message is this relay's at its place; the text at fault
    /// if it says so but cannot be read.
    pub(crate) fn ours(&self, relay: &str) -> Result<Option<(SourceId, Position)>, String> {
        let Some(source) = self.writer(relay).filter(|_| self.replay.is_none()) else {
            return Ok(None);
        };
        let position = self.position.as_deref().unwrap_or_default();
        match position.parse() {
            Ok(position) => Ok(Some((source, position))),
            Err(error) => Err(error.to_string()),
        }
    }

    pub(crate) fn occupant(&self, relay: &str) -> Occupant {
        match self.ours(relay) {
            Ok(Some((_, position))) => Occupant::Ours(position),
            Ok(None) if self.is_replay(relay) => Occupant::Replayed,
            Ok(None) | Err(_) => Occupant::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_headers_are_found_among_others() {
        let raw = b"NATS/1.0\r\nX: y\r\nnats-msg-id: t:1\r\nOutbox-Source: a/b/7/1\r\n\
                    Outbox-Position: 0/10:2\r\n\r\n";
        let headers = StoredHeaders::parse(raw);
        assert_eq!(headers.message_id.as_deref(), Some("t:1"));
        let (source, position) = headers.ours("a/b").unwrap().unwrap();
        assert_eq!((source.system_identifier, source.timeline), (7, 1));
        assert_eq!(position.to_string(), "0/10:2");
        assert_eq!(headers.ours("a"), Ok(None));
        assert_eq!(headers.occupant("a"), Occupant::Foreign);
    }

    #[test]
    fn a_replay_has_no_place() {
        let raw = b"NATS/1.0\r\nOutbox-Source: shop/7/1\r\nOutbox-Replay: by hand\r\n\r\n";
        let headers = StoredHeaders::parse(raw);
        assert_eq!(
            (headers.ours("shop"), headers.occupant("shop")),
            (Ok(None), Occupant::Replayed)
        );
        assert_eq!(headers.occupant("other"), Occupant::Foreign);
    }

    #[test]
    fn hostile_headers_are_foreign_or_named() {
        for raw in [&b""[..], b"NATS/1.0", b"NATS/1.0\r\n\xff\xfe: \r\r\n\n:\r\nOutbox-Source:\r\n"]
        {
            assert_eq!(StoredHeaders::parse(raw).ours("shop"), Ok(None));
        }
        let raw = b"NATS/1.0\r\nOutbox-Source: shop/7/1\r\nOutbox-Position: \xff\r\n\r\n";
        assert!(StoredHeaders::parse(raw).ours("shop").is_err());
    }
}
