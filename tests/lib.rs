//! Promises and field cases, shown on real servers. Everything is in the tests.
