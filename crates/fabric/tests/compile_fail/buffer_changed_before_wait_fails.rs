//! The paper's first hazard: a put may not have read its source when the source is changed.

use farfield_fabric::{Endpoint, RemotePtr, Result};

fn put_then_change(endpoint: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    let mut buf = endpoint.buf::<u64>(4)?;
    let put = endpoint.put(at, &buf);
    buf[0] = 1;
    put.wait()
}

fn main() {
    let _ = put_then_change;
}
