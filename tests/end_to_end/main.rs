//! One module per promise.
