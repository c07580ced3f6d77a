//! What a node reports of itself: metrics, metrics for Prometheus, and events.

mod events;
mod metrics;
mod prometheus;
