//! The JetStream side: stream set-up and checks, publishing, the stream's end, error classes.
