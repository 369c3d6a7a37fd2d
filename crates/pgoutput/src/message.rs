use bytes::Bytes;
use event::Lsn;

/// One message of the replication stream. Times are microseconds since 2000-01-01 00:00 UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A transaction begins. It has committed already.
    Begin {
        /// The LSN of its commit record.
        final_lsn: Lsn,
        /// When it committed.
        commit_time: i64,
        /// Its transaction id.
        xid: u32,
    },
    /// The transaction ends.
    Commit {
        /// Unused by the protocol.
        flags: u8,
        /// The LSN of the commit record, as in its Begin.
        commit_lsn: Lsn,
        /// The LSN after the commit record: what may be confirmed.
        end_lsn: Lsn,
        /// When it committed.
        commit_time: i64,
    },
    /// The transaction was replicated from another server.
    Origin {
        /// Its commit LSN there.
        lsn: Lsn,
        /// The origin's name.
        name: String,
    },
    /// Describes the rows of a table, before the first of them and after each change of the table.
    Relation(Relation),
    /// Names a type that is not built in.
    Type {
        /// The type's oid.
        oid: u32,
        /// Its schema.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A row was inserted.
    Insert {
        /// The table.
        relation_id: u32,
        /// The row.
        new: Tuple,
    },
    /// A row was updated.
    Update {
        /// The table.
        relation_id: u32,
        /// What the replica identity keeps of the old row, if anything of it changed.
        old: Option<OldTuple>,
        /// The new row.
        new: Tuple,
    },
    /// A row was deleted.
    Delete {
        /// The table.
        relation_id: u32,
        /// What the replica identity keeps of the row.
        old: OldTuple,
    },
    /// Tables were emptied.
    Truncate {
        /// The tables.
        relation_ids: Vec<u32>,
        /// With CASCADE.
        cascade: bool,
        /// With RESTART IDENTITY.
        restart_identity: bool,
    },
    /// `pg_logical_emit_message` was called.
    Message {
        /// Whether it belongs to a transaction.
        transactional: bool,
        /// Where it stands in the log.
        lsn: Lsn,
        /// Whom it is for.
        prefix: String,
        /// What it says.
        content: Bytes,
    },
}

/// The shape of a table's rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The table's oid, by which rows refer to it.
    pub id: u32,
    /// The table's schema.
    pub namespace: String,
    /// The table's name.
    pub name: String,
    /// `relreplident` of pg_class.
    pub replica_identity: u8,
    /// The published columns, in the order of the rows' values.
    pub columns: Vec<Column>,
}

/// A published column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// 1 when the column is part of the replica identity's key.
    pub flags: u8,
    /// Its name.
    pub name: String,
    /// Its type.
    pub type_oid: u32,
    /// `atttypmod` of pg_attribute.
    pub type_modifier: i32,
}

/// The values of a row, one a column.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// In the order of the Relation record's columns.
    pub values: Vec<Value>,
}

/// The value of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// An out-of-line value that an update did not touch: not sent.
    Unchanged,
    /// The type's text form.
    Text(Bytes),
    /// The type's binary form; only where the session asked for it.
    Binary(Bytes),
}

/// What the replica identity keeps of an old row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldTuple {
    /// The key columns.
    Key(Tuple),
    /// All columns (REPLICA IDENTITY FULL).
    Full(Tuple),
}
