//! Logical replication messages from and to bytes, and the relation cache. Pure, never panics.
