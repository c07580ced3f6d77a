//! A build without some of the features: `cargo test -p farfield --no-default-features --test left_out`. In a build
//! with all of them there is nothing to test here.

/// A program that was built without RDMA, and is configured for it, must not run on shared memory instead.
#[cfg(not(feature = "verbs"))]
#[test]
fn a_node_whose_configuration_asks_for_rdma_does_not_start() {
    use farfield::{ErrorKind, Node, loopback_hosts};

    let error = Node::builder().hosts(loopback_hosts(2)).start().err().expect("there is no RDMA in this build");
    assert!(matches!(error.kind(), ErrorKind::NotBuilt { what: "RDMA", feature: "verbs", .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("feature `verbs`") && text.contains("FARFIELD_HOSTS"), "{text}");
}

#[cfg(all(not(feature = "verbs"), feature = "toml"))]
#[test]
fn nor_does_one_whose_file_has_addresses() {
    use farfield::{ErrorKind, Node};

    let file = "[[nodes]]\nname = 'a'\naddress = '127.0.0.1:7471'\n[rdma]\ndevice = 'rxe0'\nsilence_ms = 100";
    let error = Node::builder().toml(file).unwrap().start().err().expect("there is no RDMA in this build");
    assert!(matches!(error.kind(), ErrorKind::NotBuilt { .. }), "{error}");
}

/// Nor one that was built without UCX, and is configured for it.
#[cfg(not(feature = "ucx"))]
#[test]
fn a_node_whose_configuration_asks_for_ucx_does_not_start() {
    use farfield::{ErrorKind, Node, loopback_hosts};

    let node = Node::builder().hosts(loopback_hosts(2)).over_ucx().start();
    let error = node.err().expect("there is no UCX in this build");
    assert!(matches!(error.kind(), ErrorKind::NotBuilt { what: "UCX", feature: "ucx", .. }), "{error}");
}

/// Shared memory is in every build.
#[test]
fn a_node_on_shared_memory_starts() -> farfield::Result<()> {
    let nodes = farfield::local_session(2)?;
    assert_eq!(nodes[1].nodes(), 2);
    Ok(())
}
