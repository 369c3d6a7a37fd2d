//! The outbox-relay command.

fn main() {}
