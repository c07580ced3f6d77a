//! Sessions of a few machines whose messages come late, whose nodes crash, and whose links are cut: random ones, many.

use std::collections::VecDeque;

use farfield_fabric::Rng;
use rand::SeedableRng;

use super::*;

/// A session: machines, and what is under way between each two.
struct Session {
    nodes: Vec<Membership>,
    links: Vec<Vec<VecDeque<Message>>>,
    /// Sides of the cut.
    side: Vec<bool>,
    crashed: Vec<bool>,
    /// Whom each node has closed itself to, in truth.
    closed: Vec<BTreeSet<u16>>,
    now: Instant,
    rng: Rng,
}

impl Session {
    fn new(count: usize, seed: u64) -> Session {
        let machine = |me: usize| {
            let rng = Rng::seed_from_u64(seed * 31 + me as u64);
            Membership::new(NodeId(me as u16), count, DeathRule::Majority, rng)
        };
        Session {
            nodes: (0..count).map(machine).collect(),
            links: vec![vec![VecDeque::new(); count]; count],
            side: vec![false; count],
            crashed: vec![false; count],
            closed: vec![BTreeSet::new(); count],
            now: Instant::default() + Duration::from_secs(1),
            rng: Rng::seed_from_u64(seed),
        }
    }

    fn runs(&self, node: usize) -> bool {
        !self.crashed[node] && !self.nodes[node].has_departed()
    }

    /// Sends what a machine says.
    fn act(&mut self, me: usize) {
        for action in self.nodes[me].take_actions() {
            if let Action::Send(to, message) = action {
                self.links[me][to.index()].push_back(message);
            }
        }
    }

    /// One thing happens. Faults only if `faults`; otherwise all that can be heard of is trusted.
    fn step(&mut self, faults: bool) {
        let count = self.nodes.len();
        let (me, other) = (self.rng.random_range(0..count), self.rng.random_range(0..count));
        match self.rng.random_range(0..if faults { 100 } else { 90 }) {
            0..60 => {
                let together = self.side[me] == self.side[other];
                if self.runs(other)
                    && together
                    && let Some(message) = self.links[me][other].pop_front()
                {
                    self.nodes[other].receive(NodeId(me as u16), message);
                    self.act(other);
                }
            }
            60..75 => {
                self.now = self.now + Duration::from_micros(self.rng.random_range(0..2000));
                if self.runs(me) {
                    self.nodes[me].tick(self.now);
                    self.act(me);
                }
            }
            75..90 => {
                let to_shut_out = self.nodes[me].to_shut_out();
                if let (true, Some(node)) = (self.runs(me) && self.rng.random_range(0..3) == 0, to_shut_out.first()) {
                    // It takes a while.
                    self.closed[me].insert(node.0);
                    self.nodes[me].has_shut_out(*node);
                    self.act(me);
                } else if self.runs(me) && me != other {
                    let silent = self.side[me] != self.side[other] || !self.runs(other);
                    let node = NodeId(other as u16);
                    if silent { self.nodes[me].suspect(node) } else { self.nodes[me].trust(node) }
                }
            }
            90..93 => self.crashed[me] = true,
            93..95 if self.runs(me) => {
                self.nodes[me].depart(self.now);
                self.act(me);
            }
            95..97 => self.side.iter_mut().for_each(|side| *side = self.rng.random_range(0..2) == 0),
            97 => self.side.fill(false),
            // Slow, not gone.
            _ if self.runs(me) && me != other => self.nodes[me].suspect(NodeId(other as u16)),
            _ => {}
        }
    }

    /// Whatever happens, this holds.
    fn check(&self) {
        for one in &self.nodes {
            let same = self.nodes.iter().filter(|other| other.epoch == one.epoch);
            same.for_each(|other| assert_eq!((&one.members, &one.removed), (&other.members, &other.removed)));
        }
        for (me, node) in self.nodes.iter().enumerate().filter(|(me, _)| self.runs(*me)) {
            for dead in node.removed.keys().filter(|dead| node.standing_of(NodeId(**dead)) == Standing::ShutOut) {
                // Nothing of it lands anywhere where somebody goes on: on those that this node takes for members, and
                // those that they will be, which are fewer.
                for member in node.members.iter().filter(|member| self.runs(usize::from(**member))) {
                    let closed = &self.closed[usize::from(*member)];
                    assert!(closed.contains(dead), "node {me} recovers {dead}, to whom {member} is open");
                }
            }
        }
    }
}

#[test]
fn whatever_happens_all_decide_the_same_and_recover_only_what_is_shut_out() {
    let (mut removed, mut fenced, mut departed) = (0, 0, 0);
    for seed in 0..3000 {
        let count = 2 + seed as usize % 4;
        let mut session = Session::new(count, seed);
        for _ in 0..session.rng.random_range(100..600) {
            session.step(true);
            session.check();
        }
        session.side.fill(false);
        for _ in 0..20_000 {
            session.step(false);
        }
        session.check();
        // Those that go on agree, on each other and on what is to be recovered; those that do not know it.
        let last = session.nodes.iter().map(|node| node.epoch).max().unwrap();
        for (me, node) in session.nodes.iter().enumerate().filter(|(me, node)| session.runs(*me) && !node.is_fenced) {
            assert_eq!(node.epoch, last, "seed {seed}: node {me} is behind");
            assert!(node.members.iter().all(|member| session.runs(usize::from(*member))), "seed {seed}: {node:?}");
            let dead = node.removed.iter().filter(|(_, removed)| !removed.departed).map(|(dead, _)| NodeId(*dead));
            assert!(
                { dead }.all(|dead| node.standing_of(dead) == Standing::ShutOut),
                "seed {seed}: node {me} waits for ever"
            );
        }
        removed += session.nodes.iter().map(|node| node.to_shut_out.len() + node.removed.len()).sum::<usize>();
        fenced += session.nodes.iter().filter(|node| node.is_fenced).count();
        departed += session.nodes.iter().filter(|node| node.has_departed()).count();
    }
    assert!(removed > 1000 && fenced > 300 && departed > 300, "{removed} {fenced} {departed}");
}

#[test]
fn quorums_of_the_same_members_meet() {
    for count in 1..=7u16 {
        let members: BTreeSet<u16> = (0..count).map(|node| node * 3).collect();
        let subset = |bits: u32| members.iter().enumerate().filter(move |(at, _)| bits >> at & 1 == 1).map(|(_, n)| *n);
        let quorums: Vec<u32> = (0..1 << count).filter(|bits| is_quorum(&members, subset(*bits))).collect();
        assert!(quorums.iter().all(|a| quorums.iter().all(|b| a & b != 0)), "{count} members");
        assert!(quorums.contains(&((1 << count.div_ceil(2)) - 1)), "the lower half of {count} is enough");
    }
}

#[test]
fn what_the_system_calls_dead_needs_no_vote() {
    let mut node = Membership::new(NodeId(1), 3, DeathRule::System, Rng::seed_from_u64(1));
    node.died(NodeId(0));
    assert_eq!((node.epoch(), node.members().collect::<Vec<_>>()), (1, vec![NodeId(1), NodeId(2)]));
    assert_eq!((node.to_shut_out(), node.standing_of(NodeId(0))), (vec![NodeId(0)], Standing::Dead));
    node.has_shut_out(NodeId(0));
    assert_eq!((node.to_shut_out(), node.standing_of(NodeId(0))), (vec![], Standing::ShutOut));
    node.left(NodeId(2));
    assert_eq!((node.epoch(), node.to_shut_out(), node.standing_of(NodeId(2))), (2, vec![], Standing::Departed));
    assert!(node.has_changed() && node.is_calm());
}

#[test]
fn of_two_the_lower_goes_on_and_the_other_says_that_it_is_fenced() {
    let rng = || Rng::seed_from_u64(1);
    let mut nodes = [0, 1].map(|me| Membership::new(NodeId(me), 2, DeathRule::Majority, rng()));
    nodes[0].suspect(NodeId(1));
    nodes[1].suspect(NodeId(0));
    let start = Instant::default() + Duration::from_secs(1);
    nodes.iter_mut().for_each(|node| node.tick(start));
    assert_eq!(nodes[0].members().collect::<Vec<_>>(), [NodeId(0)]);
    nodes[1].tick(start + (ISOLATED_MAX - Duration::from_millis(1)));
    assert!(!nodes[1].is_fenced());
    nodes[1].tick(start + ISOLATED_MAX);
    assert!(nodes[1].is_fenced() && nodes[1].take_actions().contains(&Action::Fence));
}

#[test]
fn what_is_late_counts_for_nothing() {
    let mut node = Membership::new(NodeId(2), 4, DeathRule::Majority, Rng::seed_from_u64(1));
    let view = |members: &[u16]| View { members: members.into(), departed: Vec::new() };
    node.receive(NodeId(0), Message::Decided { epoch: 1, view: view(&[0, 1, 2]) });
    node.take_actions();
    let ballot = Ballot { round: 9, leader: 1 };
    node.receive(NodeId(1), Message::Prepare { epoch: 1, ballot });
    node.receive(NodeId(1), Message::Accept { epoch: 1, ballot, view: view(&[1, 2, 3]) });
    assert_eq!((node.take_actions(), node.accepted.clone()), (vec![], None));
    // A decision that comes before its turn waits for it.
    node.receive(NodeId(1), Message::Decided { epoch: 3, view: view(&[2]) });
    assert_eq!(node.epoch(), 1);
    node.receive(NodeId(1), Message::Decided { epoch: 2, view: view(&[1, 2]) });
    assert_eq!((node.epoch(), node.members().collect::<Vec<_>>()), (3, vec![NodeId(2)]));
}
