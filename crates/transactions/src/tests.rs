//! Tests of the numbers of cells and locks.

use farfield_core::local_session;
use farfield_locks::{LockKind, LockOptions};

use super::*;

#[test]
fn missing_cells_and_invalid_options_are_errors() -> Result<()> {
    let node = local_session(1)?.remove(0);
    let options = |cells, locks| TransactionOptions { cells, locks, lock: LockOptions::new(LockKind::ALock) };
    for (cells, locks) in [(0, 1), (1, 0), (0, 0), (usize::MAX, 1), (1, usize::MAX)] {
        let error = Transactions::open(&node, "invalid", options(cells, locks)).err().expect("they are invalid");
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    }
    let cells = Transactions::open(&node, "cells", options(3, 2))?;
    assert_eq!((cells.home(2)?, cells.lock_of(2)?), (node.id(), 0));
    for cell in [3, 4] {
        for error in [cells.home(cell).unwrap_err(), cells.lock_of(cell).unwrap_err()] {
            assert_eq!(error.custom_ref::<NoSuchCell>(), Some(&NoSuchCell { cell, cells: 3 }));
        }
    }
    Ok(())
}

#[test]
fn cells_are_opened_by_their_participants_only() {
    let nodes = local_session(2).unwrap();
    let options = TransactionOptions { cells: 3, locks: 2, lock: LockOptions::new(LockKind::ALock) };
    for participants in [&[][..], &[nodes[1].id()]] {
        let error =
            Transactions::open_among(&nodes[0], "cells", participants, options).err().expect("it is no participant");
        assert!(matches!(error.kind(), ErrorKind::NotAParticipant { .. }), "{error}");
    }
}

#[test]
fn a_lock_lies_on_its_cells_node_where_that_has_any() {
    let of = |cell: usize, nodes, locks| {
        let (rank, word) = (cell % nodes, cell / nodes);
        lock_of(rank, word, nodes, locks_of(rank, nodes, locks), || locks)
    };
    for (nodes, locks) in [(1, 1), (3, 3), (3, 7), (4, 5), (2, 100)] {
        let mut used = vec![false; locks];
        for cell in 0..1000 {
            let lock = of(cell, nodes, locks);
            assert_eq!(lock % nodes, cell % nodes, "cell {cell}: {nodes} nodes, {locks} locks");
            used[lock] = true;
        }
        assert!(used.into_iter().all(|used| used), "{nodes} nodes, {locks} locks");
    }
    assert_eq!([0, 1, 2, 3, 4, 5].map(|cell| of(cell, 5, 2)), [0, 1, 0, 1, 0, 0]);
}
