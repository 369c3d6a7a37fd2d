use event::{Lsn, SourceId};
use postgres_source::{LogCopy, RowFilter, TableRows};
use relay_core::{Failure, LogReader, Outbox, ReadEvent, TableReader};

use crate::RelayOptions;

/// Events read outside the delivery, in the order in which they may be published.
pub(crate) enum Events {
    Log(Box<LogEvents>),
    Tables(Box<TableEvents>),
}

impl Events {
    /// The next events; `None` at the end. May be empty before it.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<ReadEvent>>, Failure> {
        match self {
            Self::Log(events) => events.next().await,
            Self::Tables(events) => events.next().await,
        }
    }
}

/// What the slot still holds.
pub(crate) struct LogEvents {
    copy: LogCopy,
    reader: LogReader,
    from: Lsn,
}

impl LogEvents {
    /// Events with a commit LSN of `from` or later.
    pub(crate) async fn open(
        options: &RelayOptions,
        source: &SourceId,
        from: Lsn,
    ) -> Result<Self, Failure> {
        let copy = LogCopy::open(&options.source).await?;
        let reader = LogReader::new(&options.core.outboxes, source.clone());
        Ok(Self { copy, reader, from })
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Vec<ReadEvent>>, Failure> {
        let messages = self.copy.next().await?;
        if messages.is_empty() {
            return Ok(None);
        }
        let mut events = Vec::new();
        for message in messages {
            let event = self.reader.read(message)?;
            events.extend(event.filter(|event| event.position.commit_lsn >= self.from));
        }
        Ok(Some(events))
    }
}

/// The rows of the outbox tables, one table after the other.
pub(crate) struct TableEvents {
    options: RelayOptions,
    source: SourceId,
    filter: RowFilter,
    tables: std::vec::IntoIter<Outbox>,
    open: Option<(TableRows, TableReader)>,
}

impl TableEvents {
    pub(crate) fn new(options: &RelayOptions, source: &SourceId, filter: &RowFilter) -> Self {
        Self {
            options: options.clone(),
            source: source.clone(),
            filter: filter.clone(),
            tables: options.core.outboxes.clone().into_iter(),
            open: None,
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Option<Vec<ReadEvent>>, Failure> {
        let (rows, reader) = match &mut self.open {
            Some(open) => open,
            None => {
                let Some(outbox) = self.tables.next() else { return Ok(None) };
                let rows = TableRows::open(&self.options.source, &outbox, &self.filter).await?;
                let reader =
                    TableReader::new(&outbox, rows.relation().clone(), self.source.clone())?;
                self.open.insert((rows, reader))
            }
        };
        let mut events = Vec::new();
        let found = rows.next().await?;
        for row in &found {
            let values: Vec<_> = row.iter().map(Option::as_deref).collect();
            events.extend(reader.read(&values)?);
        }
        if found.is_empty() {
            self.open = None;
        }
        Ok(Some(events))
    }
}
