//! Buffers are their endpoint's: the endpoint knows which operations still use them.

use farfield_fabric::{Buf, Endpoint, Result};

fn keep<'e>(endpoint: Endpoint) -> Result<Buf<'e, u64>> {
    endpoint.buf::<u64>(4)
}

fn main() {
    let _ = keep;
}
