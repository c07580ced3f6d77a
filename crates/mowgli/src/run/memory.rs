//! The memory that a test runs on.

use super::ObjectCall;
use crate::litmus::Value;

/// The memory that the calls of one thread access. Places and nodes are numbered as in the [`Plan`](super::Plan),
/// operations by the number of their name.
///
/// A put, a get or a remote read-modify-write need only have begun when its call returns. A test over `rdmatso` names
/// no operations; theirs have the number [`NAMELESS`].
///
/// ```
/// # use mowgli::run::Memory;
/// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
/// // Put(d, z, x); Wait(d); Write(x, 1); here `x` is the word 0, `z` the word 1, and `d` the name 0.
/// memory.put(0, 1, 0)?;
/// memory.wait(0)?;
/// memory.write(0, 1)?;
/// # Ok(())
/// # }
/// ```
pub trait Memory {
    /// The error of an access.
    type Error;
    /// Writes a local word.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// memory.write(0, 7)?; // Write(x, 7)
    /// assert_eq!(memory.read(0)?, 7); // unless another thread writes it
    /// # Ok(())
    /// # }
    /// ```
    fn write(&mut self, at: usize, value: i64) -> Result<(), Self::Error>;
    /// Reads a local word.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// let a = memory.read(0)?; // let a = Read(x)
    /// memory.write(1, a + 1)?; // Write(y, a + 1)
    /// # Ok(())
    /// # }
    /// ```
    fn read(&mut self, at: usize) -> Result<i64, Self::Error>;
    /// Compares a local word, and writes it if it is `old`. Returns the value before.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// let before = memory.cas(0, 3, 5)?; // CAS(x, 3, 5)
    /// let is_written = before == 3;
    /// # Ok(())
    /// # }
    /// ```
    fn cas(&mut self, at: usize, old: i64, new: i64) -> Result<i64, Self::Error>;
    /// Empties the thread's store buffer.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// memory.write(0, 1)?; // Write(x, 1)
    /// memory.mfence()?; // Mfence(); other threads see the write from now on
    /// let a = memory.read(1)?; // let a = Read(y)
    /// # Ok(())
    /// # }
    /// ```
    fn mfence(&mut self) -> Result<(), Self::Error>;
    /// Puts a local word.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// memory.put(0, 1, 0)?; // Put(d, z, x)
    /// memory.wait(0)?; // Wait(d); the put has read its source
    /// # Ok(())
    /// # }
    /// ```
    fn put(&mut self, id: usize, to: usize, from: usize) -> Result<(), Self::Error>;
    /// Gets into a local word.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// memory.get(0, 0, 1)?; // Get(d, x, z)
    /// memory.wait(0)?; // Wait(d); `x` has the word from now on
    /// let a = memory.read(0)?;
    /// # Ok(())
    /// # }
    /// ```
    fn get(&mut self, id: usize, to: usize, from: usize) -> Result<(), Self::Error>;
    /// Fences the thread's operations towards a node.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// memory.get(0, 0, 1)?; // Get(d, x, z)
    /// memory.rfence(1)?; // Rfence(2), of the second node: the get reads before the put does
    /// memory.put(1, 1, 0)?; // Put(e, z, x)
    /// # Ok(())
    /// # }
    /// ```
    fn rfence(&mut self, node: usize) -> Result<(), Self::Error>;
    /// Waits for all operations of a name.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// memory.put(0, 1, 0)?; // Put(d, z, x)
    /// memory.get(0, 0, 2)?; // Get(d, x, y)
    /// memory.wait(0)?; // Wait(d), for both
    /// # Ok(())
    /// # }
    /// ```
    fn wait(&mut self, id: usize) -> Result<(), Self::Error>;
    /// Waits for the oldest operation towards a node that was not polled; false if there is none.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// # use mowgli::run::NAMELESS;
    /// memory.put(NAMELESS, 1, 0)?; // Put(z, x), of a test over `rdmatso`
    /// assert!(memory.poll(1)?); // Poll(2), of the second node
    /// assert!(!memory.poll(1)?); // there is no other operation
    /// # Ok(())
    /// # }
    /// ```
    fn poll(&mut self, node: usize) -> Result<bool, Self::Error>;
    /// Begins a remote read-modify-write.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// # use mowgli::run::{Change, Rmw};
    /// memory.rmw(Rmw { id: 0, into: 0, is_private: false, at: 1, change: Change::Add(2) })?; // RFaa(d, x, z, 2)
    /// memory.wait(0)?; // Wait(d)
    /// let old = memory.read(0)?;
    /// # Ok(())
    /// # }
    /// ```
    fn rmw(&mut self, rmw: Rmw) -> Result<(), Self::Error>;
    /// Makes a call on an object, with the value that it is passed. Returns the result, or `none`. Only tests that were
    /// prepared by [`prepare_on_objects`](super::prepare_on_objects) have such calls.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// # use mowgli::{litmus::Value, run::ObjectCall};
    /// memory.on_object(&ObjectCall::Write(0), Value::number(7))?; // Write(x, 7), of a shared variable
    /// let a = memory.on_object(&ObjectCall::Read(0), Value::None)?; // let a = Read(x)
    /// # Ok(())
    /// # }
    /// ```
    fn on_object(&mut self, call: &ObjectCall, value: Value) -> Result<Value, Self::Error>;
    /// The thread has not found the value that it loops for. Returns whether it may look again.
    ///
    /// ```
    /// # use mowgli::run::Memory;
    /// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
    /// while memory.read(0)? == 0 {
    ///     if !memory.again()? {
    ///         break; // the thread has not finished
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn again(&mut self) -> Result<bool, Self::Error>;
}

/// The number of operations that have no name.
///
/// ```
/// # use mowgli::run::{Memory, NAMELESS};
/// # fn calls<M: Memory>(memory: &mut M) -> Result<(), M::Error> {
/// memory.put(NAMELESS, 1, 0)?; // Put(z, x), of a test over `rdmatso`
/// memory.get(NAMELESS, 0, 1)?; // Get(x, z)
/// assert!(memory.poll(1)? && memory.poll(1)?); // Poll(2), for each: no wait can name them
/// # Ok(())
/// # }
/// ```
pub const NAMELESS: usize = usize::MAX;

/// A remote read-modify-write.
///
/// ```
/// # use mowgli::run::{Change, Rmw};
/// let mut words = [40, 0];
/// let rmw = Rmw { id: 0, into: 1, is_private: true, at: 0, change: Change::Add(2) };
/// if let Change::Add(addend) = rmw.change {
///     words[rmw.into] = words[rmw.at]; // the old value
///     words[rmw.at] += addend;
/// }
/// assert_eq!(words, [42, 40]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rmw {
    /// The number of its name.
    pub id: usize,
    /// The local word that the old value lands in.
    pub into: usize,
    /// The test mentions `into` nowhere else: only its final value can be observed.
    pub is_private: bool,
    /// The word that is read and written.
    pub at: usize,
    /// How it is changed.
    pub change: Change,
}

/// How a read-modify-write changes a word.
///
/// ```
/// # use mowgli::run::Change;
/// let changed = |word: i64, change| match change {
///     Change::CompareAndSwap(old, new) => if word == old { new } else { word },
///     Change::Add(addend) => word + addend,
/// };
/// assert_eq!(changed(3, Change::CompareAndSwap(3, 5)), 5);
/// assert_eq!(changed(3, Change::Add(4)), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// To the second, if it is the first.
    CompareAndSwap(i64, i64),
    /// By so much.
    Add(i64),
}

/// The reason why a thread has not reached its end.
///
/// ```
/// # use mowgli::run::Stopped;
/// let stopped = Stopped::from(std::fmt::Error); // as `?` does in a `Memory`
/// assert_eq!(stopped, Stopped::Memory(std::fmt::Error));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Stopped<E> {
    /// The memory has failed.
    #[error(transparent)]
    Memory(E),
    /// The memory did not let it look any longer for the value that it loops for, or there is nothing to poll.
    #[error("it has not finished")]
    NotFinished,
    /// The program wrote or added a value that is not a number.
    #[error("a word holds a number, not {0}")]
    Value(Value),
}

impl<E> From<E> for Stopped<E> {
    fn from(error: E) -> Stopped<E> {
        Stopped::Memory(error)
    }
}
