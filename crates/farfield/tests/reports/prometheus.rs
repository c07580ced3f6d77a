//! Metrics for Prometheus: the text, and the server.

#![allow(clippy::disallowed_methods, reason = "a test measures from outside the fabric")]

use std::collections::BTreeMap;
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use farfield::{AtomicVar, ErrorKind, Mutex, Node};

const SOON: Duration = Duration::from_secs(10);

/// The samples of a text, by name and labels. The text is well-formed: each line is a comment or a sample, each sample
/// belongs to the family before it, and no sample comes twice.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let (mut all, mut family, mut kind) = (BTreeMap::new(), String::new(), String::new());
    assert!(text.ends_with("# EOF\n"), "{text}");
    for line in text.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.split(' ');
            let (what, name, rest) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
            assert!(["HELP", "TYPE", "UNIT"].contains(&what), "{line}");
            if what == "TYPE" {
                (family, kind) = (name.into(), rest.into());
            }
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
        let name = sample.split('{').next().unwrap();
        let suffix = name.strip_prefix(&*family).unwrap_or_else(|| panic!("{line} is not of {family}"));
        let suffixes: &[&str] = match &*kind {
            "counter" => &["_total"],
            "histogram" => &["_sum", "_count", "_bucket"],
            _ => &[""],
        };
        assert!(suffixes.contains(&suffix), "{line} of {kind} {family}");
        assert!(sample.contains("node=\""), "{line}");
        assert!(all.insert(sample.into(), value.parse().unwrap()).is_none(), "{line} twice");
    }
    all
}

#[test]
fn the_text_has_all_metrics_by_the_rules() {
    let node = Node::builder().latencies(true).start().unwrap();
    let ep = node.endpoint().unwrap();
    let mutex = Mutex::open(&node, "it's \"quoted\" \\ and\nlong", node.id()).unwrap();
    let hits = AtomicVar::open(&node, "hits", node.id()).unwrap();
    for _ in 0..10 {
        ep.block_on(hits.fetch_add(&ep, 1)).unwrap();
    }
    let held = ep.block_on(mutex.lock(&ep)).unwrap();
    let soon = ep.now() + Duration::from_millis(5);
    assert!(ep.block_on(mutex.lock_deadline(&ep, soon)).is_err());
    drop(held);
    let metrics = node.metrics();
    let all = samples(&metrics.to_prometheus());
    let is = |sample: &str, value: f64| assert_eq!(all.get(sample), Some(&value), "{sample} in {all:#?}");
    is(r#"farfield_operations_total{node="0",kind="atomic"}"#, metrics.counts.atomics as f64);
    is(r#"farfield_memory_bytes{node="0"}"#, metrics.memory_bytes as f64);
    is(r#"farfield_operation_bytes_total{node="0"}"#, metrics.counts.bytes as f64);
    is(r#"farfield_peers{node="0",state="up"}"#, 1.0);
    is(
        r#"farfield_object_memory_bytes{node="0",object="hits",kind="AtomicVar"}"#,
        metrics.objects[0].memory_bytes as f64,
    );
    let add = r#"node="0",object="hits",kind="AtomicVar",call="fetch_add""#;
    is(&format!("farfield_call_seconds_count{{{add}}}"), 10.0);
    let least = r#"node="0",le="+Inf",object="hits",kind="AtomicVar",call="fetch_add""#;
    is(&format!("farfield_call_seconds_bucket{{{least}}}"), 10.0);
    is(&format!("farfield_call_errors_total{{{add},error=\"timeout\"}}"), 0.0);
    let lock = r#"node="0",object="it's \"quoted\" \\ and\nlong",kind="MutexArray",call="lock""#;
    is(&format!("farfield_call_seconds_count{{{lock}}}"), 2.0);
    is(&format!("farfield_call_errors_total{{{lock},error=\"timeout\"}}"), 1.0);
    // The buckets are cumulative, and the sum is in seconds.
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for (sample, value) in &all {
        if sample.starts_with("farfield_call_seconds_bucket") && sample.contains(&lock[9..]) {
            let le = sample.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
            buckets.push((le.replace("+Inf", "inf").parse().unwrap(), *value));
        }
    }
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert!(buckets.len() > 20 && buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{buckets:?}");
    assert!(
        buckets.iter().all(|(le, below)| (*le > 0.003 || *below <= 1.0) && (*le < 5.0 || *below == 2.0)),
        "{buckets:?}"
    );
    let sum = all[&format!("farfield_call_seconds_sum{{{lock}}}")];
    assert!((0.005..5.0).contains(&sum), "{sum}");
}

fn ask(address: SocketAddr, request: &[u8]) -> String {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client.write_all(request).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_server_answers_requests_and_refuses_others() {
    let node = Node::builder().latencies(true).start().unwrap();
    let server = node.serve_metrics("127.0.0.1:0").unwrap();
    let answer = |request: &[u8]| ask(server.address(), request);
    let good = answer(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    let (head, body) = good.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())) && head.contains("Connection: close"), "{head}");
    assert!(samples(body).len() > 10);
    assert!(answer(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200"));
    let head = answer(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(answer(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    // A client reads no body after HEAD: what follows would be taken for the next answer.
    let head = answer(b"HEAD /unknown HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 404") && head.ends_with("\r\n\r\n"), "{head}");
    let wrong = answer(b"POST /metrics HTTP/1.1\r\n\r\n");
    assert!(wrong.starts_with("HTTP/1.1 405") && wrong.contains("Allow: GET"), "{wrong}");
    assert!(answer(b"\x16\x03\x01\x02\x00 TLS\r\n\r\n").starts_with("HTTP/1.1 400"));
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 8192 - 25]].concat();
    assert!(answer(&long).starts_with("HTTP/1.1 431"));
    let many = [b"GET /metrics HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(100)].concat();
    assert!(answer(&many).starts_with("HTTP/1.1 431"));
    // One that hangs up, and one that says nothing for too long: the next is answered all the same.
    drop(TcpStream::connect(server.address()).unwrap());
    let start = Instant::now();
    let silent = TcpStream::connect(server.address()).unwrap();
    assert!(answer(b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    assert!(start.elapsed() < SOON, "a silent client holds the others up for {:?}", start.elapsed());
    let mut said = String::new();
    (&silent).read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    // In pieces.
    let mut slow = TcpStream::connect(server.address()).unwrap();
    for byte in b"GET /metrics HTTP/1.1\r\n\r\n" {
        slow.write_all(&[*byte]).unwrap();
    }
    slow.shutdown(Shutdown::Write).unwrap();
    said.clear();
    slow.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200"), "{said}");
}

#[test]
fn an_address_in_use_is_a_typed_error() {
    let node = Node::builder().start().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = node.serve_metrics(taken.local_addr().unwrap()).err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Listen { why: IoErrorKind::AddrInUse, .. }), "{error}");
    assert!(error.to_string().contains(&taken.local_addr().unwrap().to_string()), "{error}");
    let error = node.serve_metrics("192.0.2.1:1").err().unwrap();
    assert!(matches!(error.kind(), ErrorKind::Listen { why: IoErrorKind::AddrNotAvailable, .. }), "{error}");
}

/// The server of a node that had left was never stopped.
#[test]
fn a_node_that_has_left_serves_nothing() {
    let node = Node::builder().start().unwrap();
    node.clone().leave();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = node.serve_metrics(free).err().unwrap();
    let has_left = farfield::fabric::ErrorKind::PeerLeft { node: node.id() };
    assert!(matches!(error.kind(), ErrorKind::Fabric(why) if *why.kind() == has_left), "{error}");
    assert!(TcpListener::bind(free).is_ok());
}

#[test]
fn a_server_ends_with_its_handle_or_its_node() {
    let node = Node::builder().start().unwrap();
    let [first, second, third] = [(); 3].map(|()| node.serve_metrics("127.0.0.1:0").unwrap());
    let addresses = [first.address(), second.address(), third.address()];
    let is_free = |address: SocketAddr| TcpStream::connect(address).is_err() && TcpListener::bind(address).is_ok();
    drop(first);
    assert!(is_free(addresses[0]) && !is_free(addresses[1]));
    // A client in the middle of its request does not keep the node from leaving.
    let _silent = TcpStream::connect(addresses[1]).unwrap();
    std::mem::forget(third);
    let start = Instant::now();
    node.leave();
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(TcpStream::connect(addresses[1]).is_err() && TcpStream::connect(addresses[2]).is_err());
    drop(second);
}
