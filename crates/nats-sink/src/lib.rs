//! The JetStream side: stream set-up and checks, publishing, the stream's end, error classes.
//!
//! A [`Session`](session) publishes in a chain: each message states which sequence and which
//! message id must stand before it, so that the server refuses everything behind a message that it
//! did not store. Any refusal ends the session; a new one begins at the stream's real end, over a
//! new connection, so that nothing of the old one is ever sent again.

mod ack;
mod api;
mod classify;
mod options;
mod scan;
pub mod session;
mod setup;
mod stored;
mod stream_end;

pub use classify::{TABLE, api_failure};
pub use options::{Credentials, SinkOptions};
pub use scan::{Found, Scan};
pub use session::{Acks, Publisher, SinkEvent, open};
pub use setup::{StreamSettings, check, create_stream};
