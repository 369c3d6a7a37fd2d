use bytes::{BufMut, Bytes, BytesMut};

use crate::{Message, OldTuple, Relation, Tuple, Value};

/// Writes a message as a server would. For simulators and tests: PostgreSQL is never sent one.
///
/// Counts and sizes beyond what the protocol's fields hold are cut to their maximum, and decoding
/// such a message fails.
#[must_use]
pub fn encode(message: &Message) -> Bytes {
    let mut out = BytesMut::new();
    match message {
        Message::Begin { final_lsn, commit_time, xid } => {
            out.put_u8(b'B');
            out.put_u64(final_lsn.get());
            out.put_i64(*commit_time);
            out.put_u32(*xid);
        }
        Message::Commit { flags, commit_lsn, end_lsn, commit_time } => {
            out.put_u8(b'C');
            out.put_u8(*flags);
            out.put_u64(commit_lsn.get());
            out.put_u64(end_lsn.get());
            out.put_i64(*commit_time);
        }
        Message::Origin { lsn, name } => {
            out.put_u8(b'O');
            out.put_u64(lsn.get());
            string(&mut out, name);
        }
        Message::Relation(relation) => self::relation(&mut out, relation),
        Message::Type { oid, namespace, name } => {
            out.put_u8(b'Y');
            out.put_u32(*oid);
            string(&mut out, namespace);
            string(&mut out, name);
        }
        Message::Insert { relation_id, new } => {
            out.put_u8(b'I');
            out.put_u32(*relation_id);
            out.put_u8(b'N');
            tuple(&mut out, new);
        }
        Message::Update { relation_id, old, new } => {
            out.put_u8(b'U');
            out.put_u32(*relation_id);
            if let Some(old) = old {
                old_tuple(&mut out, old);
            }
            out.put_u8(b'N');
            tuple(&mut out, new);
        }
        Message::Delete { relation_id, old } => {
            out.put_u8(b'D');
            out.put_u32(*relation_id);
            old_tuple(&mut out, old);
        }
        Message::Truncate { relation_ids, cascade, restart_identity } => {
            out.put_u8(b'T');
            out.put_u32(u32::try_from(relation_ids.len()).unwrap_or(u32::MAX));
            out.put_u8(u8::from(*cascade) | u8::from(*restart_identity) << 1);
            relation_ids.iter().for_each(|id| out.put_u32(*id));
        }
        Message::Message { transactional, lsn, prefix, content } => {
            out.put_u8(b'M');
            out.put_u8(u8::from(*transactional));
            out.put_u64(lsn.get());
            string(&mut out, prefix);
            sized(&mut out, content);
        }
    }
    out.freeze()
}

fn relation(out: &mut BytesMut, relation: &Relation) {
    out.put_u8(b'R');
    out.put_u32(relation.id);
    string(out, &relation.namespace);
    string(out, &relation.name);
    out.put_u8(relation.replica_identity);
    out.put_u16(u16::try_from(relation.columns.len()).unwrap_or(u16::MAX));
    for column in &relation.columns {
        out.put_u8(column.flags);
        string(out, &column.name);
        out.put_u32(column.type_oid);
        out.put_i32(column.type_modifier);
    }
}

fn old_tuple(out: &mut BytesMut, old: &OldTuple) {
    let (marker, values) = match old {
        OldTuple::Key(values) => (b'K', values),
        OldTuple::Full(values) => (b'O', values),
    };
    out.put_u8(marker);
    tuple(out, values);
}

fn tuple(out: &mut BytesMut, tuple: &Tuple) {
    out.put_u16(u16::try_from(tuple.values.len()).unwrap_or(u16::MAX));
    for value in &tuple.values {
        match value {
            Value::Null => out.put_u8(b'n'),
            Value::Unchanged => out.put_u8(b'u'),
            Value::Text(bytes) => {
                out.put_u8(b't');
                sized(out, bytes);
            }
            Value::Binary(bytes) => {
                out.put_u8(b'b');
                sized(out, bytes);
            }
        }
    }
}

fn sized(out: &mut BytesMut, bytes: &Bytes) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

fn string(out: &mut BytesMut, text: &str) {
    out.put_slice(text.as_bytes());
    out.put_u8(0);
}
