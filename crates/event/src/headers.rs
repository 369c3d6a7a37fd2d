//! The headers of a message: names, values, and how to read them back.
//!
//! Values of identity headers (event id, aggregate type and id) may be any text in the table; they
//! are percent-encoded where a header cannot hold them (control characters, a leading or trailing
//! blank, and `%` itself), and [`decode_value`] gives the text back. Every other value is written
//! as it is, and one that a header cannot hold is an [`InvalidHeader`].

use std::fmt;
use std::str::FromStr;

use crate::{Event, Position};

/// JetStream's message id, by which its duplicate window works.
pub const MESSAGE_ID: &str = "Nats-Msg-Id";
/// The media type of the body.
pub const CONTENT_TYPE: &str = "Content-Type";
/// The event id, encoded.
pub const EVENT_ID: &str = "Outbox-Event-Id";
/// The event type, for example `RegistrationConfirmed`.
pub const EVENT_TYPE: &str = "Outbox-Event-Type";
/// The aggregate type, encoded.
pub const AGGREGATE_TYPE: &str = "Outbox-Aggregate-Type";
/// The aggregate id, encoded.
pub const AGGREGATE_ID: &str = "Outbox-Aggregate-Id";
/// The aggregate's version, a decimal integer; absent where the table has none.
pub const AGGREGATE_VERSION: &str = "Outbox-Aggregate-Version";
/// When it happened, in PostgreSQL's text form; absent where the table does not say.
pub const OCCURRED_AT: &str = "Outbox-Occurred-At";
/// When the transaction committed, RFC 3339 in UTC with microseconds.
pub const COMMITTED_AT: &str = "Outbox-Committed-At";
/// The [`Position`] of the event.
pub const POSITION: &str = "Outbox-Position";
/// The [`SourceId`] the position belongs to.
pub const SOURCE: &str = "Outbox-Source";
/// Says `null` when the body is empty because the payload was SQL NULL.
pub const PAYLOAD: &str = "Outbox-Payload";

/// Says that the message is an event published once more, out of its place in the stream, and which
/// replay that was: `lost_tail/...` where the stream had lost it, `replay/...` where somebody asked
/// for it. Such a message has no [`POSITION`].
pub const REPLAY: &str = "Outbox-Replay";
/// Who asked for the replay, encoded.
pub const REPLAY_BY: &str = "Outbox-Replay-By";
/// Why, encoded.
pub const REPLAY_REASON: &str = "Outbox-Replay-Reason";
/// The [`Position`] that the replayed event had, where it is known.
pub const REPLAYED_POSITION: &str = "Outbox-Replayed-Position";

/// The largest header value the relay writes, in bytes.
///
/// nats-server has no limit of its own below `max_payload`, but clients buffer headers whole.
pub const VALUE_BYTES_MAX: usize = 16_384;

/// Which history a position belongs to: LSNs of two databases, or of two timelines of one
/// database, cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceId {
    /// The configured name of the relay.
    pub relay: String,
    /// PostgreSQL's system identifier, as IDENTIFY_SYSTEM reports it.
    pub system_identifier: u64,
    /// The timeline the server was on.
    pub timeline: u32,
}

impl fmt::Display for SourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.relay, self.system_identifier, self.timeline)
    }
}

/// The text is not a source id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a source: expected relay/system identifier/timeline")]
pub struct ParseSourceError(String);

impl FromStr for SourceId {
    type Err = ParseSourceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.rsplitn(3, '/');
            let timeline = parts.next()?.parse().ok()?;
            let system_identifier = parts.next()?.parse().ok()?;
            let relay = parts.next()?.to_owned();
            Some(Self { relay, system_identifier, timeline })
        };
        parse().ok_or_else(|| ParseSourceError(text.to_owned()))
    }
}

/// A header value that no NATS header can hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidHeader {
    /// The value has a line break or another control character.
    #[error("header {name}: the value has the control character {character:?}")]
    ControlCharacter {
        /// The header.
        name: String,
        /// The first such character.
        character: char,
    },
    /// The value is longer than [`VALUE_BYTES_MAX`].
    #[error("header {name}: the value of {bytes} bytes is over the limit of {VALUE_BYTES_MAX}")]
    TooLong {
        /// The header.
        name: String,
        /// The value's size.
        bytes: usize,
    },
}

/// Why an event is published once more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Names this replay, for ever.
    pub name: String,
    /// Who asked for it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Whether the event's position is its real one; that of a row read from a table is not.
    pub keeps_position: bool,
}

/// Header names and values in the order they are written; every value is one that a NATS header
/// can hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The headers of one event at its position.
    ///
    /// `committed_at` is PostgreSQL's commit time in microseconds since 2000-01-01 00:00 UTC.
    ///
    /// # Errors
    /// Names the header whose value cannot be written.
    pub fn of(
        event: &Event,
        message_id: &str,
        position: Position,
        source: &SourceId,
        committed_at: i64,
    ) -> Result<Self, InvalidHeader> {
        let mut headers = Self::default();
        headers.push(MESSAGE_ID, encode_value(message_id))?;
        headers.push(EVENT_ID, encode_value(&event.event_id))?;
        headers.push(EVENT_TYPE, event.event_type.clone())?;
        headers.push(AGGREGATE_TYPE, encode_value(&event.aggregate_type))?;
        headers.push(AGGREGATE_ID, encode_value(&event.aggregate_id))?;
        if let Some(version) = event.aggregate_version {
            headers.push(AGGREGATE_VERSION, version.to_string())?;
        }
        if let Some(occurred_at) = &event.occurred_at {
            headers.push(OCCURRED_AT, occurred_at.clone())?;
        }
        headers.push(COMMITTED_AT, rfc3339(committed_at))?;
        headers.push(POSITION, position.to_string())?;
        headers.push(SOURCE, source.to_string())?;
        match event.payload.content_type() {
            Some(content_type) => headers.push(CONTENT_TYPE, content_type.to_owned())?,
            None => headers.push(PAYLOAD, "null".to_owned())?,
        }
        for (name, value) in &event.extra_headers {
            headers.push(name, value.clone())?;
        }
        Ok(headers)
    }

    /// The headers of the same event, published once more: no longer at its place, with a message
    /// id of its own, so that no duplicate window swallows it.
    ///
    /// # Errors
    /// Names the header whose value cannot be written.
    pub fn replayed(self, replay: &Replay) -> Result<Self, InvalidHeader> {
        let position = self.get(POSITION).map(str::to_owned);
        let message_id = self.get(MESSAGE_ID).unwrap_or_default().to_owned();
        let mut headers = self.without(POSITION).without(MESSAGE_ID);
        let name = encode_value(&replay.name);
        headers.push(MESSAGE_ID, format!("{message_id}/{name}"))?;
        headers.push(REPLAY, name)?;
        headers.push(REPLAY_BY, encode_value(&replay.by))?;
        headers.push(REPLAY_REASON, encode_value(&replay.reason))?;
        if let (Some(position), true) = (position, replay.keeps_position) {
            headers.push(REPLAYED_POSITION, position)?;
        }
        Ok(headers)
    }

    fn push(&mut self, name: &str, value: String) -> Result<(), InvalidHeader> {
        if let Some(character) = value.chars().find(|c| c.is_control()) {
            return Err(InvalidHeader::ControlCharacter { name: name.to_owned(), character });
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(InvalidHeader::TooLong { name: name.to_owned(), bytes: value.len() });
        }
        self.0.push((name.to_owned(), value));
        Ok(())
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of a header, names compared without regard to case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// The same headers without one of them.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    /// Bytes that the headers take on the wire: the version line, `name: value` lines, the end.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        let lines: usize = self.0.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        "NATS/1.0\r\n".len() + lines + "\r\n".len()
    }
}

/// Whether a text can name a header: printable ASCII without blank, colon or quote.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Writes any text as a header value, see the module's description.
#[must_use]
pub fn encode_value(text: &str) -> String {
    use fmt::Write as _;
    let last = text.chars().count().saturating_sub(1);
    let mut value = String::with_capacity(text.len());
    for (index, character) in text.chars().enumerate() {
        let at_edge = index == 0 || index == last;
        if character == '%' || character.is_control() || (at_edge && character.is_whitespace()) {
            let mut buffer = [0; 4];
            for byte in character.encode_utf8(&mut buffer).bytes() {
                let _ = write!(value, "%{byte:02X}");
            }
        } else {
            value.push(character);
        }
    }
    value
}

/// Gives back the text that [`encode_value`] wrote; `None` when the escapes are broken.
#[must_use]
pub fn decode_value(value: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

const UNIX_DAYS_AT_2000: i64 = 10_957;

/// A PostgreSQL time (microseconds since 2000-01-01 00:00 UTC) in RFC 3339, UTC.
#[must_use]
pub fn rfc3339(microseconds: i64) -> String {
    const DAY: i64 = 86_400_000_000;
    let (days, of_day) = (microseconds.div_euclid(DAY), microseconds.rem_euclid(DAY));
    let (year, month, day) = civil_from_days(days + UNIX_DAYS_AT_2000);
    let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Reads what [`rfc3339`] wrote back, in microseconds since 2000-01-01 00:00 UTC.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, micros) = time.split_once('.')?;
    let mut time = time.splitn(3, ':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    let micros: i64 = micros.parse().ok()?;
    let days = days_from_civil(year, month, day) - UNIX_DAYS_AT_2000;
    if civil_from_days(days + UNIX_DAYS_AT_2000) != (year, month, day) {
        return None;
    }
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(seconds * 1_000_000 + micros)
}

/// The inverse of [`civil_from_days`], for years from 1 to 9999.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = (year.clamp(1, 9_999), month.clamp(1, 12));
    let year = if month <= 2 { year - 1 } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day.clamp(1, 31) - 1;
    let leap_days = year / 4 - year / 100 + year / 400;
    year * 365 + leap_days + day_of_year - 719_468
}

/// Days since 1970-01-01 to year, month and day of the proleptic Gregorian calendar, counted in
/// 400-year eras that begin on 1 March.
const fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lsn, Payload};
    use bytes::Bytes;
    use proptest::prelude::*;

    fn event() -> Event {
        Event {
            event_id: "e 1%".into(),
            aggregate_type: "registration".into(),
            aggregate_id: "a\r\nPUB evil 1".into(),
            aggregate_version: Some(7),
            event_type: "RegistrationConfirmed".into(),
            occurred_at: None,
            payload: Payload::Json(Bytes::from_static(b"{}")),
            extra_headers: vec![("tenant".into(), "café".into())],
        }
    }

    fn headers(event: &Event) -> Result<Headers, InvalidHeader> {
        let position = Position { commit_lsn: Lsn::new(0x10), ordinal: 2 };
        let source = SourceId { relay: "shop".into(), system_identifier: 7, timeline: 1 };
        Headers::of(event, "shop:e", position, &source, 0)
    }

    #[test]
    fn all_of_an_event_is_in_its_headers() {
        let headers = headers(&event()).unwrap();
        let expected = [
            ("Nats-Msg-Id", "shop:e"),
            ("Outbox-Event-Id", "e 1%25"),
            ("Outbox-Event-Type", "RegistrationConfirmed"),
            ("Outbox-Aggregate-Type", "registration"),
            ("Outbox-Aggregate-Id", "a%0D%0APUB evil 1"),
            ("Outbox-Aggregate-Version", "7"),
            ("Outbox-Committed-At", "2000-01-01T00:00:00.000000Z"),
            ("Outbox-Position", "0/10:2"),
            ("Outbox-Source", "shop/7/1"),
            ("Content-Type", "application/json"),
            ("tenant", "café"),
        ];
        assert_eq!(headers.iter().collect::<Vec<_>>(), expected);
        assert_eq!(headers.get("nats-msg-id"), Some("shop:e"));
        assert_eq!(headers.clone().without("Nats-Msg-Id").get("Nats-Msg-Id"), None);
    }

    #[test]
    fn a_null_payload_says_so() {
        let headers = headers(&Event { payload: Payload::Null, ..event() }).unwrap();
        assert_eq!(headers.get(PAYLOAD), Some("null"));
        assert_eq!(headers.get(CONTENT_TYPE), None);
    }

    #[test]
    fn values_a_header_cannot_hold_are_refused() {
        let broken = Event { event_type: "b\nX-Evil: 1".into(), ..event() };
        assert_eq!(
            headers(&broken),
            Err(InvalidHeader::ControlCharacter { name: EVENT_TYPE.into(), character: '\n' })
        );
        let long = Event { extra_headers: vec![("t".into(), "x".repeat(70_000))], ..event() };
        assert_eq!(headers(&long), Err(InvalidHeader::TooLong { name: "t".into(), bytes: 70_000 }));
    }

    #[test]
    fn wire_size_counts_every_byte() {
        let headers = Headers(vec![("a".into(), "bc".into())]);
        assert_eq!(headers.wire_bytes(), "NATS/1.0\r\na: bc\r\n\r\n".len());
    }

    #[test]
    fn times_are_utc() {
        assert_eq!(rfc3339(-1), "1999-12-31T23:59:59.999999Z");
        assert_eq!(rfc3339(5_097_600_000_000), "2000-02-29T00:00:00.000000Z");
        // 2026-12-01 11:41:20 UTC is 1 796 125 280 s after 1970, 849 440 480 s after 2000.
        assert_eq!(rfc3339(849_440_480_000_001), "2026-12-01T11:41:20.000001Z");
        for text in
            ["", "2026-12-01", "2026-02-30T00:00:00.0Z", "2026-12-01T11:41:20Z", "x-1-1T0:0:0.0Z"]
        {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn sources_round_trip_whatever_the_relay_is_called() {
        for relay in ["shop", "a/b", ""] {
            let source = SourceId { relay: relay.into(), system_identifier: u64::MAX, timeline: 3 };
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        assert!("shop/1".parse::<SourceId>().is_err());
    }

    proptest! {
        #[test]
        fn times_round_trip(micros in 0..3_155_760_000_000_000_i64) {
            prop_assert_eq!(parse_rfc3339(&rfc3339(micros)), Some(micros));
        }

        #[test]
        fn encoded_values_are_legal_and_reversible(text in any::<String>()) {
            let value = encode_value(&text);
            prop_assert!(!value.chars().any(char::is_control));
            prop_assert_eq!(value.trim(), value.as_str());
            prop_assert_eq!(decode_value(&value), Some(text));
        }
    }
}
