//! `get` promises a whole value, and only words are.

use farfield_fabric::{Endpoint, RemotePtr, Result};

fn get_pair(endpoint: &Endpoint, at: RemotePtr<[u64; 2]>) -> Result<[u64; 2]> {
    endpoint.get(at).wait()
}

fn main() {
    let _: fn(&Endpoint, RemotePtr<[u64; 2]>) -> Result<[u64; 2]> = get_pair;
}
