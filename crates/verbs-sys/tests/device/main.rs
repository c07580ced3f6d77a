//! The declarations at work: on every RDMA device of this machine by itself, and between each two neighbours.
//!
//! A machine without a device passes and says so, unless `FARFIELD_NEED_DEVICE=1`. Without hardware:
//!
//! ```sh
//! export FARFIELD_NEED_DEVICE=1 CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$PWD/ci/soft-roce-vm
//! cargo test -p farfield-verbs-sys --test device
//! ```

mod side;

use std::rc::Rc;
use std::{env, io};

use farfield_verbs_sys::*;
use side::{Calls, Completion, Device, Side, WORDS, What, Work, succeeds, text};

/// The devices to test with; none where there are none.
fn devices() -> Vec<Rc<Device>> {
    Device::all().unwrap_or_else(|reason| {
        assert!(env::var_os("FARFIELD_NEED_DEVICE").is_none_or(|value| value != "1"), "no device: {reason}");
        eprintln!("no device: {reason}");
        Vec::new()
    })
}

/// Runs a test on connected sides, with the classic and with the extended calls: on each device, and from each to the
/// next.
fn on_connections(test: impl Fn(&Side, &Side)) {
    let devices = devices();
    let neighbours = devices.windows(2).map(|pair| (&pair[0], &pair[1]));
    let pairs: Vec<_> = devices.iter().map(|device| (device, device)).chain(neighbours).collect();
    for calls in [Calls::Classic, Calls::Extended] {
        for (from, to) in &pairs {
            eprintln!("{calls:?} calls from {} to {}", from.name, to.name);
            let (origin, target) = (Side::new(from, calls), Side::new(to, calls));
            origin.connect(&target.address());
            target.connect(&origin.address());
            test(&origin, &target);
        }
    }
}

#[test]
fn devices_report_their_capabilities() {
    for device in devices() {
        // SAFETY: attributes are integers, for which zero is valid; the device is open.
        let (classic, extended) = unsafe {
            let mut classic: ibv_device_attr = core::mem::zeroed();
            succeeds("ibv_query_device", (device.verbs.ibv_query_device)(device.context, &mut classic));
            let mut extended: ibv_device_attr_ex = core::mem::zeroed();
            succeeds("ibv_query_device_ex", ibv_query_device_ex(device.verbs, device.context, &mut extended));
            (classic, extended)
        };
        assert_eq!(format!("{classic:?}"), format!("{:?}", extended.orig_attr));
        assert!(classic.max_qp > 0 && classic.max_qp_wr > 0 && classic.phys_port_cnt > 0);
        assert!(device.port.active_mtu >= IBV_MTU_256 && device.port.active_mtu <= device.port.max_mtu);
        let gids = device.gids();
        assert!(gids.iter().any(|entry| entry.gid == device.gid.gid && entry.gid_index == device.gid.gid_index));
        // SAFETY: the function takes any number, and the device is open.
        let (state, guid) = unsafe {
            let device_of = (*device.context).device;
            let state = text((device.verbs.ibv_port_state_str)(device.port.state));
            (state, u64::from_be((device.verbs.ibv_get_device_guid)(device_of)))
        };
        assert_eq!(guid, u64::from_be(classic.node_guid));
        let atomics = ["none", "among themselves", "with everything"][classic.atomic_cap as usize];
        eprintln!(
            "{}: guid {guid:016x}, {state}, MTU {}, {} GIDs, atomics {atomics}, PCI atomics {:?}, \
             device memory {} bytes",
            device.name,
            128 << device.port.active_mtu,
            gids.len(),
            extended.pci_atomic_caps,
            extended.max_dm_size,
        );
    }
}

#[test]
fn puts_and_gets_move_bytes() {
    on_connections(|origin, target| {
        let there = target.address();
        for word in 0..8 {
            origin.set_word(word, 100 + word as u64);
        }
        let write = What::Write { local: 0, words: 8, remote: target.addr(16), rkey: there.rkey };
        let opcode = origin.succeed(0, write);
        assert_eq!(opcode, IBV_WC_RDMA_WRITE);
        let small = What::Write { local: 3, words: 1, remote: target.addr(24), rkey: there.rkey };
        origin.succeed(IBV_SEND_INLINE, small);
        let read = What::Read { local: 32, words: 9, remote: target.addr(16), rkey: there.rkey };
        assert_eq!(origin.succeed(IBV_SEND_FENCE, read), IBV_WC_RDMA_READ);
        let expected = [100, 101, 102, 103, 104, 105, 106, 107, 103];
        for (word, expected) in expected.into_iter().enumerate() {
            assert_eq!(origin.word(32 + word), expected);
            assert_eq!(target.word(16 + word), expected);
        }
        assert_eq!(target.word(15), 0);
        assert_eq!(target.word(25), 0);
    });
}

#[test]
fn atomics_return_the_old_value() {
    on_connections(|origin, target| {
        let (remote, rkey) = (target.addr(5), target.address().rkey);
        target.set_word(5, 7);
        let cas = |compare, swap| What::Cas { local: 40, remote, rkey, compare, swap };
        assert_eq!(origin.succeed(0, cas(7, 1 << 40)), IBV_WC_COMP_SWAP);
        assert_eq!((origin.word(40), target.word(5)), (7, 1 << 40));
        origin.succeed(0, cas(7, 8));
        assert_eq!((origin.word(40), target.word(5)), (1 << 40, 1 << 40), "the word was another one");
        let faa = What::Faa { local: 41, remote, rkey, add: 3 };
        assert_eq!(origin.succeed(0, faa), IBV_WC_FETCH_ADD);
        assert_eq!((origin.word(41), target.word(5)), (1 << 40, (1 << 40) + 3));
    });
}

#[test]
fn one_doorbell_starts_a_batch_and_one_completion_ends_it() {
    on_connections(|origin, target| {
        let rkey = target.address().rkey;
        for word in 0..8 {
            origin.set_word(word, word as u64 + 1);
        }
        let mut batch: Vec<_> = (0..8)
            .map(|word| Work {
                wr_id: word as u64,
                flags: 0,
                what: What::Write { local: word, words: 1, remote: target.addr(word), rkey },
            })
            .collect();
        batch[3].flags = IBV_SEND_SIGNALED;
        batch[7].flags = IBV_SEND_SIGNALED;
        origin.post(&batch);
        let done = |wr_id| Completion { wr_id, status: IBV_WC_SUCCESS, opcode: IBV_WC_RDMA_WRITE };
        assert_eq!(origin.wait(2), [done(3), done(7)]);
        // A read flushes the writes before it.
        origin.succeed(0, What::Read { local: 32, words: 8, remote: target.addr(0), rkey });
        assert!((0..8).all(|word| target.word(word) == word as u64 + 1 && origin.word(32 + word) == word as u64 + 1));
        if origin.calls == Calls::Extended {
            let dropped = What::Write { local: 0, words: 1, remote: target.addr(60), rkey };
            origin.abort_extended(&Work { wr_id: 99, flags: IBV_SEND_SIGNALED, what: dropped });
            origin.succeed(0, What::Write { local: 1, words: 1, remote: target.addr(61), rkey });
            assert_eq!((target.word(60), target.word(61)), (0, 2));
        }
    });
}

#[test]
fn failures_are_reported_and_a_reset_forgets_them() {
    on_connections(|origin, target| {
        let there = target.address();
        let write = |rkey| What::Write { local: 0, words: 1, remote: target.addr(0), rkey };
        origin.set_word(0, 5);
        let status = origin.run(0, write(there.rkey ^ 0xff00)).status;
        // Soft-RoCE says the former, devices the latter.
        assert!([IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR].contains(&status), "{status}");
        assert_eq!(origin.state(), IBV_QPS_ERR);
        assert_eq!(origin.run(0, write(there.rkey)).status, IBV_WC_WR_FLUSH_ERR);
        assert_eq!(target.word(0), 0);
        origin.reset();
        target.reset();
        origin.connect(&there);
        target.connect(&origin.address());
        origin.succeed(0, write(there.rkey));
        origin.succeed(0, What::Read { local: 1, words: 1, remote: target.addr(0), rkey: there.rkey });
        assert_eq!((target.word(0), origin.word(1)), (5, 5));
    });
}

#[test]
fn rights_can_be_taken_from_a_queue_pair() {
    on_connections(|origin, target| {
        let rkey = target.address().rkey;
        let write = What::Write { local: 0, words: 1, remote: target.addr(8), rkey };
        origin.set_word(0, 5);
        origin.succeed(0, write);
        let attr = ibv_qp_attr { qp_access_flags: IBV_ACCESS_REMOTE_READ, ..Default::default() };
        target.modify(attr, IBV_QP_ACCESS_FLAGS);
        origin.succeed(0, What::Read { local: 1, words: 1, remote: target.addr(8), rkey });
        origin.set_word(0, 6);
        assert_ne!(origin.run(0, write).status, IBV_WC_SUCCESS);
        assert_eq!(target.word(8), 5);
    });
}

#[test]
fn order_of_placement_is_known_or_not() {
    on_connections(|origin, _| {
        let Some(query) = origin.device.verbs.ibv_query_qp_data_in_order else {
            eprintln!("this libibverbs does not know");
            return;
        };
        // SAFETY: the queue pair is alive.
        let answer = unsafe { query(origin.qp, IBV_WR_RDMA_WRITE, 0) };
        assert!([0, 1].contains(&answer), "{answer}");
        eprintln!("{}: writes are {}placed in order", origin.device.name, ["not known to be ", ""][answer as usize]);
    });
}

#[test]
fn asynchronous_events_are_read_and_acknowledged() {
    for device in devices() {
        // SAFETY: the device is open; an event that was read is acknowledged once.
        unsafe {
            assert_eq!(libc::fcntl((*device.context).async_fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
            let side = Side::new(&device, Calls::Classic);
            let mut event: ibv_async_event = core::mem::zeroed();
            while (device.verbs.ibv_get_async_event)(device.context, &mut event) == 0 {
                eprintln!("{}: {}", device.name, text((device.verbs.ibv_event_type_str)(event.event_type)));
                (device.verbs.ibv_ack_async_event)(&mut event);
            }
            assert_eq!(io::Error::last_os_error().kind(), io::ErrorKind::WouldBlock);
            assert_eq!(side.memory.len(), WORDS);
        }
    }
}
