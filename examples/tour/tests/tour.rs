//! The tour in one process, and its metrics.

use farfield::{local_session_with, on_each};
use farfield_tour::{Counts, run};

#[test]
fn all_nodes_have_the_same_counts() {
    for nodes in [1, 3] {
        let nodes = local_session_with(nodes, |builder| builder.latencies(true)).expect("a session");
        let ended = on_each(&nodes, run).expect("the tour");
        assert!(ended.iter().all(|(counts, _)| *counts == Counts { texts: 3, letters: 53 }), "{ended:?}");
        let mut titles: Vec<String> = ended[0].1.iter().map(|title| title.to_string()).collect();
        titles.sort();
        assert_eq!(titles, ["checker", "fabric", "objects"]);
        let metrics = nodes[0].metrics();
        let enqueued = metrics.call("tour/jobs", "enqueue").expect("the leader has the jobs");
        assert_eq!((enqueued.latencies.count(), enqueued.errors), (4, 0));
        assert!(metrics.to_prometheus().contains("object=\"tour/jobs\""));
    }
}
