//! Tests of whole arrays on a node that is alone.

use farfield_core::{ErrorKind, Node, Result, local_session};
use farfield_fabric::Endpoint;

use super::*;

fn node() -> Result<(Node, Endpoint)> {
    let node = local_session(1)?.remove(0);
    let endpoint = node.endpoint()?;
    Ok((node, endpoint))
}

#[test]
fn options_are_checked() -> Result<()> {
    let (node, _) = node()?;
    let valid = ALockOptions { remote_budget: 1, local_budget: 1, operations_max: 1 };
    let invalid = [
        ALockOptions { remote_budget: 0, ..valid },
        ALockOptions { local_budget: 0, ..valid },
        ALockOptions { operations_max: 0, ..valid },
        ALockOptions { operations_max: descriptor::COUNT_MAX + 1, ..valid },
    ];
    for (at, options) in invalid.into_iter().enumerate() {
        let error = ALockArray::open(&node, &format!("invalid{at}"), 1, options).err().expect("they are invalid");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{options:?}: {error}");
    }
    for operations_max in [0, descriptor::COUNT_MAX + 1] {
        let error = McsLockArray::open(&node, "invalid", 1, operations_max).err().expect("it is invalid");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{operations_max}: {error}");
    }
    for kind in LockKind::ALL {
        for count in [0, 1 << 41, usize::MAX] {
            let options = LockOptions { kind: *kind, alock: valid };
            let error = LockTable::open(&node, "invalid", count, options).err().expect("it is invalid");
            assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{count} of {kind}: {error}");
        }
    }
    valid.check(descriptor::LOCKS_MAX)?;
    ALockOptions { operations_max: descriptor::COUNT_MAX, ..valid }.check(1)?;
    assert!(valid.check(descriptor::LOCKS_MAX + 1).is_err());
    ALockArray::open(&node, "valid", 1, valid).map(drop)
}

/// Each lock of a reopened array warns of a death until one holder has repaired; a new one does not.
#[test]
fn reopened_locks_warn() -> Result<()> {
    let (node, ep) = node()?;
    let alock = ALockOptions { operations_max: 2, ..ALockOptions::default() };
    for kind in LockKind::ALL {
        let open = |path: &str| LockTable::open(&node, path, 3, LockOptions { kind: *kind, alock });
        let locks = open(kind.name())?;
        for index in 0..3 {
            let guard = ep.block_on(locks.try_lock(&ep, index))?.expect("it is free");
            assert!(!guard.is_poisoned(), "{kind} {index} is new");
            ep.block_on(guard.unlock())?;
        }
        drop(locks);
        let locks = node.reopen(kind.name(), |again| open(again.path()))?;
        for index in 0..3 {
            let guard = ep.block_on(locks.try_lock(&ep, index))?.expect("it is free");
            assert!(guard.is_poisoned(), "{kind} {index} is reopened");
            ep.block_on(guard.unlock())?;
            let mut guard = ep.block_on(locks.lock(&ep, index))?;
            assert!(guard.is_poisoned(), "{kind} {index} is not repaired");
            guard.clear_poison();
            ep.block_on(guard.unlock())?;
            for _ in 0..3 {
                let guard = ep.block_on(locks.try_lock(&ep, index))?.expect("it is free");
                assert!(!guard.is_poisoned(), "{kind} {index} is repaired");
                ep.block_on(guard.unlock())?;
            }
        }
    }
    Ok(())
}
