//! Rounds of a thread's tasks, whose requests travel together.

use super::{DynState, Endpoint, Inner};

/// While it lives, each of several tasks of the thread has its turn, and the lane may hold back what they post: one
/// message for all of them costs little more than one for each.
pub(crate) struct Round<'e>(Option<&'e DynState>);

impl Endpoint {
    /// Begins a round.
    #[inline]
    pub(crate) fn round(&self) -> Round<'_> {
        Round(match &self.inner {
            Inner::Shm(..) => None,
            Inner::Dyn(state) => state.begin_round(),
        })
    }

    /// [`Endpoint::poll_lane`] for a task that looks or posts: not for each one in a round.
    pub(super) fn poll_lane_for_task(&self) {
        let is_in_round = matches!(&self.inner, Inner::Dyn(state) if state.rounds.get() > 0);
        if !is_in_round {
            self.poll_lane();
        }
    }
}

impl DynState {
    /// None if the lane holds nothing back.
    fn begin_round(&self) -> Option<&DynState> {
        let holds = self.lane.borrow_mut().hold_all();
        holds.then(|| {
            self.rounds.set(self.rounds.get() + 1);
            self
        })
    }
}

impl Drop for Round<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.rounds.set(state.rounds.get() - 1);
            state.lane.borrow_mut().release_all();
        }
    }
}

#[cfg(all(test, feature = "sim"))]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use crate::decorate::decorate;
    use crate::lane::{Lane, Status, WorkRequest};
    use crate::sim::{self, First, Settings};
    use crate::{Code, Endpoint, EndpointOptions, Fabric, GroupKey, NodeId, Transport};

    type Calls = Arc<Mutex<Vec<&'static str>>>;

    /// A lane that notes how it is called.
    struct Noting {
        inner: Box<dyn Lane>,
        calls: Calls,
    }

    impl Noting {
        fn note(&self, call: &'static str) {
            self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
        }
    }

    impl crate::lane::sealed::Sealed for Noting {}

    impl Lane for Noting {
        fn check(&mut self, request: &WorkRequest) -> Result<(), Code> {
            self.inner.check(request)
        }

        fn post(&mut self, request: WorkRequest) -> u64 {
            self.note("post");
            self.inner.post(request)
        }

        fn hold_all(&mut self) -> bool {
            self.note("hold");
            true
        }

        fn release_all(&mut self) {
            self.note("release");
        }

        fn ring(&mut self) {
            self.note("ring");
        }

        fn poll(&mut self) {
            self.note("poll");
            self.inner.poll();
        }

        fn status(&self, peer: NodeId, sequence: u64) -> Status {
            self.inner.status(peer, sequence)
        }
    }

    #[test]
    fn what_tasks_post_in_their_turns_is_held_back_until_all_had_theirs() {
        let settings = Settings { steps_max: 10_000, ..Settings::new(2) };
        let outcome = sim::run(settings, Box::new(First), |handle| {
            let [node, peer] = [0, 1].map(|node| handle.join(NodeId(node)));
            node.serve(core::time::Duration::ZERO, &mut |_| ()); // it learns of its peer
            let region = &peer.alloc(GroupKey::DATA, 64).unwrap();
            let calls = Calls::default();
            let noted = Arc::clone(&calls);
            let wrap = move |inner| Box::new(Noting { inner, calls: Arc::clone(&noted) }) as Box<dyn Lane>;
            let node = decorate(node, "noting", Box::new(wrap));
            let endpoint = &Endpoint::open(node, EndpointOptions::default()).unwrap();
            let taken = || core::mem::take(&mut *calls.lock().unwrap());
            let get = |at: usize| endpoint.get(region.remote::<u64>(8 * at));

            endpoint.run_window(3, (0..3).map(get), |got| assert_eq!(got.unwrap(), 0));
            assert_eq!(first_round(taken()), ["hold", "post", "post", "post"], "no task polls");

            // A task that looks by itself, as one that waits, starts what was held back.
            let look = |at| async move {
                let get = get(at);
                get.is_complete();
                get.await.unwrap()
            };
            endpoint.run_window(1, [look(0)], |got| assert_eq!(got, 0));
            assert_eq!(first_round(taken()), ["hold", "post", "ring", "poll"]);

            let mut into = endpoint.buf::<u64>(3).unwrap();
            let words = [0, 8, 16].map(|at| region.remote::<u64>(at));
            endpoint.block_on(endpoint.get_each(&words, 1, &mut into)).unwrap();
            assert_eq!(first_round(taken()), ["hold", "post", "post", "post"]);
        });
        assert_eq!(outcome.failure, None);
    }

    /// The calls of the first round in which something was posted.
    fn first_round(calls: Vec<&'static str>) -> Vec<&'static str> {
        let mut rounds = calls.split(|call| *call == "release");
        let round = rounds.find(|round| round.contains(&"post")).expect("something was posted");
        let begin = round.iter().position(|call| *call == "hold").expect("it was in a round");
        round[begin..].to_vec()
    }
}
