//! Parts for objects of your own. The objects and systems of Farfield are built from these and from nothing else that
//! is not public.
//!
//! An object is a set of regions on some nodes, opened under one path by all participants, and a protocol of puts, gets
//! and atomics on them. The page `docs/your-own-object.md` builds one from an empty file to a chaos load.
//!
//! | part | use |
//! |---|---|
//! | [`Regions`] | Allocates an object's memory on this node, and frees it if the opening fails. |
//! | [`ObjectBuilder`] → [`Object`] | Opens the object with all participants, checks that they agree, and exchanges addresses. |
//! | [`Object::check_current`] | Ends calls on a handle that [`Node::reopen`](crate::Node::reopen) has replaced. |
//! | [`Hold`] | Keeps the object open for work that outlives its handles. |
//! | [`Participants`] | Ranks of nodes, for layouts with a part for each node. |
//! | [`ErrorContext`], [`Missed`], [`Error::custom`](crate::Error::custom) | Errors that name the object, the awaited condition, the nodes. |
//! | [`CancelGuard`] | An atomic that is undone if the caller drops its future. |
//! | [`release`] | The fence before a release; releases that must wait, or were refused. |
//! | [`Poller`] | Work for the service thread, and notice of deaths ([`Poller::status_changed`]). |
//! | [`ObjectDescriptor`] | A peer's announcement, for callbacks of an opening. |
//! | [`Node::for_service`](crate::Node::for_service), [`Node::background_endpoint`](crate::Node::background_endpoint) | A handle and an endpoint for an object's own work. |
//! | [`Node::fenced_error`](crate::Node::fenced_error), [`Node::fence_live_nodes`](crate::Node::fence_live_nodes) | Fences and checks that continue past dead nodes. |
//! | [`RingBuffer::announce`](crate::RingBuffer::announce), [`Acknowledgements`](crate::Acknowledgements), [`RingReceiver::complete_from`](crate::RingReceiver::complete_from) | Rings inside an object: opened without waiting, read by service threads, recovered after the writer's death. |
//! | [`Guard::hand_over`](crate::Guard::hand_over) | A held lock that the service thread releases. |
//! | [`mutants!`](crate::mutants!) | Seeded bugs of your object, for its scenarios. |

pub use crate::error::{ErrorContext, Missed};
pub use crate::node::{Hold, Object, ObjectBuilder, ObjectDescriptor, Poller, Progress, Regions};
pub use crate::objects::participants::Participants;
pub use crate::objects::release;
pub use crate::objects::settle::CancelGuard;
