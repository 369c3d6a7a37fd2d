//! The shell that joins the core with the sockets: run loop, metrics, status.
