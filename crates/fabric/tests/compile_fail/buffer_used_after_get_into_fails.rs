//! A get owns its target until it is complete.

use farfield_fabric::{Endpoint, RemotePtr, Result};

fn look_too_early(endpoint: &Endpoint, at: RemotePtr<u64>) -> Result<u64> {
    let buf = endpoint.buf::<u64>(4)?;
    let get = endpoint.get_into(at, buf);
    let early = buf[0];
    get.wait()?;
    Ok(early)
}

fn main() {
    let _ = look_too_early;
}
