//! Field cases, by id.
