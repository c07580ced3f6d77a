//! A buffer in a batch is read at any time until the batch has been waited for.

use farfield_fabric::{Endpoint, RemotePtr, Result};

fn batch_then_change(endpoint: &Endpoint, at: RemotePtr<u64>) -> Result<()> {
    let mut buf = endpoint.buf::<u64>(4)?;
    let batch = endpoint.batch(at.node()).put(at, &buf);
    buf.fill(1);
    endpoint.block_on(batch.post())
}

fn main() {
    let _ = batch_then_change;
}
