use bytes::{Buf, Bytes};
use event::Lsn;

use crate::{Column, Message, OldTuple, Relation, Tuple, Value};

/// The bytes are not a message of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No bytes at all.
    #[error("an empty replication message")]
    Empty,
    /// A message of another protocol version, or none.
    #[error("unknown replication message {:?}", char::from(*tag))]
    UnknownTag {
        /// Its first byte.
        tag: u8,
    },
    /// The bytes end within a field.
    #[error("replication message {:?} ends at byte {offset}, within {expected}", char::from(*tag))]
    Truncated {
        /// The message's first byte.
        tag: u8,
        /// Where the field begins.
        offset: usize,
        /// The field.
        expected: &'static str,
    },
    /// A field has a value that the protocol does not know.
    #[error("replication message {:?}, byte {offset}: invalid {expected}", char::from(*tag))]
    Invalid {
        /// The message's first byte.
        tag: u8,
        /// Where the field begins.
        offset: usize,
        /// The field.
        expected: &'static str,
    },
    /// Bytes are left after the last field.
    #[error("replication message {:?} has {bytes} bytes too many", char::from(*tag))]
    Trailing {
        /// The message's first byte.
        tag: u8,
        /// How many.
        bytes: usize,
    },
}

/// Reads one message. Values share the memory of `bytes`.
///
/// # Errors
/// Says which field of which message is broken, and where.
pub fn decode(bytes: Bytes) -> Result<Message, DecodeError> {
    let tag = *bytes.first().ok_or(DecodeError::Empty)?;
    let mut reader = Reader { tag, length: bytes.len(), rest: bytes.slice(1..) };
    let message = reader.message()?;
    match reader.rest.len() {
        0 => Ok(message),
        bytes => Err(DecodeError::Trailing { tag, bytes }),
    }
}

struct Reader {
    tag: u8,
    length: usize,
    rest: Bytes,
}

impl Reader {
    fn message(&mut self) -> Result<Message, DecodeError> {
        Ok(match self.tag {
            b'B' => Message::Begin {
                final_lsn: self.lsn("final LSN")?,
                commit_time: self.i64("commit time")?,
                xid: self.u32("transaction id")?,
            },
            b'C' => Message::Commit {
                flags: self.u8("flags")?,
                commit_lsn: self.lsn("commit LSN")?,
                end_lsn: self.lsn("end LSN")?,
                commit_time: self.i64("commit time")?,
            },
            b'O' => {
                Message::Origin { lsn: self.lsn("origin LSN")?, name: self.string("origin name")? }
            }
            b'R' => Message::Relation(self.relation()?),
            b'Y' => Message::Type {
                oid: self.u32("type oid")?,
                namespace: self.namespace()?,
                name: self.string("type name")?,
            },
            b'I' => {
                let relation_id = self.u32("relation id")?;
                self.marker(b'N', "new tuple marker")?;
                Message::Insert { relation_id, new: self.tuple()? }
            }
            b'U' => self.update()?,
            b'D' => {
                let relation_id = self.u32("relation id")?;
                let old = self.old_tuple()?.ok_or_else(|| self.invalid("old tuple marker"))?;
                Message::Delete { relation_id, old }
            }
            b'T' => self.truncate()?,
            b'M' => {
                let transactional = self.flag("message flags")?;
                let lsn = self.lsn("message LSN")?;
                let prefix = self.string("message prefix")?;
                let size = self.u32("message size")?;
                let content = self.take(size, "message content")?;
                Message::Message { transactional, lsn, prefix, content }
            }
            tag => return Err(DecodeError::UnknownTag { tag }),
        })
    }

    fn relation(&mut self) -> Result<Relation, DecodeError> {
        let id = self.u32("relation id")?;
        let namespace = self.namespace()?;
        let name = self.string("relation name")?;
        let replica_identity = self.u8("replica identity")?;
        let count = self.u16("column count")?;
        // Each column takes at least 10 bytes, so a false count cannot ask for much memory.
        let mut columns = Vec::with_capacity(usize::from(count).min(self.rest.len() / 10));
        for _ in 0..count {
            columns.push(Column {
                flags: self.u8("column flags")?,
                name: self.string("column name")?,
                type_oid: self.u32("column type")?,
                type_modifier: self.u32("type modifier")?.cast_signed(),
            });
        }
        Ok(Relation { id, namespace, name, replica_identity, columns })
    }

    fn update(&mut self) -> Result<Message, DecodeError> {
        let relation_id = self.u32("relation id")?;
        let old = self.old_tuple()?;
        self.marker(b'N', "new tuple marker")?;
        Ok(Message::Update { relation_id, old, new: self.tuple()? })
    }

    fn truncate(&mut self) -> Result<Message, DecodeError> {
        let count = self.u32("relation count")?;
        let options = self.u8("truncate options")?;
        if options & !0b11 != 0 {
            return Err(self.invalid("truncate options"));
        }
        let possible = self.rest.len() / 4;
        let mut relation_ids =
            Vec::with_capacity(usize::try_from(count).map_or(0, |n| n.min(possible)));
        for _ in 0..count {
            relation_ids.push(self.u32("relation id")?);
        }
        let (cascade, restart_identity) = (options & 1 != 0, options & 2 != 0);
        Ok(Message::Truncate { relation_ids, cascade, restart_identity })
    }

    fn old_tuple(&mut self) -> Result<Option<OldTuple>, DecodeError> {
        match self.rest.first() {
            Some(b'K') => {
                self.rest.advance(1);
                Ok(Some(OldTuple::Key(self.tuple()?)))
            }
            Some(b'O') => {
                self.rest.advance(1);
                Ok(Some(OldTuple::Full(self.tuple()?)))
            }
            Some(_) | None => Ok(None),
        }
    }

    fn tuple(&mut self) -> Result<Tuple, DecodeError> {
        let count = self.u16("value count")?;
        let mut values = Vec::with_capacity(usize::from(count).min(self.rest.len()));
        for _ in 0..count {
            values.push(match self.u8("value kind")? {
                b'n' => Value::Null,
                b'u' => Value::Unchanged,
                b't' => Value::Text(self.sized("text value")?),
                b'b' => Value::Binary(self.sized("binary value")?),
                _ => return Err(self.invalid("value kind")),
            });
        }
        Ok(Tuple { values })
    }

    fn sized(&mut self, expected: &'static str) -> Result<Bytes, DecodeError> {
        let size = self.u32("value size")?;
        self.take(size, expected)
    }

    fn take(&mut self, size: u32, expected: &'static str) -> Result<Bytes, DecodeError> {
        let size = usize::try_from(size).ok().filter(|size| *size <= self.rest.len());
        let size = size.ok_or_else(|| self.truncated(expected))?;
        Ok(self.rest.split_to(size))
    }

    /// An empty schema name stands for pg_catalog.
    fn namespace(&mut self) -> Result<String, DecodeError> {
        let namespace = self.string("schema name")?;
        Ok(if namespace.is_empty() { "pg_catalog".to_owned() } else { namespace })
    }

    fn string(&mut self, expected: &'static str) -> Result<String, DecodeError> {
        let end = self.rest.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| self.truncated(expected))?;
        let text = std::str::from_utf8(&self.rest[..end]).map_err(|_| self.invalid(expected))?;
        let text = text.to_owned();
        self.rest.advance(end + 1);
        Ok(text)
    }

    fn flag(&mut self, expected: &'static str) -> Result<bool, DecodeError> {
        match self.u8(expected)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.invalid(expected)),
        }
    }

    fn marker(&mut self, marker: u8, expected: &'static str) -> Result<(), DecodeError> {
        if self.u8(expected)? == marker { Ok(()) } else { Err(self.invalid(expected)) }
    }

    fn lsn(&mut self, expected: &'static str) -> Result<Lsn, DecodeError> {
        self.rest.try_get_u64().map(Lsn::new).map_err(|_| self.truncated(expected))
    }

    fn i64(&mut self, expected: &'static str) -> Result<i64, DecodeError> {
        self.rest.try_get_i64().map_err(|_| self.truncated(expected))
    }

    fn u32(&mut self, expected: &'static str) -> Result<u32, DecodeError> {
        self.rest.try_get_u32().map_err(|_| self.truncated(expected))
    }

    fn u16(&mut self, expected: &'static str) -> Result<u16, DecodeError> {
        self.rest.try_get_u16().map_err(|_| self.truncated(expected))
    }

    fn u8(&mut self, expected: &'static str) -> Result<u8, DecodeError> {
        self.rest.try_get_u8().map_err(|_| self.truncated(expected))
    }

    fn truncated(&self, expected: &'static str) -> DecodeError {
        DecodeError::Truncated { tag: self.tag, offset: self.length - self.rest.len(), expected }
    }

    fn invalid(&self, expected: &'static str) -> DecodeError {
        DecodeError::Invalid { tag: self.tag, offset: self.length - self.rest.len(), expected }
    }
}
