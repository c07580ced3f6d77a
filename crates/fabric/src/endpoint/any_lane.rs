//! The lanes that an endpoint calls directly: this file alone of the contract names fabrics.
//!
//! Shared memory is inlined, and costs one predicted branch. RDMA has a short path for single words, which is called
//! directly. All else, decorators included, is behind one dynamic call.

use core::any::Any;
use core::ops::{Deref, DerefMut};

use crate::lane::Lane;
#[cfg(not(feature = "verbs"))]
pub(super) use crate::no_verbs::VerbsLane;
pub(super) use crate::shm::ShmLane;
#[cfg(feature = "verbs")]
pub(super) use crate::verbs::VerbsLane;

/// A lane, by how the endpoint calls it.
pub(super) enum AnyLane {
    Shm(Box<ShmLane>),
    Other(OtherLane),
}

impl AnyLane {
    pub(super) fn of(lane: Box<dyn Lane>) -> AnyLane {
        match downcast(lane) {
            Ok(lane) => AnyLane::Shm(lane),
            Err(lane) => AnyLane::Other(match downcast(lane) {
                Ok(lane) => OtherLane::Verbs(lane),
                Err(lane) => OtherLane::Dyn(lane),
            }),
        }
    }
}

fn downcast<T: Lane>(lane: Box<dyn Lane>) -> Result<Box<T>, Box<dyn Lane>> {
    let of_type: &dyn Any = &*lane;
    if !of_type.is::<T>() {
        return Err(lane);
    }
    let any: Box<dyn Any> = lane;
    Ok(any.downcast().expect("just checked"))
}

/// A lane of any fabric but shared memory.
pub(super) enum OtherLane {
    Verbs(Box<VerbsLane>),
    Dyn(Box<dyn Lane>),
}

impl Deref for OtherLane {
    type Target = dyn Lane;
    fn deref(&self) -> &Self::Target {
        match self {
            OtherLane::Verbs(lane) => &**lane,
            OtherLane::Dyn(lane) => &**lane,
        }
    }
}

impl DerefMut for OtherLane {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            OtherLane::Verbs(lane) => &mut **lane,
            OtherLane::Dyn(lane) => &mut **lane,
        }
    }
}
