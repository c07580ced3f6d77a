//! A buffer stays where it is while the handle of a put lives.

use farfield_fabric::{Endpoint, RemotePtr, Result};

fn put_then_drop(endpoint: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    let buf = endpoint.buf::<u64>(4)?;
    let put = endpoint.put(at, &buf);
    drop(buf);
    put.wait()
}

fn main() {
    let _ = put_then_drop;
}
