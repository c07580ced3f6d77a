//! A call of another node for an object that is not open here.

use std::sync::{Arc, Weak};

use farfield_fabric::NodeId;

use super::super::{Node, Shared};
use super::{Message, ObjectDescriptor};

/// Another node has opened an object of which this node is a participant, and which is not open here
/// ([`Node::on_call`]). It waits until this node opens the object, or refuses.
///
/// ```
/// # fn main() -> farfield::Result<()> {
/// use farfield::{ErrorKind, toolkit::ObjectBuilder};
/// let nodes = farfield::local_session(2)?;
/// nodes[0].on_call(|call| call.refuse(&format!("`{}` is not for lending", call.theirs().path)));
/// let mail = ObjectBuilder::new(&nodes[1], "app/mail", "Mail").announce()?;
/// let error = mail.wait(nodes[1].timeout()).unwrap_err();
/// assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
/// # Ok(()) }
/// ```
///
/// [`Node::on_call`]: crate::Node::on_call
pub struct Call {
    shared: Weak<Shared>,
    from: NodeId,
    /// The number of the opening there.
    opening: u64,
    theirs: ObjectDescriptor,
}

impl Call {
    /// All that are waiting.
    pub(in crate::node) fn all(shared: &Arc<Shared>) -> Vec<Call> {
        let calls = shared.service.openings.lock().all_calls();
        calls.into_iter().map(|(from, opening, theirs)| Call::new(shared, from, opening, theirs)).collect()
    }

    pub(super) fn new(shared: &Arc<Shared>, from: NodeId, opening: u64, theirs: ObjectDescriptor) -> Call {
        Call { shared: Arc::downgrade(shared), from, opening, theirs }
    }

    /// The node that has opened it.
    ///
    /// ```
    /// # fn f(call: farfield::toolkit::Call) {
    /// println!("{} needs memory", call.from());
    /// # }
    /// ```
    pub fn from(&self) -> NodeId {
        self.from
    }

    /// The object that it has opened, and the regions that it needs of this node.
    ///
    /// ```
    /// # fn f(call: farfield::toolkit::Call) {
    /// let bytes: u64 = call.theirs().expected.iter().map(|(_, bytes)| bytes).sum();
    /// println!("`{}` takes {bytes} bytes here", call.theirs().path);
    /// # }
    /// ```
    pub fn theirs(&self) -> &ObjectDescriptor {
        &self.theirs
    }

    /// Whether the other node still waits: it may have given up, and have opened the object anew.
    ///
    /// ```
    /// # fn f(call: farfield::toolkit::Call) {
    /// if call.is_current() {
    ///     println!("{} waits for `{}`", call.from(), call.theirs().path);
    /// }
    /// # }
    /// ```
    pub fn is_current(&self) -> bool {
        let shared = self.shared.upgrade();
        shared.is_some_and(|shared| shared.service.openings.lock().is_calling(self.from, self.opening))
    }

    /// Refuses it: opening it fails there, with this reason.
    ///
    /// ```
    /// # fn f(call: farfield::toolkit::Call) {
    /// call.refuse("no memory is left here");
    /// # }
    /// ```
    pub fn refuse(&self, why: &str) {
        if let Some(shared) = self.shared.upgrade() {
            let (answers, path, differs) = (self.opening, self.theirs.path.clone(), why.to_owned());
            Message::Refuse { answers, path, differs }.send(&shared, self.from);
        }
    }
}

impl Node {
    /// From now on the service thread runs this when another node opens an object that has this node as a participant
    /// and is not open here; this call runs it for all that wait already. (For an opening at the same time it may run
    /// twice.) The callback may open the object, or note the [`Call`] for another thread that does. It must not wait
    /// for another node. There is one, which [`Node::no_calls`] removes. A handle that it keeps should be
    /// [`Node::for_service`].
    ///
    /// ```
    /// # use farfield::{fabric::GroupKey, toolkit::ObjectBuilder};
    /// let nodes = farfield::local_session(2)?;
    /// let (sender, calls) = std::sync::mpsc::channel();
    /// nodes[0].on_call(move |call| drop(sender.send(call)));
    /// let home = nodes[0].id();
    /// let mail = ObjectBuilder::new(&nodes[1], "app/mail", "Mail").homes(&[home]);
    /// let mail = mail.require_regions(|_| vec![("inbox".into(), 64)]).announce()?;
    /// let call = calls.recv().unwrap();
    /// assert_eq!((call.from(), call.theirs().path.as_str()), (nodes[1].id(), "app/mail"));
    /// let room = nodes[0].alloc(GroupKey::DATA, call.theirs().expected[0].1 as usize)?;
    /// let lent = ObjectBuilder::new(&nodes[0], "app/mail", "Mail").homes(&[home]).region("inbox", room).open()?;
    /// mail.wait(nodes[1].timeout())?;
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn on_call(&self, callback: impl Fn(Call) + Send + Sync + 'static) {
        let (shared, callback) = (self.shared(), Arc::new(callback));
        shared.service.set_on_call(Some(callback.clone()));
        // Those that have called before, and perhaps some that call now: for them it runs twice.
        Call::all(shared).into_iter().for_each(|call| callback(call));
    }

    /// Removes the callback of [`Node::on_call`].
    ///
    /// ```
    /// # let node = farfield::Node::builder().start()?;
    /// node.on_call(|call| call.refuse("not today"));
    /// node.no_calls();
    /// # Ok::<(), farfield::Error>(())
    /// ```
    pub fn no_calls(&self) {
        self.shared().service.set_on_call(None);
    }
}
