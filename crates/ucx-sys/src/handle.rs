//! Endpoints and requests: owned places in the tables of a worker. A dropped one tells its worker, perhaps in another
//! thread, and the worker closes it when it makes progress next.

use std::fmt;
use std::sync::mpsc::Sender;

use crate::UcxError;
use crate::sleep::Waker;

/// A handle that was dropped.
#[derive(Clone, Copy)]
pub(crate) enum Dropped {
    Endpoint(usize),
    Request(usize),
}

/// Tells a worker of dropped handles.
#[derive(Clone)]
pub(crate) struct Drops {
    pub(crate) sender: Sender<Dropped>,
    pub(crate) waker: Waker,
}

/// A place in a table of a worker.
struct Place {
    worker: u64,
    index: usize,
    drops: Drops,
}

impl Place {
    fn index_in(&self, worker: u64) -> Result<usize, UcxError> {
        if self.worker == worker { Ok(self.index) } else { Err(UcxError::OtherWorker) }
    }

    /// Tells the worker, and wakes its thread if that sleeps. A worker that is gone has closed everything.
    fn drop_as(&self, kind: impl FnOnce(usize) -> Dropped) {
        if self.drops.sender.send(kind(self.index)).is_ok() {
            self.drops.waker.wake_if_asleep();
        }
    }
}

/// A connection from a worker to another one. Dropping it closes the connection by force: messages in flight may be
/// lost, and the other side sees a failure. UCX keeps the socket as long as the other side uses it for its own
/// endpoint.
///
/// Operations on it are methods of its [`Worker`](crate::Worker).
pub struct Endpoint(Place);

/// An operation in flight. Dropping it lets the operation continue, and its buffers stay as long as they are in use.
pub struct Request(Place);

macro_rules! handle {
    ($handle:ident) => {
        impl $handle {
            pub(crate) fn new(worker: u64, index: usize, drops: &Drops) -> $handle {
                $handle(Place { worker, index, drops: drops.clone() })
            }

            /// The place of it in the table of that worker, which is not given to another before this one is dropped.
            pub(crate) fn index_in(&self, worker: u64) -> Result<usize, UcxError> {
                self.0.index_in(worker)
            }
        }

        impl Drop for $handle {
            fn drop(&mut self) {
                self.0.drop_as(Dropped::$handle);
            }
        }

        impl fmt::Debug for $handle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($handle), "({} of worker {})"), self.0.index, self.0.worker)
            }
        }
    };
}

handle!(Endpoint);
handle!(Request);

/// A table that uses its free places again.
pub(crate) struct Table<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Table<T> {
        Table { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> usize {
        match self.free.pop() {
            Some(index) => {
                self.places[index] = Some(value);
                index
            }
            None => {
                self.places.push(Some(value));
                self.places.len() - 1
            }
        }
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        let value = self.places[index].take()?;
        self.free.push(index);
        Some(value)
    }

    pub(crate) fn get(&self, index: usize) -> &T {
        self.places[index].as_ref().expect("a handle has its place until it is dropped")
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> &mut T {
        self.places[index].as_mut().expect("a handle has its place until it is dropped")
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn places_are_used_again() {
        let mut table = Table::new();
        assert_eq!((table.insert('a'), table.insert('b')), (0, 1));
        assert_eq!(table.remove(0), Some('a'));
        assert_eq!(table.remove(0), None);
        assert_eq!(table.len(), 1);
        assert_eq!((table.insert('c'), table.insert('d')), (0, 2));
        assert_eq!((*table.get(0), *table.get(1), table.len()), ('c', 'b', 3));
    }

    #[test]
    fn a_handle_is_of_one_worker_and_tells_it_when_it_is_dropped() {
        let (sender, receiver) = mpsc::channel();
        let drops = Drops { sender, waker: Waker::new().unwrap() };
        let endpoint = Endpoint::new(7, 3, &drops);
        assert_eq!(endpoint.index_in(7), Ok(3));
        assert_eq!(endpoint.index_in(8), Err(UcxError::OtherWorker));
        assert!(receiver.try_recv().is_err());
        drop(endpoint);
        assert!(matches!(receiver.try_recv(), Ok(Dropped::Endpoint(3))));
        drop(receiver);
        drop(Request::new(7, 4, &drops));
    }
}
