//! What the others do wrong, done right; and which types lack a trait, said so that it compiles only if they do (the
//! compiler's words for it list private fields, which change).

use farfield_fabric::{Buf, Endpoint, Op, Plain, RemotePtr, Result, Slot, Torn};

/// A path through this trait is ambiguous, and so an error, if the type has the other trait.
trait Lacks<A> {
    fn it() {}
}

mod lacks_sync {
    pub trait Lacks<A> {
        fn it() {}
    }
    impl<T: ?Sized> Lacks<()> for T {}
    impl<T: ?Sized + Sync> Lacks<u8> for T {}
}

impl<T> Lacks<()> for T {}
impl<T: Plain> Lacks<u8> for T {}

#[derive(Clone, Copy)]
#[allow(dead_code)]
struct Padded(u8, u64);

/// An endpoint is one thread's, and what belongs to it too.
fn not_shared() {
    <Endpoint as lacks_sync::Lacks<_>>::it();
    <Buf<'_, u64> as lacks_sync::Lacks<_>>::it();
    <Op<'_, u64> as lacks_sync::Lacks<_>>::it();
}

/// Only plain data goes into network memory: no pointers, no padding, no values that other bits would break.
fn not_plain() {
    <&u64 as Lacks<_>>::it();
    <bool as Lacks<_>>::it();
    <Padded as Lacks<_>>::it();
    <Option<u64> as Lacks<_>>::it();
    <Torn<[u64; 2]> as Lacks<_>>::it();
}

fn right(endpoint: &Endpoint, at: RemotePtr<u64>, slot: &Slot<[u64; 2]>) -> Result<()> {
    let mut buf = endpoint.buf::<u64>(4)?;
    buf[0] = 1;
    endpoint.put(at, &buf).wait()?;
    buf[0] = 2;
    let mut batch = endpoint.batch(at.node());
    batch = batch.put(at, &buf).put_value(at, 3);
    endpoint.block_on(batch.post())?;
    let buf = endpoint.get_into(at, buf).wait()?;
    let value: u64 = endpoint.get(at).wait()?;
    let pair: Option<[u64; 2]> = slot.read().validate(|pair| pair[0] == pair[1]);
    let torn = endpoint.block_on(endpoint.get_torn(at.cast::<[u64; 2]>()))?;
    let whole: Option<[u64; 2]> = torn.validate(|pair| pair[0] == value + buf[0]);
    let _ = (pair, whole);
    Ok(())
}

fn main() {
    let _: fn(&Endpoint, RemotePtr<u64>, &Slot<[u64; 2]>) -> Result<()> = right;
    fn sent<T: Send>() {}
    sent::<Endpoint>();
    not_shared();
    not_plain();
}
