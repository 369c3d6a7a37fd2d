//! HTTP: probes, metrics, status.
