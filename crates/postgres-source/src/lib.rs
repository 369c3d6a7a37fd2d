//! The PostgreSQL side: slot, publication, replication stream, preflight, error classes.
