//! What a node reports of its calls: metrics, and metrics for Prometheus.

mod metrics;
mod prometheus;
