//! Parts for objects of your own. Farfield's own objects and systems are built from these and the other public items,
//! and from nothing else.
//!
//! An object is a set of regions on some nodes, opened under one path by all participants, and a protocol of puts, gets
//! and atomics on them. The page `docs/your-own-object.md` builds one from an empty file to a chaos load.
//!
//! *Memory and opening*
//!
//! | part | use |
//! |---|---|
//! | [`at_least_one`], [`region_bytes`], [`buf_bytes_max`] | Options that cannot work are refused, in the same way for all objects. |
//! | [`Regions`] | Allocates an object's memory on this node, and frees it if the opening fails. |
//! | [`ObjectBuilder`] → [`Object`] | Opens the object with all participants, checks that they agree, and exchanges addresses. |
//! | [`Object::wait_with`], [`OwnedVar::announce`](crate::OwnedVar::announce), [`RingBuffer::announce`](crate::RingBuffer::announce) | A composed object announces all its parts before it waits for any. |
//! | [`Participants`], [`Node::members_for`](crate::Node::members_for) | Ranks of nodes, for layouts with a part for each node; and the default participants of a path. |
//! | [`SharedVar::open_among`](crate::SharedVar::open_among), [`OwnedVar::open_among`](crate::OwnedVar::open_among), [`MutexArray::open_among`](crate::MutexArray::open_among), [`Sst::open_among`](crate::Sst::open_among), [`KvStore::open_among`](crate::KvStore::open_among), [`Queue::open_among`](crate::Queue::open_among), [`Barrier::open_among`](crate::Barrier::open_among) | Objects as parts of another, among its participants. All locks of `farfield-locks` and `Transactions` have one, too. |
//! | [`ObjectDescriptor`] | A peer's announcement, for callbacks of an opening. |
//! | [`ObjectBuilder::homes`] | The object lies on some nodes, and any others open it whenever they like. |
//! | [`Node::on_call`](crate::Node::on_call) → [`Call`] | Opens an object because another node has opened it, to lend it memory. |
//! | [`Hold`] | Keeps the object open for work that outlives its handles. |
//!
//! *Reopening*
//!
//! | part | use |
//! |---|---|
//! | [`Node::reopen`](crate::Node::reopen), [`Reopening`](crate::Reopening) | All members agree on a new generation of an object. |
//! | [`Node::is_reopening`](crate::Node::is_reopening), [`MutexArray::open_unmarked`](crate::MutexArray::open_unmarked) | What the object protects may be half-written after a death; or it starts anew. |
//! | [`Object::check_current`] | Ends calls on a handle that [`Node::reopen`](crate::Node::reopen) has replaced. |
//! | [`Object::check_unasked`], [`Sst::check_unasked`](crate::Sst::check_unasked) | Ends waits, too: also when another node waits for this one to reopen the object. |
//!
//! *Operations*
//!
//! | part | use |
//! |---|---|
//! | [`CancelGuard`] | An atomic that is undone if the caller drops its future. |
//! | [`Attempt`](crate::fabric::Attempt), [`Endpoint::boxed`](crate::Endpoint::boxed), [`Waits`] | A call that needs no future where it does not wait. |
//! | [`Endpoint::near`](crate::Endpoint::near), [`Posts`](crate::fabric::Posts) | Several operations in one place, which is looked up once; their steps are written once for all fabrics. |
//! | [`Endpoint::kept`](crate::Endpoint::kept) | A long state that is handed from call to call: neither an allocation nor a move. |
//! | [`WordWait`](crate::fabric::WordWait) | A wait for memory within a future of one's own. |
//! | [`MutexArray::begin`](crate::MutexArray::begin), [`Guard::begin_unlock`](crate::Guard::begin_unlock) | Several locks taken, or released, without a future for each. |
//! | [`Batch::cas`](crate::fabric::Batch::cas), [`Batch::faa`](crate::fabric::Batch::faa) | Puts, and an atomic that publishes them, behind one doorbell. |
//! | [`Endpoint::quorum`](crate::Endpoint::quorum) | Waits for some of several operations. |
//! | [`Endpoint::put_untracked`](crate::Endpoint::put_untracked) | Notifies a node, and no fence waits for it. |
//! | [`Endpoint::check_word`](crate::Endpoint::check_word) | Fails as the next operation on a word would, and posts nothing. |
//! | [`OwnedWriter::send`](crate::OwnedWriter::send) | A push without a future. |
//! | [`RefusedPause`] | The pauses between attempts at an operation that is refused. |
//!
//! *Measuring*
//!
//! | part | use |
//! |---|---|
//! | [`ObjectBuilder::calls`], [`Node::meter`](crate::Node::meter) → [`Meter`] | Counts and times the calls of an object, if the node is told to; free if it is not. |
//! | [`Object::is_plain`] | The same comparison as [`Object::check_current`] also finds out whether calls are measured. |
//! | [`Timing`], [`Timed`], [`Either`] | A call that is measured, from its beginning to its end; the rest of one that may be. |
//!
//! *Fences and releases*
//!
//! | part | use |
//! |---|---|
//! | [`release`] | The fence before a release; releases that must wait, or were refused. |
//! | [`Holding`] | What a guard knows of the lock that it holds. |
//! | [`Guard::hand_over`](crate::Guard::hand_over) | A held lock that the service thread releases. |
//! | [`Endpoint::wait_for_reads`](crate::Endpoint::wait_for_reads) | Waits for gets and atomics in flight, before memory that they read changes. |
//! | [`Endpoint::is_ordered_before`](crate::Endpoint::is_ordered_before) | Whether a release follows all puts to its node, so that no fence of that node is needed. |
//! | [`Endpoint::clear_flush_state`](crate::Endpoint::clear_flush_state) | Fences leave a node out that is gone for good. |
//! | [`Node::fenced_error`](crate::Node::fenced_error), [`Node::fence_live_nodes`](crate::Node::fence_live_nodes), [`Node::fence_all_live_nodes`](crate::Node::fence_all_live_nodes) | Fences and checks that continue past dead nodes. |
//!
//! *Rings inside an object*
//!
//! | part | use |
//! |---|---|
//! | [`RingOptions::read_by_service`](crate::RingOptions::read_by_service) | A message wakes the service thread. |
//! | [`Acknowledgements`](crate::Acknowledgements) | How far the readers are; several tasks can wait for that while others send. |
//! | [`RingReceiver::has_landed`](crate::RingReceiver::has_landed), [`RingReceiver::complete_from`](crate::RingReceiver::complete_from) | After the writer's death, readers bring each other to the same message. |
//!
//! *Work of the service thread*
//!
//! | part | use |
//! |---|---|
//! | [`Poller`], [`Progress`] | Work for the service thread and what it has achieved, and notice of deaths ([`Poller::status_changed`]). |
//! | [`Node::for_service`](crate::Node::for_service), [`Node::background_endpoint`](crate::Node::background_endpoint) | A handle and an endpoint for an object's own work. |
//!
//! *Errors and tests*
//!
//! | part | use |
//! |---|---|
//! | [`ErrorContext`], [`Missed`] | Errors that name the object, the awaited condition, the nodes. |
//! | [`Error::custom`](crate::Error::custom), [`Error::about`](crate::Error::about), [`CustomError`] | Errors of your own, which answer as those that have caused them. |
//! | [`mutants!`](crate::mutants!) | Seeded bugs of your object, for its scenarios. |

pub use crate::error::{CustomError, ErrorContext, Missed};
pub use crate::node::{
    Call, Either, Hold, Meter, Object, ObjectBuilder, ObjectDescriptor, Poller, Progress, RefusedPause, Regions, Timed,
    Timing,
};
pub use crate::objects::cancel_guard::CancelGuard;
pub use crate::objects::holding::Holding;
pub use crate::objects::options::{at_least_one, buf_bytes_max, region_bytes};
pub use crate::objects::participants::Participants;
pub use crate::objects::release;
pub use crate::objects::wait_limit::{Rest, Waits};
