//! The promises, as checks of a run.

use std::collections::{BTreeMap, BTreeSet};

use event::Lsn;

use crate::broker::{Broker, Stored};
use crate::database::{Database, Row, Transaction};

/// No loss and only committed facts: the stream holds the committed events, all of them, and no
/// other than those that the database itself has lost since.
///
/// # Errors
/// Names the events.
pub fn complete(database: &Database, broker: &Broker) -> Result<(), String> {
    let committed: BTreeSet<&str> = database.rows().map(|row| row.event_id.as_str()).collect();
    let undone: BTreeSet<&str> = database.undone.iter().map(|row| row.event_id.as_str()).collect();
    let stored: BTreeSet<&str> = broker.messages.iter().filter_map(|m| m.event_id()).collect();
    let lost: Vec<_> = committed.difference(&stored).collect();
    let unknown: Vec<_> =
        stored.difference(&committed).filter(|id| !undone.contains(*id)).collect();
    if lost.is_empty() && unknown.is_empty() {
        return Ok(());
    }
    Err(format!("lost {lost:?}, never committed {unknown:?}"))
}

/// No event stands in the stream twice.
///
/// # Errors
/// Names the first event.
pub fn undoubled(broker: &Broker) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let mut ids = broker.messages.iter().filter_map(|message| message.event_id());
    match ids.find(|id| !seen.insert(*id)) {
        None => Ok(()),
        Some(id) => Err(format!("event {id} is doubled")),
    }
}

/// Within an aggregate the stream has the versions in commit order, without a hole; what the
/// database has lost since is not looked at.
///
/// # Errors
/// Names the first event out of order.
pub fn ordered(database: &Database, broker: &Broker) -> Result<(), String> {
    let undone: BTreeSet<&str> = database.undone.iter().map(|row| row.event_id.as_str()).collect();
    let mut versions = BTreeMap::new();
    for message in &broker.messages {
        if message.event_id().is_some_and(|id| undone.contains(id)) {
            continue;
        }
        if let (Some(aggregate), Some(version)) = (message.aggregate_id(), message.version()) {
            let last = versions.entry(aggregate).or_insert(0);
            if version != *last + 1 {
                return Err(format!("aggregate {aggregate}: version {version} follows {last}"));
            }
            *last = version;
        }
    }
    Ok(())
}

/// Where the stream takes batches, the transaction of its newest event stands in it whole, unless the
/// relay said that it would not.
///
/// # Errors
/// Names the transaction.
pub fn at_once(database: &Database, broker: &Broker, split: &BTreeSet<Lsn>) -> Result<(), String> {
    let newest = broker.messages.last().and_then(Stored::event_id);
    let of_newest = |transaction: &&Transaction| {
        transaction.rows.iter().any(|row| Some(row.event_id.as_str()) == newest)
    };
    let Some(transaction) = database.transactions.iter().rev().find(of_newest) else {
        return Ok(());
    };
    if broker.batch_max == 0 || split.contains(&transaction.commit_lsn) {
        return Ok(());
    }
    let lacks = |row: &&Row| !broker.has(&row.event_id);
    match transaction.rows.iter().find(lacks) {
        None => Ok(()),
        Some(row) => Err(format!(
            "the transaction at {} does not appear at once: {} is missing",
            transaction.commit_lsn, row.event_id
        )),
    }
}

/// A confirmed position covers only events that the stream holds at that moment.
///
/// # Errors
/// Names the first event that is not.
pub fn not_ahead(database: &Database, broker: &Broker, confirmed: Lsn) -> Result<(), String> {
    let from = database.transactions.partition_point(|t| t.end_lsn <= database.confirmed);
    let newly = database.transactions[from..].iter().take_while(|t| t.end_lsn <= confirmed);
    let mut rows = newly.flat_map(|transaction| &transaction.rows);
    match rows.find(|row| !broker.has(&row.event_id)) {
        None => Ok(()),
        Some(row) => Err(format!("{confirmed} was confirmed, but {} is not stored", row.event_id)),
    }
}
