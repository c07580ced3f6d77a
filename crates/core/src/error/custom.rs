//! Errors of other crates' objects.

use core::fmt;
use std::error::Error as StdError;
use std::sync::Arc;

use farfield_fabric as fabric;
use farfield_fabric::NodeId;

use super::{Error, ErrorKind};

/// An error of a type that another crate has defined. Two are equal if one is a clone of the other.
///
/// ```
/// use farfield::toolkit::CustomError;
/// use farfield::{Error, ErrorKind};
/// let error = Error::custom(std::io::Error::other("the disk is full"));
/// let why = |custom: &CustomError| custom.to_string();
/// assert!(matches!(error.kind(), ErrorKind::Custom(custom) if why(custom) == "the disk is full"));
/// ```
#[derive(Clone)]
pub struct CustomError {
    error: Arc<dyn StdError + Send + Sync>,
    /// The node that [`Error::about`] has named.
    node: Option<NodeId>,
}

impl CustomError {
    /// The node that the error is about: that of its cause, or the named one.
    pub(super) fn node(&self) -> Option<NodeId> {
        self.cause().and_then(|cause| cause.node()).or(self.node)
    }

    /// Whether the error has a cause of Farfield's that answers so.
    pub(super) fn comes_from(&self, is: fn(&Error) -> bool) -> bool {
        self.cause().is_some_and(|cause| is(&cause))
    }

    /// What its type says about its source.
    pub(super) fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error.source()
    }

    /// The first error of Farfield's among this one and its sources.
    fn cause(&self) -> Option<Error> {
        let first: &(dyn StdError + 'static) = &*self.error;
        let mut chain = core::iter::successors(Some(first), |error| (**error).source());
        chain.find_map(|error| {
            let of_object = || error.downcast_ref::<Error>().cloned();
            of_object().or_else(|| error.downcast_ref::<fabric::Error>().cloned().map(Error::from))
        })
    }
}

impl PartialEq for CustomError {
    fn eq(&self, other: &CustomError) -> bool {
        Arc::ptr_eq(&self.error, &other.error) && self.node == other.node
    }
}

impl fmt::Display for CustomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for CustomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl Error {
    /// An error of an object of your own, for which no [`ErrorKind`] fits.
    ///
    /// If it is caused by an error of Farfield's, [`source`](std::error::Error::source) of its type should return that:
    /// then [`Error::is_gone`], [`Error::is_unreachable`], [`Error::is_timeout`] and [`Error::node`] answer as they do
    /// for the cause.
    ///
    /// ```
    /// use farfield::Error;
    ///
    /// #[derive(Debug, PartialEq)]
    /// struct Overdrawn { account: u64 }
    /// impl std::fmt::Display for Overdrawn {
    ///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    ///         write!(f, "account {} is overdrawn: transfer money to it first", self.account)
    ///     }
    /// }
    /// impl std::error::Error for Overdrawn {}
    ///
    /// let error = Error::custom(Overdrawn { account: 7 }).of("bank");
    /// assert_eq!(error.to_string(), "bank: account 7 is overdrawn: transfer money to it first");
    /// assert_eq!(error.custom_ref::<Overdrawn>(), Some(&Overdrawn { account: 7 }));
    /// ```
    #[cold]
    pub fn custom(error: impl StdError + Send + Sync + 'static) -> Error {
        ErrorKind::Custom(CustomError { error: Arc::new(error), node: None }).into()
    }

    /// Names the node that a [custom](Error::custom) error is about, if it has no cause that does. Other errors stay as
    /// they are.
    ///
    /// ```
    /// use farfield::{Error, NodeId};
    /// let error = Error::custom(std::io::Error::other("the disk of n2 is full")).about(NodeId(2));
    /// assert_eq!(error.node(), Some(NodeId(2)));
    /// ```
    #[must_use]
    pub fn about(mut self, node: NodeId) -> Error {
        if let ErrorKind::Custom(custom) = &mut self.0.kind {
            custom.node = Some(node);
        }
        self
    }

    /// The error given to [`Error::custom`], if it is of type `E`.
    ///
    /// ```
    /// # use farfield::Error;
    /// let error = Error::custom(std::fmt::Error);
    /// assert!(error.custom_ref::<std::fmt::Error>().is_some());
    /// assert!(error.custom_ref::<std::io::Error>().is_none()); // of another type
    /// ```
    pub fn custom_ref<E: StdError + 'static>(&self) -> Option<&E> {
        match &self.0.kind {
            ErrorKind::Custom(custom) => custom.error.downcast_ref(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of an object that uses others.
    #[derive(Debug, thiserror::Error)]
    #[error("the letter to {0} is lost")]
    struct Lost<E: StdError + 'static>(&'static str, #[source] E);

    #[test]
    fn a_custom_error_answers_as_its_cause() {
        let node = NodeId(1);
        let silent = || fabric::Error::from(fabric::ErrorKind::Unreachable { node });
        let error = Error::custom(Lost("bob", silent())).of("mail");
        assert_eq!(error.to_string(), "mail: the letter to bob is lost");
        assert_eq!((error.is_unreachable(), error.is_gone(), error.is_timeout()), (true, false, false));
        assert_eq!(error.node(), Some(node));
        assert!(error.source().is_some_and(|source| source.is::<fabric::Error>()));

        let lost = Error::from(ErrorKind::ValueLost { node }).of("mail/letters");
        let again = Error::custom(Lost("bob", Error::custom(Lost("alice", lost))));
        assert_eq!((again.is_gone(), again.is_timeout(), again.node()), (true, false, Some(node)));

        let late = ErrorKind::Timeout { what: "a reply".into(), waited: Default::default(), missing: vec![node] };
        let late = Error::custom(Lost("bob", Error::from(late)));
        assert_eq!((late.is_timeout(), late.is_gone(), late.node()), (true, false, Some(node)));
    }

    #[test]
    fn a_custom_error_without_a_cause_is_about_the_named_node_alone() {
        let error = Error::custom(fmt::Error);
        assert_eq!((error.node(), error.is_gone(), error.is_timeout()), (None, false, false));
        assert_eq!(error.clone(), error);
        assert_ne!(error, Error::custom(fmt::Error));
        assert_eq!(error.about(NodeId(3)).node(), Some(NodeId(3)));
        let open = Error::from(ErrorKind::AlreadyOpen).about(NodeId(3));
        assert_eq!((open.node(), open), (None, ErrorKind::AlreadyOpen.into()));
    }
}
