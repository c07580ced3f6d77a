//! A buffer that a put reads cannot be the target of a get.

use farfield_fabric::{Endpoint, RemotePtr, Result};

fn put_then_get_into(endpoint: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    let buf = endpoint.buf::<u64>(4)?;
    let put = endpoint.put(at, &buf);
    let get = endpoint.get_into(at, buf);
    put.wait()?;
    get.wait().map(drop)
}

fn main() {
    let _ = put_then_get_into;
}
