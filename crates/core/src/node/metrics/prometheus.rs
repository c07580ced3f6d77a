//! The counters of a node as Prometheus reads them: the OpenMetrics text format.

use std::borrow::Cow;
use std::fmt::Result;

use farfield_fabric::{CallCounts, PeerState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::Metrics;

impl Metrics {
    /// The metrics in the text format of OpenMetrics, which Prometheus scrapes. Names begin with `farfield_`, durations
    /// are in seconds, and every sample has the label `node`. Needs the feature `prometheus`. [`Node::serve_metrics`]
    /// serves this text over HTTP.
    ///
    /// | name | type | labels |
    /// |---|---|---|
    /// | `farfield_operations_total` | counter | `kind`: `put`, `get`, `atomic` or `fence` |
    /// | `farfield_operation_bytes_total`, `farfield_round_trips_total`, `farfield_endpoints_total` | counter | |
    /// | `farfield_memory_bytes` | gauge | |
    /// | `farfield_queue_pairs` | gauge | `side`: `own` or `target` |
    /// | `farfield_peers` | gauge | `state`: `not_joined`, `up`, `left` or `dead` |
    /// | `farfield_object_memory_bytes` | gauge | `object`, `kind` |
    /// | `farfield_call_seconds` | histogram | `object`, `kind`, `call` |
    /// | `farfield_call_errors_total` | counter | `object`, `kind`, `call`; `error`: `timeout` or `other` |
    ///
    /// The last two are there if the node measures calls ([`Builder::latencies`](crate::Builder::latencies)).
    ///
    /// ```
    /// # let node = farfield::Node::builder().latencies(true).start()?; let ep = node.endpoint()?;
    /// let hits = farfield::AtomicVar::open(&node, "hits", node.id())?;
    /// ep.block_on(hits.fetch_add(&ep, 1))?;
    /// let text = node.metrics().to_prometheus();
    /// let count = r#"farfield_call_seconds_count{node="0",object="hits",kind="AtomicVar",call="fetch_add"} 1"#;
    /// assert!(text.lines().any(|line| line == count), "{text}");
    /// # Ok::<(), farfield::Error>(())
    /// ```
    ///
    /// [`Node::serve_metrics`]: crate::Node::serve_metrics
    pub fn to_prometheus(&self) -> String {
        let node = (Cow::from("node"), Cow::from(self.node.0.to_string()));
        let mut registry = Registry::with_prefix_and_labels("farfield", [node].into_iter());
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // A string takes all that is written.
        let _ = text::encode(&mut text, &registry);
        text
    }

    /// Each call of each object, with the labels of its samples.
    fn calls(&self) -> impl Iterator<Item = ([(&'static str, &str); 3], &CallCounts)> {
        self.objects.iter().flat_map(|object| {
            let labels = |call| [("object", &*object.path), ("kind", object.kind), ("call", call)];
            object.calls.iter().map(move |(call, counts)| (labels(*call), counts))
        })
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result {
        let mut family =
            |name: &str, help: &str, unit: Option<&Unit>, kind, label: &'static str, all: &[(&str, u64)]| {
                let mut metric = encoder.encode_descriptor(name, help, unit, kind)?;
                for (value, number) in all {
                    let labels = if label.is_empty() { vec![] } else { vec![(label, *value)] };
                    let mut sample = metric.encode_family(&labels)?;
                    match kind {
                        MetricType::Counter => sample.encode_counter::<NoLabelSet, _, u64>(number, None)?,
                        _ => sample.encode_gauge(number)?,
                    }
                }
                Ok(())
            };
        let (counter, gauge, bytes) = (MetricType::Counter, MetricType::Gauge, Some(&Unit::Bytes));
        let counts = &self.counts;
        let posted = [("put", counts.puts), ("get", counts.gets), ("atomic", counts.atomics), ("fence", counts.fences)];
        family("operations", "Operations posted, by kind.", None, counter, "kind", &posted)?;
        let moved = "Bytes moved by operations.";
        family("operation", moved, bytes, counter, "", &[("", counts.bytes)])?;
        family("round_trips", "Chained round trips.", None, counter, "", &[("", counts.round_trips)])?;
        family("endpoints", "Endpoints opened.", None, counter, "", &[("", self.endpoints as u64)])?;
        family("memory", "Network memory in use on this node.", bytes, gauge, "", &[("", self.memory_bytes)])?;
        let (own, targets) = self.queue_pairs;
        let pairs = [("own", own as u64), ("target", targets as u64)];
        family("queue_pairs", "Queue pairs of an RDMA device.", None, gauge, "side", &pairs)?;
        let are = |is: fn(&PeerState) -> bool| self.peers.iter().filter(|(_, state)| is(state)).count() as u64;
        let peers = [
            ("not_joined", are(|state| matches!(state, PeerState::NotJoined))),
            ("up", are(|state| matches!(state, PeerState::Up { .. }))),
            ("left", are(|state| matches!(state, PeerState::Left))),
            ("dead", are(|state| matches!(state, PeerState::Dead { .. }))),
        ];
        family("peers", "Nodes of the session, as this one sees them.", None, gauge, "state", &peers)?;

        let help = "Network memory of an open object on this node.";
        let mut memory = encoder.encode_descriptor("object_memory", help, bytes, gauge)?;
        for object in self.objects.iter().filter(|object| object.is_open) {
            let labels = [("object", &*object.path), ("kind", object.kind)];
            memory.encode_family(&labels)?.encode_gauge(&object.memory_bytes)?;
        }
        let help = "How long calls of an object took, failed ones included.";
        let mut seconds = encoder.encode_descriptor("call", help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for (labels, counts) in self.calls() {
            let (latencies, mut below) = (&counts.latencies, 0);
            let mut buckets: Vec<(f64, u64)> = Vec::new();
            for (limit, count) in latencies.cumulative() {
                buckets.push((limit.as_secs_f64(), count - below));
                below = count;
            }
            buckets.push((f64::INFINITY, latencies.count() - below));
            let mut sample = seconds.encode_family(&labels)?;
            sample.encode_histogram::<NoLabelSet>(latencies.sum().as_secs_f64(), latencies.count(), &buckets, None)?;
        }
        let help = "Calls of an object that ended with an error.";
        let mut errors = encoder.encode_descriptor("call_errors", help, None, counter)?;
        for (labels, counts) in self.calls() {
            for (error, count) in [("timeout", counts.timeouts), ("other", counts.errors)] {
                let labels = [labels[0], labels[1], labels[2], ("error", error)];
                errors.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        Ok(())
    }
}
