//! Real PostgreSQL and nats-server processes on free ports, for tests and the demo.
