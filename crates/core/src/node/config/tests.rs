//! The readers, on texts and variables; the checks of a configuration.

use super::*;

fn from(variables: &[(&str, &str)]) -> Result<Config> {
    let find = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_string());
    Node::builder().variables(find).map(|builder| builder.config)
}

#[test]
fn the_rank_is_found_inside_every_launcher() {
    for (node, nodes) in [
        ("FARFIELD_NODE", "FARFIELD_NODES"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("PMI_RANK", "PMI_SIZE"),
    ] {
        let config = from(&[(node, "2"), (nodes, "4"), ("FARFIELD_SESSION", "s")]).unwrap();
        assert_eq!((config.node, config.nodes, config.session.as_str()), (2, 4, "s"));
    }
    let config = from(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", "77")]).unwrap();
    assert_eq!(config.session, "77");
    assert_eq!(from(&[]).unwrap().nodes, 1);
    assert!(from(&[("FARFIELD_NODE", "x"), ("FARFIELD_NODES", "2")]).is_err());
}

#[test]
fn a_half_set_environment_starts_no_lonely_node() {
    for (set, missing) in [
        ("FARFIELD_NODES", "FARFIELD_NODE"),
        ("FARFIELD_NODE", "FARFIELD_NODES"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("PMI_RANK", "PMI_SIZE"),
    ] {
        let error = from(&[(set, "3")]).err().expect("half of it").to_string();
        assert!(error.contains(&format!("{set} is set, and {missing} is not")), "{error}");
    }
    // In a shell of `salloc`.
    assert_eq!(from(&[("SLURM_NTASKS", "3")]).unwrap().nodes, 1);
}

/// However the number is given.
#[test]
fn a_session_has_one_limit_of_nodes() {
    let many = crate::NODES_MAX + 1;
    let toml: String = (0..many).map(|node| format!("[[nodes]]\nname='{node}'\n")).collect();
    let variables = |name: &str| match name {
        "FARFIELD_NODE" => Some("0".into()),
        "FARFIELD_NODES" => Some(many.to_string()),
        _ => None,
    };
    for builder in [
        Node::builder().nodes(many as u16),
        Node::builder().names((0..many).map(|node| node.to_string())),
        Node::builder().toml(&toml).unwrap(),
        Node::builder().variables(variables).unwrap(),
        Node::builder().hosts(loopback_hosts(many as u16)),
    ] {
        let error = builder.start().err().expect("too many").to_string();
        assert!(error.contains("257 nodes: a session has 1 to 256 nodes at a time"), "{error}");
    }
    assert!(crate::local_session(many).is_err() && Node::builder().nodes(0).start().is_err());
    Node::builder().session(&unique_session("most")).nodes(crate::NODES_MAX as u16).start().unwrap();
}

#[test]
fn a_session_has_the_name_it_was_given() {
    let launched = [("FARFIELD_NODE", "0"), ("FARFIELD_NODES", "1")];
    let long = "x".repeat(70);
    for name in ["a b", "night@1", &long] {
        let config = from(&[&launched[..], &[("FARFIELD_SESSION", name)]].concat()).unwrap();
        assert_eq!(config.session, name);
        assert!(Node::builder().session(name).start().is_err(), "{name}");
    }
    // The launcher chose it.
    let config = from(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_NAMESPACE", "a@1")]);
    assert_eq!(config.unwrap().session, "a_1");
}

#[test]
fn a_file_says_names_and_limits_and_nothing_unknown() {
    let text = "session='s'\nnode=1\ntimeout_ms=50\n[[nodes]]\nname='a'\n[[nodes]]\nname='b'\n";
    let config = Node::builder().toml(text).unwrap().config;
    assert_eq!((config.node, config.nodes, config.timeout.as_millis()), (1, 2, 50));
    assert!(Node::builder().toml("sesion='s'").is_err());
}

#[test]
fn huge_pages_are_named() {
    assert_eq!(from(&[]).unwrap().huge_pages, HugePages::TwoMib);
    assert_eq!(from(&[("FARFIELD_HUGE_PAGES", "1G")]).unwrap().huge_pages, HugePages::OneGib);
    assert!(from(&[("FARFIELD_HUGE_PAGES", "4K")]).is_err());
    let file = Node::builder().toml("huge_pages = 'none'\n[[nodes]]\nname = 'a'").unwrap().config;
    assert_eq!(file.huge_pages, HugePages::Never);
}

#[test]
fn calls_are_measured_if_asked_for() {
    assert!(!from(&[]).unwrap().latencies);
    for (text, is_on) in [("1", true), ("true", true), ("0", false), ("", false)] {
        assert_eq!(from(&[("FARFIELD_LATENCIES", text)]).unwrap().latencies, is_on, "{text}");
    }
    let error = from(&[("FARFIELD_LATENCIES", "yes")]).err().expect("neither").to_string();
    assert!(error.contains("FARFIELD_LATENCIES=yes: set it to 1 or 0"), "{error}");
    assert!(Node::builder().toml("latencies = true").unwrap().config.latencies);
    assert!(Node::builder().latencies(true).toml("seed = 7").unwrap().config.latencies, "a file that does not say");
}

#[test]
fn addresses_put_a_node_on_rdma() {
    let text = "[[nodes]]\nname='a'\naddress='10.0.0.1:1'\n[[nodes]]\nname='b'\naddress='[fd99::2]:1'\n[rdma]\nport=2";
    let config = Node::builder().toml(text).unwrap().config;
    assert!(matches!(config.fabric, Choice::Verbs) && config.hosts.addresses[1].is_ipv6());
    assert_eq!((config.nodes, config.hosts.rdma.device.port), (2, Some(2)));
    let huge = Node::builder().toml(&format!("huge_pages='1G'\n{text}")).unwrap().config;
    assert_eq!(
        (config.rdma().device.huge_pages, huge.rdma().device.huge_pages),
        (HugePages::TwoMib, HugePages::OneGib)
    );
    assert!(Node::builder().toml(&text.replace("address='10.0.0.1:1'", "")).is_err(), "one without an address");

    let hosts = ("FARFIELD_HOSTS", "127.0.0.1:1,127.0.0.2:1, 127.0.0.3:1");
    let node = [("FARFIELD_NODE", "1"), ("FARFIELD_NODES", "3"), ("FARFIELD_DEVICE", "a,b")];
    let mut config = from(&[&node[..], &[hosts, ("FARFIELD_SECRET", "0123456789abcdef")]].concat()).unwrap();
    config.hosts.rdma.take_device_in_turn(config.node);
    assert_eq!((config.hosts.addresses.len(), config.hosts.rdma.device.device.as_deref()), (3, Some("b")));
    assert!(config.hosts.secret.0.is_some());
    for wrong in [("FARFIELD_HOSTS", "here"), ("FARFIELD_LIFE", "x"), ("FARFIELD_SECRET", "short")] {
        assert!(from(&[hosts, wrong][usize::from(wrong.0 == hosts.0)..]).is_err(), "{wrong:?}");
    }
    assert!(matches!(from(&node).unwrap().fabric, Choice::Shm));

    // Addresses from elsewhere.
    let told = |name: &str| (name == "FARFIELD_SECRET").then(|| "0123456789abcdef".into());
    let builder = Node::builder().hosts(crate::loopback_hosts(3)).over_ucx().variables(told).unwrap();
    assert!(matches!(builder.config.fabric, Choice::Ucx) && builder.config.hosts.secret.0.is_some());
    assert!(matches!(builder.over_rdma().config.fabric, Choice::Verbs));
}

#[test]
fn a_node_is_on_the_fabric_that_is_demanded() {
    let hosts = ("FARFIELD_HOSTS", "127.0.0.1:1,127.0.0.2:1");
    let with = |fabric: &'static str| from(&[hosts, ("FARFIELD_FABRIC", fabric)]);
    assert!(matches!(with("ucx").unwrap().fabric, Choice::Ucx));
    assert!(matches!(with("verbs").unwrap().fabric, Choice::Verbs));
    assert!(matches!(with("").unwrap().fabric, Choice::Verbs));
    assert!(matches!(with("auto").unwrap().fabric, Choice::Auto));
    // A device that is named, and is not there, is an error: such a node is not on UCX instead.
    let named = from(&[hosts, ("FARFIELD_FABRIC", "auto"), ("FARFIELD_DEVICE", "none0")]).unwrap();
    assert!(matches!(named.fabric, Choice::Auto) && named.lacks_rdma().is_none());
    for alone in ["shm", "auto"] {
        assert!(matches!(from(&[("FARFIELD_FABRIC", alone)]).unwrap().fabric, Choice::Shm));
    }
    for (fabric, why) in [("shm", "the nodes have addresses"), ("tcp", "one of shm, verbs, ucx and auto")] {
        let text = with(fabric).err().expect(why).to_string();
        assert!(text.contains(why), "{text}");
    }
    for fabric in ["ucx", "verbs"] {
        let text = from(&[("FARFIELD_FABRIC", fabric)]).err().expect("there are no addresses").to_string();
        assert!(text.contains("FARFIELD_HOSTS"), "{text}");
    }
    let text = "[[nodes]]\nname='a'\naddress='10.0.0.1:1'\n[ucx]\ndevices='eth0'\nsilence_ms=70";
    let config = Node::builder().toml(text).unwrap().config;
    assert!(matches!(config.fabric, Choice::Ucx) && config.hosts.silence == Some(Duration::from_millis(70)));
    let options = config.hosts.ucx.options;
    assert_eq!((options.devices.as_deref(), &*options.transports), (Some("eth0"), "tcp"));
    assert!(Node::builder().toml(&format!("{text}\n[rdma]\nport=1")).is_err(), "one or the other");
    let built = Node::builder().over_ucx().hosts(config.hosts.addresses).config;
    assert!(matches!(built.fabric, Choice::Ucx));
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    assert!(Node::builder().node(2).nodes(2).start().is_err());
    assert!(Node::builder().names(["a", "b"]).nodes(3).start().is_err());
}

#[test]
fn a_session_over_shared_memory_has_the_configured_limits() {
    let config = Node::builder().session("s").node(1).nodes(3).memory_bytes_max(1 << 24).seed(7).config;
    let options = config.shm();
    assert_eq!((options.group_bytes_max, options.seed), (1 << 24, Some(7)));
}
