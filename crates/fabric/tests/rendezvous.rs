//! Nodes of one session find each other, in any order of entering, starting and leaving.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farfield_fabric::shm::{ShmFabric, ShmOptions};
use farfield_fabric::{ControlEvent, Fabric, NodeId, Thread, Transport};

/// A node with a running service thread.
struct Running {
    fabric: Arc<ShmFabric>,
    up: Arc<Mutex<Vec<NodeId>>>,
    stop: Arc<AtomicBool>,
    service: Thread,
}

/// Takes a place without starting the node's service thread.
fn enter(session: &str, place: u16) -> Arc<ShmFabric> {
    let options = ShmOptions { group_bytes_max: 4 << 20, ..ShmOptions::new(session, place, 3) };
    ShmFabric::join(&options).expect("a place in the session")
}

fn start(fabric: Arc<ShmFabric>) -> Running {
    let (up, stop) = (Arc::<Mutex<Vec<NodeId>>>::default(), Arc::<AtomicBool>::default());
    let body = {
        let (fabric, up, stop) = (Arc::clone(&fabric), Arc::clone(&up), Arc::clone(&stop));
        move || {
            while !stop.load(Ordering::Acquire) {
                fabric.serve(Duration::from_millis(50), &mut |event| {
                    if let ControlEvent::Up(node) = event {
                        up.lock().unwrap().push(node);
                    }
                });
            }
            fabric.leave();
        }
    };
    let service = Transport::spawn_service(Arc::clone(&fabric) as _, "service".into(), Box::new(body)).unwrap();
    Running { fabric, up, stop, service }
}

impl Running {
    fn sees(&self, nodes: &[u16]) {
        let start = Instant::now();
        loop {
            let mut up: Vec<u16> = self.up.lock().unwrap().iter().map(|node| node.0).collect();
            up.sort_unstable();
            if up == nodes {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{} sees {up:?}, not {nodes:?}", self.fabric.me());
            std::thread::yield_now();
        }
    }

    fn leave(self) {
        self.stop.store(true, Ordering::Release);
        self.fabric.wake_service();
        self.service.join().unwrap();
    }
}

/// The later of two nodes connects to the earlier one. That one need not run yet, and its number may be beyond those of
/// all running nodes.
#[test]
fn two_that_return_at_once_find_each_other_whichever_enters_first() {
    let session = format!("test-rendezvous-{}", std::process::id());
    let [zero, one, two] = [0, 1, 2].map(|place| start(enter(&session, place)));
    zero.sees(&[1, 2]);
    one.leave();
    two.leave();
    let five = enter(&session, 2);
    let four = enter(&session, 1);
    assert_eq!((four.me(), five.me()), (NodeId(4), NodeId(5)));
    let [four, five] = [four, five].map(start);
    four.sees(&[0, 5]);
    five.sees(&[0, 4]);
    zero.sees(&[1, 2, 4, 5]);
    [zero, four, five].into_iter().for_each(Running::leave);
}
