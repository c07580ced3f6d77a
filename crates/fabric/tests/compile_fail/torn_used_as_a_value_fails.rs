//! A copy that may mix several writes is not a value before something vouches for it.

use farfield_fabric::{Endpoint, RemotePtr, Result, Slot};

fn read(slot: &Slot<[u64; 2]>) -> [u64; 2] {
    slot.read()
}

fn deref(slot: &Slot<[u64; 2]>) -> u64 {
    slot.read()[0]
}

fn get(endpoint: &Endpoint, at: RemotePtr<[u64; 2]>) -> Result<[u64; 2]> {
    endpoint.block_on(endpoint.get_torn(at))
}

fn peek(slot: &Slot<[u64; 2]>) -> u64 {
    slot.read().0[0]
}

fn main() {
    let _ = (read, deref, get, peek);
}
