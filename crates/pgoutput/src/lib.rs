//! Logical replication messages (protocol version 1) from and to bytes, and the relation cache.
//!
//! The layouts are those of the PostgreSQL documentation, chapter "Logical Replication Message
//! Formats". Pure: no I/O, and no input makes it panic.

mod decode;
mod encode;
mod message;
mod relation_cache;

pub use decode::{DecodeError, decode};
pub use encode::encode;
pub use message::{Column, Message, OldTuple, Relation, Tuple, Value};
pub use relation_cache::RelationCache;
