//! A list that the threads of a scenario fill, and its checks read.

use std::cell::RefCell;
use std::rc::Rc;

use farfield_core::fabric::Concurrent;

/// A list of entries from the threads of a scenario, for the checks at its end: for example a history, in the order of
/// time.
///
/// Adding to it is a scheduling point, so that the search knows of the order.
///
/// ```
/// # use farfield_check::{Budget, Scenario, exhaust};
/// let scenario = Scenario::new("doc/log", "two threads log an entry each", 1, |cluster| {
///     let log = cluster.log();
///     for thread in 0..2 {
///         let log = log.clone();
///         cluster.thread(0, "logs", move |_| Ok(drop(log.push(thread))));
///     }
///     cluster.at_end(move || Ok(assert!([[0, 1], [1, 0]].contains(&log.take().try_into().unwrap()))));
///     Ok(())
/// });
/// assert!(exhaust(&scenario, Budget::unlimited()).executions >= 2); // both orders
/// ```
pub struct Log<T>(Rc<Concurrent<RefCell<Vec<T>>>>);

impl<T> Default for Log<T> {
    fn default() -> Log<T> {
        Log(Rc::new(Concurrent::new(RefCell::default())))
    }
}

impl<T> Clone for Log<T> {
    fn clone(&self) -> Log<T> {
        Log(Rc::clone(&self.0))
    }
}

impl<T> Log<T> {
    /// Adds an entry, and returns its position.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a list", 1, |cluster| {
    ///     let log = cluster.log();
    ///     log.push("a");
    ///     assert_eq!(log.take(), ["a"]);
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn push(&self, entry: T) -> usize {
        let mut entries = self.0.write().borrow_mut();
        entries.push(entry);
        entries.len() - 1
    }

    /// The entries, taken out.
    ///
    /// ```
    /// # use farfield_check::{Budget, Scenario, check};
    /// let scenario = Scenario::new("doc/part", "a list is emptied", 1, |cluster| {
    ///     let log = cluster.log();
    ///     log.push("a");
    ///     assert_eq!(log.take(), ["a"]);
    ///     assert!(log.take().is_empty());
    ///     Ok(())
    /// });
    /// assert!(check(&scenario, Budget::executions(20), 1).finding.is_none());
    /// ```
    pub fn take(&self) -> Vec<T> {
        self.0.write().take()
    }
}
