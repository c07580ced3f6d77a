//! The tour on the nodes that `farfield run` starts, with the metrics of its calls.

#![forbid(unsafe_code)]

use farfield::Node;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let node = Node::builder().environment()?.latencies(true).start()?;
    let metrics = node.serve_metrics("127.0.0.1:0")?;
    let (counts, _) = farfield_tour::run(&node)?;
    println!("{} of {} nodes: {} texts have {} letters", node.id(), node.nodes(), counts.texts, counts.letters);
    let seen = node.metrics();
    let dequeued = seen.call("tour/jobs", "dequeue").expect("it was called");
    println!("a job came within {:?}; more at http://{}/metrics", dequeued.latencies.quantile(0.5), metrics.address());
    Ok(())
}
