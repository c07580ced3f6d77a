//! The blocking forms of the common calls, for programs that use no `async`: each waits on the calling thread for the
//! result of the call of the same name, less `_blocking`. There is no second implementation.

use farfield_fabric::{Endpoint, NodeId, Plain};

use crate::error::Result;
use crate::objects::atomic_var::AtomicVar;
use crate::objects::barrier::BarrierThread;
use crate::objects::channel::{ChannelReceiver, ChannelSender};
use crate::objects::kv::{Key, KvStore, Value};
use crate::objects::mutex::{Guard, Mutex, MutexArray};
use crate::objects::owned_var::{OwnedVar, OwnedWriter};
use crate::objects::queue::Queue;
use crate::objects::ring_buffer::{RingReceiver, RingSender};
use crate::objects::shared_var::SharedVar;

/// `NAME_blocking = NAME [receiver] self (arguments) -> output`; a lifetime behind the name is the endpoint's, too. The
/// comment of a method is its example, those of its `impl` are the hidden lines before it.
/// All others are written `#[doc]` here: beside `///` the examples would be indented by a space.
macro_rules! blocking {
    ($(#[$session:meta] #[$object:meta] impl [$($generics:tt)*] $type:ty {
        $($(#[$example:meta])+
          $blocking:ident $(<$life:lifetime>)? = $call:ident [$($receiver:tt)+] $this:ident
              ($($argument:ident: $kind:ty),*) -> $output:ty;)+
    })+) => {$(
        impl<$($generics)*> $type {$(
            #[doc = concat!(
                " [`", stringify!($call), "`](Self::", stringify!($call), "), which it waits for on this thread."
            )]
            #[doc = ""]
            #[doc = " ```"]
            #[$session]
            #[$object]
            $(#[$example])+
            #[doc = " # Ok::<(), farfield::Error>(())"]
            #[doc = " ```"]
            #[doc = ""]
            #[doc = " # Errors"]
            #[doc = concat!(" As `", stringify!($call), "`.")]
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
    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let hits = farfield::AtomicVar::open(&node, "hits", node.id())?;
    impl [] AtomicVar {
        /// assert_eq!(hits.load_blocking(&ep)?, 0); // before the first write
        load_blocking = load [&] self () -> u64;
        /// assert_eq!(hits.fetch_add_blocking(&ep, 2)?, 0); // the old value
        fetch_add_blocking = fetch_add [&] self (addend: u64) -> u64;
        /// assert_eq!(hits.compare_exchange_blocking(&ep, 0, 7)?, Ok(0));
        /// assert_eq!(hits.compare_exchange_blocking(&ep, 0, 8)?, Err(7));
        compare_exchange_blocking = compare_exchange [&] self (expected: u64, new: u64)
            -> core::result::Result<u64, u64>;
        /// assert_eq!(hits.swap_blocking(&ep, 7)?, 0); // the old value
        swap_blocking = swap [&] self (new: u64) -> u64;
        /// hits.store_blocking(&ep, 7)?;
        /// assert_eq!(hits.load_blocking(&ep)?, 7);
        store_blocking = store [&] self (new: u64) -> ();
    }

    /// # let nodes = farfield::local_session(2)?; let (ep, other) = (nodes[0].endpoint()?, nodes[1].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::SharedVar::<u64>::open(node, "x"))?;
    impl [T: Plain] SharedVar<T> {
        /// vars[0].store(5);
        /// vars[0].push_blocking(&ep, [other])?; // a fence tells when it is visible there
        push_blocking = push [&] self (nodes: impl IntoIterator<Item = NodeId>) -> ();
        /// vars[0].store(5);
        /// vars[0].push_all_blocking(&ep)?; // a fence tells when it is visible there
        push_all_blocking = push_all [&] self () -> ();
        /// vars[1].store(7);
        /// assert_eq!(vars[0].pull_blocking(&ep, other)?, 7);
        pull_blocking = pull [&] self (node: NodeId) -> T;
        /// vars[0].store(5);
        /// vars[0].push_all_blocking(&ep)?;
        /// vars[0].fence_blocking(&ep, [other])?;
        /// assert_eq!(vars[1].load(), 5);
        fence_blocking = fence [&] self (nodes: impl IntoIterator<Item = NodeId>) -> ();
    }

    /// # let nodes = farfield::local_session(2)?; let (ep, owner) = (nodes[1].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    impl [T: Plain] OwnedVar<T> {
        /// assert_eq!(vars[1].load_blocking(&ep)?, [0; 4]); // before the first push
        load_blocking = load [&] self () -> T;
        /// vars[0].writer()?.store([1; 4]); // and pushes it to nobody
        /// assert_eq!(vars[1].pull_blocking(&ep)?, [1; 4]);
        pull_blocking = pull [&] self () -> T;
    }

    /// # let nodes = farfield::local_session(2)?; let (ep, owner) = (nodes[0].endpoint()?, nodes[0].id());
    /// # let vars = farfield::on_each(&nodes, |node| farfield::OwnedVar::<[u64; 4]>::open(node, "setpoint", owner))?;
    impl [T: Plain] OwnedWriter<T> {
        /// let mut writer = vars[0].writer()?;
        /// writer.store([1; 4]);
        /// writer.push_blocking(&ep)?; // a fence tells when it is visible on all others
        push_blocking = push [&mut] self () -> ();
    }

    /// # let nodes = farfield::local_session(2)?;
    /// # use farfield::{Barrier, on_each};
    impl [] BarrierThread {
        /// on_each(&nodes, |node| {
        ///     let barrier = Barrier::open(node, "start", 1)?;
        ///     barrier.thread()?.wait_blocking(&node.endpoint()?) // until the other node's thread arrives
        /// })?;
        wait_blocking = wait [&mut] self () -> ();
    }

    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # let ring = farfield::RingBuffer::open(&node, "log", farfield::RingOptions::new(me, [(me, 1)], 4096))?;
    impl [] RingSender {
        /// ring.sender()?.send_blocking(&ep, b"hello")?;
        send_blocking = send [&mut] self (message: &[u8]) -> ();
    }

    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # let ring = farfield::RingBuffer::open(&node, "log", farfield::RingOptions::new(me, [(me, 1)], 4096))?;
    impl [] RingReceiver {
        /// let (mut receiver, mut message) = (ring.receiver()?, Vec::new());
        /// ring.sender()?.send_blocking(&ep, b"hello")?;
        /// receiver.recv_blocking(&ep, &mut message)?;
        /// assert_eq!(message, b"hello");
        recv_blocking = recv [&mut] self (into: &mut Vec<u8>) -> ();
    }

    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # let log = farfield::Channel::<u64>::open(&node, "log", farfield::ChannelOptions::new(me, [(me, 1)], 8))?;
    impl [T: Value] ChannelSender<T> {
        /// log.sender()?.send_blocking(&ep, &7)?;
        send_blocking = send [&mut] self (value: &T) -> ();
    }

    /// # let node = farfield::Node::builder().start()?; let (ep, me) = (node.endpoint()?, node.id());
    /// # let log = farfield::Channel::<u64>::open(&node, "log", farfield::ChannelOptions::new(me, [(me, 1)], 8))?;
    impl [T: Value] ChannelReceiver<T> {
        /// let mut receiver = log.receiver()?;
        /// log.sender()?.send_blocking(&ep, &7)?;
        /// assert_eq!(receiver.recv_blocking(&ep)?, 7);
        recv_blocking = recv [&mut] self () -> T;
    }

    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let jobs = farfield::Queue::<u64>::open(&node, "jobs", farfield::QueueOptions::new(node.id(), 4))?;
    impl [V: Value] Queue<V> {
        /// jobs.enqueue_blocking(&ep, &1)?;
        /// assert_eq!(jobs.dequeue_blocking(&ep)?, 1);
        enqueue_blocking = enqueue [&] self (value: &V) -> ();
        /// jobs.enqueue_batch_blocking(&ep, &[1, 2, 3])?; // with nothing between them
        /// assert_eq!(jobs.dequeue_blocking(&ep)?, 1);
        enqueue_batch_blocking = enqueue_batch [&] self (values: &[V]) -> ();
        /// jobs.enqueue_blocking(&ep, &1)?;
        /// assert_eq!(jobs.dequeue_blocking(&ep)?, 1);
        dequeue_blocking = dequeue [&] self () -> V;
        /// assert!(jobs.close_blocking(&ep)?);
        /// assert!(jobs.dequeue_blocking(&ep).is_err_and(|error| error.is_closed()));
        close_blocking = close [&] self () -> bool;
    }

    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let mutex = farfield::Mutex::open(&node, "account", node.id())?;
    impl [] Mutex {
        /// let guard = mutex.lock_blocking(&ep)?;
        /// // … work on what it protects …
        /// ep.block_on(guard.unlock())?;
        lock_blocking<'a> = lock [&'a] self () -> Guard<'a>;
    }

    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let locks = farfield::MutexArray::open(&node, "stripes", 64)?;
    impl [] MutexArray {
        /// let guard = locks.lock_blocking(&ep, 7)?;
        /// // … work on what it protects …
        /// ep.block_on(guard.unlock())?;
        lock_blocking<'a> = lock [&'a] self (index: usize) -> Guard<'a>;
    }

    /// # let node = farfield::Node::builder().start()?; let ep = node.endpoint()?;
    /// # let kv = farfield::KvStore::<u64, u64>::open(&node, "kv", farfield::KvOptions::default())?;
    impl [K: Key, V: Value] KvStore<K, V> {
        /// assert_eq!(kv.get_blocking(&ep, &7)?, None);
        get_blocking = get [&] self (key: &K) -> Option<V>;
        /// assert!(kv.insert_blocking(&ep, &7, &42)?);
        /// assert!(!kv.insert_blocking(&ep, &7, &43)?); // the key has a value
        insert_blocking = insert [&] self (key: &K, value: &V) -> bool;
        /// assert!(!kv.update_blocking(&ep, &7, &42)?); // the key has no value
        update_blocking = update [&] self (key: &K, value: &V) -> bool;
        /// kv.upsert_blocking(&ep, &7, &42)?;
        /// assert_eq!(kv.get_blocking(&ep, &7)?, Some(42));
        upsert_blocking = upsert [&] self (key: &K, value: &V) -> ();
        /// kv.insert_blocking(&ep, &7, &42)?;
        /// assert!(kv.delete_blocking(&ep, &7)?);
        delete_blocking = delete [&] self (key: &K) -> bool;
    }
}
