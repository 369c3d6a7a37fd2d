use std::time::Duration;

use event::Subject;

/// Everything that decides how the core behaves. Built by configuration, already validated.
#[derive(Clone, Debug)]
pub struct Options {
    /// The relay's name: part of its identity in headers and message ids.
    pub relay: String,
    /// The outbox tables and how their columns become events.
    pub outboxes: Vec<Outbox>,
    /// Whether a transaction is to appear in the stream at once, where the stream can do that.
    pub atomic_transactions: bool,
    /// How long the slot's confirmed position stays behind JetStream's acks.
    pub hold_back: Duration,
    /// How often at most a position is put on record so that it can be confirmed: each time is a
    /// write in the source database. A stop does not wait for it.
    pub confirm_interval: Duration,
    /// The most events in memory that JetStream has not acknowledged. At least 1.
    pub in_flight_events_max: usize,
    /// The most bytes (headers and body) in memory that JetStream has not acknowledged. One larger
    /// event still passes, alone.
    pub in_flight_bytes_max: usize,
    /// How long the oldest publish may wait for its ack before the session is given up.
    pub ack_timeout: Duration,
    /// The first pause after a failure; it doubles up to [`Options::retry_pause_max`].
    pub retry_pause_min: Duration,
    /// The longest pause between two tries.
    pub retry_pause_max: Duration,
    /// How long a stop waits for acks in flight.
    pub stop_timeout: Duration,
    /// Seeds the jitter of the pauses.
    pub seed: u64,
}

/// One outbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbox {
    /// The table's schema, as the catalog spells it.
    pub schema: String,
    /// The table's name, as the catalog spells it.
    pub table: String,
    /// What each field of the event is taken from.
    pub fields: Fields,
    /// Further columns, to headers of these names.
    pub headers: Vec<HeaderColumn>,
    /// Where events go.
    pub route: Route,
    /// Leads the message id, so that two tables with the same ids do not shadow each other.
    pub message_id_prefix: String,
}

/// Where the value of one field comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldSource {
    /// A column of the table.
    Column(String),
    /// The same text for every row.
    Constant(String),
}

/// The fields of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Unique for ever.
    pub event_id: FieldSource,
    /// The kind of aggregate.
    pub aggregate_type: FieldSource,
    /// The business key that order holds within.
    pub aggregate_id: FieldSource,
    /// An integer column, where the table has one.
    pub aggregate_version: Option<FieldSource>,
    /// What happened.
    pub event_type: FieldSource,
    /// The body.
    pub payload: FieldSource,
    /// When it happened, where the table says.
    pub occurred_at: Option<FieldSource>,
}

impl Fields {
    /// Each field that is set, with its name in the configuration.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &FieldSource)> {
        [
            ("event_id", Some(&self.event_id)),
            ("aggregate_type", Some(&self.aggregate_type)),
            ("aggregate_id", Some(&self.aggregate_id)),
            ("aggregate_version", self.aggregate_version.as_ref()),
            ("event_type", Some(&self.event_type)),
            ("payload", Some(&self.payload)),
            ("occurred_at", self.occurred_at.as_ref()),
        ]
        .into_iter()
        .filter_map(|(name, source)| source.map(|source| (name, source)))
    }
}

/// A column that goes to a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderColumn {
    /// The header's name.
    pub header: String,
    /// The column's name.
    pub column: String,
}

/// Where the events of one table go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The subject's parts, in order.
    pub subject: SubjectTemplate,
    /// Rules by event type; a type without a rule goes to [`Route::subject`].
    pub types: Vec<(String, TypeRule)>,
}

impl Route {
    /// The subject filters of everything that can be published.
    pub fn filters(&self) -> impl Iterator<Item = String> {
        let others = self.types.iter().filter_map(|(_, rule)| match rule {
            TypeRule::Drop => None,
            TypeRule::Subject(template) => Some(template.filter()),
        });
        std::iter::once(self.subject.filter()).chain(others)
    }
}

/// What happens to events of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TypeRule {
    /// Not published. Counted.
    Drop,
    /// Published to another subject.
    Subject(SubjectTemplate),
}

/// A subject with places for fields, as in `events.{aggregate_type}.{aggregate_id}`.
///
/// Each field is written as one escaped token part, so data can never add a token or a wildcard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectTemplate {
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplatePart {
    Text(String),
    Field(TemplateField),
}

/// A field that may stand in a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateField {
    /// `{aggregate_type}`
    AggregateType,
    /// `{aggregate_id}`
    AggregateId,
    /// `{event_type}`
    EventType,
}

impl TemplateField {
    const ALL: [(&'static str, Self); 3] = [
        ("aggregate_type", Self::AggregateType),
        ("aggregate_id", Self::AggregateId),
        ("event_type", Self::EventType),
    ];
}

/// Why a text is not a subject template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace without its partner.
    #[error("`{0}` has an unmatched brace")]
    Brace(String),
    /// A field that cannot stand in a subject.
    #[error(
        "`{{{0}}}` is not a field of a subject: use {{aggregate_type}}, {{aggregate_id}} or {{event_type}}"
    )]
    UnknownField(String),
    /// The text between the fields is not legal in a subject.
    #[error(transparent)]
    Subject(#[from] event::SubjectError),
}

impl SubjectTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// Names the first fault.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let open = rest.find(['{', '}']).unwrap_or(rest.len());
            if open > 0 {
                parts.push(TemplatePart::Text(rest[..open].to_owned()));
            }
            rest = &rest[open..];
            if let Some(inner) = rest.strip_prefix('{') {
                let close = inner.find('}').ok_or_else(|| TemplateError::Brace(text.to_owned()))?;
                let name = &inner[..close];
                let field = TemplateField::ALL.iter().find(|(known, _)| *known == name);
                let (_, field) =
                    field.ok_or_else(|| TemplateError::UnknownField(name.to_owned()))?;
                parts.push(TemplatePart::Field(*field));
                rest = &inner[close + 1..];
            } else if !rest.is_empty() {
                return Err(TemplateError::Brace(text.to_owned()));
            }
        }
        let template = Self { parts };
        template.render(|_| "x")?;
        Ok(template)
    }

    /// Writes the subject of an event from the values of its fields.
    ///
    /// # Errors
    /// The subject can still become too long.
    pub fn render<'v>(
        &self,
        value: impl Fn(TemplateField) -> &'v str,
    ) -> Result<Subject, event::SubjectError> {
        let mut subject = String::new();
        for part in &self.parts {
            match part {
                TemplatePart::Text(text) => subject.push_str(text),
                TemplatePart::Field(field) => subject.push_str(&event::escape_token(value(*field))),
            }
        }
        Subject::new(subject)
    }

    /// The narrowest subject filter that covers everything the template can write, with `*` for
    /// each token that holds a field.
    #[must_use]
    pub fn filter(&self) -> String {
        let marked: String = self
            .parts
            .iter()
            .map(|part| match part {
                TemplatePart::Text(text) => text.as_str(),
                TemplatePart::Field(_) => "*",
            })
            .collect();
        let tokens = marked.split('.').map(|token| if token.contains('*') { "*" } else { token });
        tokens.collect::<Vec<_>>().join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_render_escaped_tokens() {
        let template = SubjectTemplate::parse("events.{aggregate_type}.v1-{aggregate_id}").unwrap();
        let subject = template
            .render(|field| match field {
                TemplateField::AggregateType => "registration",
                TemplateField::AggregateId => "a.b *",
                TemplateField::EventType => unreachable!(),
            })
            .unwrap();
        assert_eq!(subject.as_str(), "events.registration.v1-a%2Eb%20%2A");
        assert_eq!(template.filter(), "events.*.*");
    }

    #[test]
    fn broken_templates_name_the_fault() {
        use TemplateError::{Brace, Subject, UnknownField};
        assert_eq!(SubjectTemplate::parse("a.{b"), Err(Brace("a.{b".into())));
        assert_eq!(SubjectTemplate::parse("a}.b"), Err(Brace("a}.b".into())));
        assert_eq!(SubjectTemplate::parse("a.{payload}"), Err(UnknownField("payload".into())));
        for text in ["", ".a", "a..{event_type}", "a b", "a.>", "a.*"] {
            assert!(matches!(SubjectTemplate::parse(text), Err(Subject(_))), "{text}");
        }
    }
}
