//! Network memory is not read as if it were ordinary.

use farfield_fabric::Slot;

fn whole(slot: &Slot<[u64; 2]>) -> [u64; 2] {
    *slot
}

fn part(slot: &Slot<[u64; 2]>) -> u64 {
    slot[0]
}

fn main() {
    let _ = (whole, part);
}
