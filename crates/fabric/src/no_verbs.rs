//! In a build without RDMA: a lane over RDMA, of which there is none, so that the endpoint needs no case for such
//! builds.

use crate::error::{Code, Result};
use crate::lane::{Lane, Status, Verb, WordOrigin, WordTicket, WorkRequest, sealed};
use crate::ptr::NodeId;

/// No value of it exists.
pub(crate) enum VerbsLane {}

impl VerbsLane {
    pub(crate) fn post_word(&mut self, _: Verb, _: WordOrigin, _: [u64; 2]) -> Option<WordTicket> {
        match *self {}
    }

    pub(crate) fn poll_only_word(&mut self, _: WordTicket) -> Option<(u64, WordOrigin)> {
        match *self {}
    }

    pub(crate) fn poll_word(&mut self, _: WordTicket) -> Option<(Result<u64, Code>, WordOrigin)> {
        match *self {}
    }

    pub(crate) fn is_word_complete(&mut self, _: WordTicket) -> bool {
        match *self {}
    }

    pub(crate) fn word_reads_under_way(&self, _: NodeId, _: u64) -> bool {
        match *self {}
    }

    pub(crate) fn drop_word(&mut self, _: WordTicket) {
        match *self {}
    }
}

impl sealed::Sealed for VerbsLane {}

impl Lane for VerbsLane {
    fn check(&mut self, _: &WorkRequest) -> Result<(), Code> {
        match *self {}
    }

    fn post(&mut self, _: WorkRequest) -> u64 {
        match *self {}
    }

    fn poll(&mut self) {
        match *self {}
    }

    fn status(&self, _: NodeId, _: u64) -> Status {
        match *self {}
    }
}
