//! Field cases, each by its id.
