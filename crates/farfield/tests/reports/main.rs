//! The reports of a node about its calls: metrics, and metrics for Prometheus.

mod metrics;
mod prometheus;
