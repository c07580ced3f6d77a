//! The blocking forms of the common calls, for programs that use no `async`: each waits on the calling thread for the
//! result of the call of the same name, less `_blocking`. There is no second implementation.

use farfield_fabric::{Endpoint, NodeId, Plain};

use crate::error::Result;
use crate::objects::atomic_var::AtomicVar;
use crate::objects::barrier::BarrierThread;
use crate::objects::kv::{Key, KvStore, Value};
use crate::objects::mutex::{Guard, Mutex, MutexArray};
use crate::objects::owned_var::{OwnedVar, OwnedWriter};
use crate::objects::queue::Queue;
use crate::objects::ring_buffer::{RingReceiver, RingSender};
use crate::objects::shared_var::SharedVar;

/// `NAME_blocking = NAME [receiver] self (arguments) -> output`; a lifetime behind the name is the endpoint's, too.
macro_rules! blocking {
    ($(impl [$($generics:tt)*] $type:ty {
        $($blocking:ident $(<$life:lifetime>)? = $call:ident [$($receiver:tt)+] $this:ident ($($argument:ident: $kind:ty),*) -> $output:ty;)+
    })+) => {$(
        impl<$($generics)*> $type {$(
            #[doc = concat!("[`", stringify!($call), "`](Self::", stringify!($call), "), which it waits for on this thread.")]
            /// The [crate](crate)'s first page has an example.
            ///
            /// # Errors
            #[doc = concat!("As `", stringify!($call), "`.")]
            pub fn $blocking$(<$life>)?(
                $($receiver)+ $this,
                endpoint: &$($life)? Endpoint
                $(, $argument: $kind)*
            ) -> Result<$output> {
                endpoint.block_on($this.$call(endpoint $(, $argument)*))
            }
        )+}
    )+};
}

blocking! {
    impl [] AtomicVar {
        load_blocking = load [&] self () -> u64;
        fetch_add_blocking = fetch_add [&] self (addend: u64) -> u64;
        compare_exchange_blocking = compare_exchange [&] self (expected: u64, new: u64) -> core::result::Result<u64, u64>;
        swap_blocking = swap [&] self (new: u64) -> u64;
        store_blocking = store [&] self (new: u64) -> ();
    }

    impl [T: Plain] SharedVar<T> {
        push_blocking = push [&] self (nodes: impl IntoIterator<Item = NodeId>) -> ();
        push_all_blocking = push_all [&] self () -> ();
        pull_blocking = pull [&] self (node: NodeId) -> T;
        fence_blocking = fence [&] self (nodes: impl IntoIterator<Item = NodeId>) -> ();
    }

    impl [T: Plain] OwnedVar<T> {
        load_blocking = load [&] self () -> T;
        pull_blocking = pull [&] self () -> T;
    }

    impl [T: Plain] OwnedWriter<T> {
        push_blocking = push [&mut] self () -> ();
    }

    impl [] BarrierThread {
        wait_blocking = wait [&mut] self () -> ();
    }

    impl [] RingSender {
        send_blocking = send [&mut] self (message: &[u8]) -> ();
    }

    impl [] RingReceiver {
        recv_blocking = recv [&mut] self (into: &mut Vec<u8>) -> ();
    }

    impl [V: Value] Queue<V> {
        enqueue_blocking = enqueue [&] self (value: &V) -> ();
        enqueue_batch_blocking = enqueue_batch [&] self (values: &[V]) -> ();
        dequeue_blocking = dequeue [&] self () -> V;
    }

    impl [] Mutex {
        lock_blocking<'a> = lock [&'a] self () -> Guard<'a>;
    }

    impl [] MutexArray {
        lock_blocking<'a> = lock [&'a] self (index: usize) -> Guard<'a>;
    }

    impl [K: Key, V: Value] KvStore<K, V> {
        get_blocking = get [&] self (key: &K) -> Option<V>;
        insert_blocking = insert [&] self (key: &K, value: &V) -> bool;
        update_blocking = update [&] self (key: &K, value: &V) -> bool;
        upsert_blocking = upsert [&] self (key: &K, value: &V) -> ();
        delete_blocking = delete [&] self (key: &K) -> bool;
    }
}
