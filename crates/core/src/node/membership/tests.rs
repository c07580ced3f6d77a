//! Many random sessions of a few machines, with late messages, nodes that crash and restart, and links that are cut.

use std::collections::VecDeque;

use farfield_fabric::Rng;
use rand::SeedableRng;

use super::*;

/// The most nodes of a place, one after the other.
const LIVES: usize = 3;

/// A session: machines, and the messages in flight between each pair.
struct Session {
    places: usize,
    /// Indexed by node number; `None` until the node has begun.
    nodes: Vec<Option<Membership>>,
    links: Vec<Vec<VecDeque<Message>>>,
    /// The side of the cut that each node is on.
    side: Vec<bool>,
    crashed: Vec<bool>,
    /// The nodes to which each node has actually closed its memory.
    closed: Vec<BTreeSet<u16>>,
    /// Whether a node has announced its memory to any other.
    open: Vec<bool>,
    /// Pairs of nodes: the first has learned that the second has started.
    heard: BTreeSet<(usize, usize)>,
    now: Instant,
    rng: Rng,
}

impl Session {
    fn new(places: usize, seed: u64) -> Session {
        let count = places * LIVES;
        let mut session = Session {
            places,
            nodes: vec![None; count],
            links: vec![vec![VecDeque::new(); count]; count],
            side: vec![false; count],
            crashed: vec![false; count],
            closed: vec![BTreeSet::new(); count],
            open: vec![false; count],
            heard: BTreeSet::new(),
            now: Instant::default() + Duration::from_secs(1),
            rng: Rng::seed_from_u64(seed),
        };
        (0..places).for_each(|place| session.begin(place));
        session
    }

    /// Starts a node.
    fn begin(&mut self, node: usize) {
        let rng = Rng::seed_from_u64(self.rng.random());
        let machine = Membership::new(NodeId(node as u16), self.places as u16, DeathRule::Majority, rng);
        self.open[node] = machine.is_member();
        self.nodes[node] = Some(machine);
    }

    fn machine(&mut self, node: usize) -> &mut Membership {
        self.nodes[node].as_mut().expect("a node that has begun")
    }

    fn begun(&self) -> impl Iterator<Item = (usize, &Membership)> {
        self.nodes.iter().enumerate().filter_map(|(me, node)| Some((me, node.as_ref()?)))
    }

    fn runs(&self, node: usize) -> bool {
        !self.crashed[node] && self.nodes[node].as_ref().is_some_and(|node| !node.has_departed())
    }

    /// Sends the messages that a machine requests.
    fn act(&mut self, me: usize) {
        for action in self.machine(me).take_actions() {
            if let Action::Send(to, message) = action {
                self.links[me][to.index()].push_back(message);
            }
        }
        // An admitted node announces its memory when it has evicted all nodes removed before.
        let machine = self.machine(me);
        self.open[me] |= machine.is_member() && machine.to_evict.is_empty();
    }

    /// Performs one random event. Faults occur only if `faults`; otherwise each reachable node is trusted.
    fn step(&mut self, faults: bool) {
        let begun: Vec<usize> = self.begun().map(|(me, _)| me).collect();
        let [me, other] = [(); 2].map(|()| begun[self.rng.random_range(0..begun.len())]);
        match self.rng.random_range(0..if faults { 100 } else { 90 }) {
            0..60 => {
                // One of the nodes with a message to receive receives it.
                let links = begun.iter().flat_map(|from| begun.iter().map(|to| (*from, *to)));
                let can_arrive = |(from, to): &(usize, usize)| {
                    self.runs(*to) && self.side[*from] == self.side[*to] && !self.links[*from][*to].is_empty()
                };
                let links: Vec<(usize, usize)> = links.filter(can_arrive).collect();
                if links.is_empty() {
                    return;
                }
                let (from, to) = links[self.rng.random_range(0..links.len())];
                let message = self.links[from][to].pop_front().expect("it can arrive");
                self.machine(to).receive(NodeId(from as u16), message);
                self.act(to);
            }
            60..75 => {
                self.now = self.now + Duration::from_micros(self.rng.random_range(0..2000));
                if self.runs(me) {
                    let now = self.now;
                    self.machine(me).tick(now);
                    self.act(me);
                }
            }
            75..90 => {
                if !self.runs(me) {
                    return;
                }
                let to_evict = self.machine(me).to_evict();
                let takes_a_while = self.rng.random_range(0..3) != 0;
                let node = NodeId(other as u16);
                if let (false, Some(dead)) = (takes_a_while, to_evict.first()) {
                    self.closed[me].insert(dead.0);
                    self.machine(me).has_evicted(*dead);
                    self.act(me);
                } else if me != other && self.runs(other) && self.side[me] == self.side[other] {
                    if self.heard.insert((me, other)) {
                        self.machine(me).came(node);
                    } else {
                        self.machine(me).trust(node);
                    }
                } else if me != other {
                    self.machine(me).suspect(node);
                }
            }
            90..92 => self.crashed[me] = true,
            92 | 93 => {
                // The next node of a place starts when the last has ended.
                let last = (other % self.places..self.nodes.len()).step_by(self.places);
                let last = last.take_while(|node| self.nodes[*node].is_some()).last().expect("the first has begun");
                if !self.runs(last) && last + self.places < self.nodes.len() {
                    self.begin(last + self.places);
                }
            }
            94 if self.runs(me) => {
                let now = self.now;
                self.machine(me).depart(now);
                self.act(me);
            }
            95..97 => self.side.iter_mut().for_each(|side| *side = self.rng.random_range(0..2) == 0),
            97 => self.side.fill(false),
            // A slow node, not a dead one.
            _ if self.runs(me) && me != other => self.machine(me).suspect(NodeId(other as u16)),
            _ => {}
        }
    }

    /// Checks the invariants, which hold after every event.
    fn check(&self) {
        let let_in = || self.begun().map(|(_, node)| node).filter(|node| !node.members.is_empty());
        for one in let_in() {
            let same = let_in().filter(|other| other.epoch == one.epoch);
            same.for_each(|other| assert_eq!((&one.members, &one.removed), (&other.members, &other.removed)));
        }
        for (me, node) in self.begun().filter(|(me, _)| self.runs(*me)) {
            let is_evicted = |dead: &&u16| node.status_of(NodeId(**dead)) == Some(MemberStatus::Evicted);
            for dead in node.removed.keys().filter(is_evicted) {
                // Nothing of the dead node lands on a node that continues. Those are the nodes that this one takes for
                // members. Later members are fewer, or open their memory to others only.
                for member in node.members.iter().filter(|member| self.runs(usize::from(**member))) {
                    let is_closed = |member: usize| self.closed[member].contains(dead) || !self.open[member];
                    assert!(is_closed(usize::from(*member)), "node {me} recovers {dead}, to whom {member} is open");
                }
            }
        }
    }
}

#[test]
fn all_nodes_decide_the_same_and_recover_only_evicted_nodes() {
    let (mut removed, mut fenced, mut departed, mut returned) = (0, 0, 0, 0);
    for seed in 0..3000 {
        let count = 2 + seed as usize % 4;
        let mut session = Session::new(count, seed);
        for _ in 0..session.rng.random_range(100..600) {
            session.step(true);
            session.check();
        }
        session.side.fill(false);
        for _ in 0..5_000 {
            session.step(false);
        }
        session.check();
        // All running nodes that are not fenced agree with each other and on the state to be recovered. The others know
        // that they do not continue.
        let last = session.begun().map(|(_, node)| node.epoch).max().unwrap();
        let goes_on = |(me, node): &(usize, &Membership)| session.runs(*me) && !node.is_fenced;
        let is_left = session.begun().filter(goes_on).any(|(_, node)| node.is_member());
        for (me, node) in session.begun().filter(goes_on).filter(|_| is_left) {
            assert_eq!(node.epoch, last, "seed {seed}: node {me} is behind");
            assert!(node.members.iter().all(|member| session.runs(usize::from(*member))), "seed {seed}: {node:?}");
            let dead = node.removed.iter().filter(|(_, removed)| !removed.departed).map(|(dead, _)| NodeId(*dead));
            assert!(
                { dead }.all(|dead| node.status_of(dead) == Some(MemberStatus::Evicted)),
                "seed {seed}: node {me} waits for ever"
            );
        }
        removed += session.begun().map(|(_, node)| node.to_evict.len() + node.removed.len()).sum::<usize>();
        fenced += session.begun().filter(|(_, node)| node.is_fenced).count();
        departed += session.begun().filter(|(_, node)| node.has_departed()).count();
        returned += session.begun().filter(|(me, node)| *me >= count && !node.members.is_empty()).count();
    }
    let many = [removed, fenced, departed, returned].map(|count| count > 300);
    assert_eq!(many, [true; 4], "{removed} {fenced} {departed} {returned}");
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
fn a_node_that_the_system_calls_dead_needs_no_vote() {
    let mut node = Membership::new(NodeId(1), 3, DeathRule::System, Rng::seed_from_u64(1));
    node.died(NodeId(0));
    assert_eq!((node.epoch(), node.members().collect::<Vec<_>>()), (1, vec![NodeId(1), NodeId(2)]));
    assert_eq!((node.to_evict(), node.status_of(NodeId(0))), (vec![NodeId(0)], Some(MemberStatus::Dead)));
    node.has_evicted(NodeId(0));
    assert_eq!((node.to_evict(), node.status_of(NodeId(0))), (vec![], Some(MemberStatus::Evicted)));
    node.left(NodeId(2));
    assert_eq!((node.epoch(), node.to_evict(), node.status_of(NodeId(2))), (2, vec![], Some(MemberStatus::Departed)));
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
fn late_messages_count_for_nothing() {
    let mut node = Membership::new(NodeId(2), 4, DeathRule::Majority, Rng::seed_from_u64(1));
    let view = |members: &[u16]| View { members: members.into(), departed: Vec::new() };
    node.receive(NodeId(0), Message::Decided { epoch: 1, view: view(&[0, 1, 2]) });
    node.take_actions();
    let ballot = Ballot { round: 9, leader: 1 };
    node.receive(NodeId(1), Message::Prepare { epoch: 1, ballot });
    node.receive(NodeId(1), Message::Accept { epoch: 1, ballot, view: view(&[1, 2, 3]) });
    assert_eq!((node.take_actions(), node.accepted.clone()), (vec![], None));
    // A decision that arrives early waits for its epoch.
    node.receive(NodeId(1), Message::Decided { epoch: 3, view: view(&[2]) });
    assert_eq!(node.epoch(), 1);
    node.receive(NodeId(1), Message::Decided { epoch: 2, view: view(&[1, 2]) });
    assert_eq!((node.epoch(), node.members().collect::<Vec<_>>()), (3, vec![NodeId(2)]));
}

/// Each proposal overtook the one before it, which had not been answered yet. No decision was made for as long as the
/// members were too busy to answer at once.
#[test]
fn members_that_answer_late_decide_in_the_end() {
    let late = Duration::from_millis(300);
    let start = Instant::default() + Duration::from_secs(1);
    let new = |me: u16| Membership::new(NodeId(me), 3, DeathRule::Majority, Rng::seed_from_u64(u64::from(me)));
    let mut nodes = [0, 1].map(new);
    nodes.iter_mut().for_each(|node| node.suspect(NodeId(2)));
    let mut on_their_way: VecDeque<(Instant, NodeId, NodeId, Message)> = VecDeque::new();
    for ms in 0..10_000 {
        let now = start + Duration::from_millis(ms);
        while on_their_way.front().is_some_and(|it| it.0 <= now) {
            let (_, from, to, message) = on_their_way.pop_front().expect("it is there");
            nodes[to.index()].receive(from, message);
        }
        for (from, node) in (0..).map(NodeId).zip(&mut nodes) {
            node.tick(now);
            for action in node.take_actions() {
                if let Action::Send(to @ NodeId(0..2), message) = action {
                    on_their_way.push_back((now + late, from, to, message));
                }
            }
        }
        if nodes.iter().all(|node| node.epoch() == 1) {
            return;
        }
    }
    panic!("nothing was decided");
}

/// A first node that started late did not receive earlier decisions, and stayed in the first epoch. The others waited
/// for ever for it to evict the dead nodes, and its proposals counted for nothing.
#[test]
fn a_first_incarnation_that_comes_late_learns_the_decisions() {
    let mut session = Session::new(4, 5);
    session.crashed[2] = true;
    // Node 3 receives nothing until the others have decided.
    [0, 1].iter().for_each(|me| session.machine(*me).suspect(NodeId(2)));
    for _ in 0..10_000 {
        session.now = session.now + Duration::from_millis(1);
        for me in [0, 1] {
            let now = session.now;
            session.machine(me).tick(now);
            session.act(me);
            for other in 0..4 {
                session.links[me][3].clear();
                if let (true, Some(message)) = (other < 2, session.links[me][other].pop_front()) {
                    session.machine(other).receive(NodeId(me as u16), message);
                    session.act(other);
                }
            }
        }
        if [0, 1].iter().all(|me| session.machine(*me).epoch() == 1) {
            break;
        }
    }
    assert_eq!((session.machine(0).epoch(), session.machine(3).epoch()), (1, 0));
    session.machine(0).came(NodeId(3));
    session.act(0);
    while let Some(message) = session.links[0][3].pop_front() {
        session.machine(3).receive(NodeId(0), message);
    }
    assert_eq!(session.machine(3).epoch(), 1);
    assert_eq!(session.machine(3).to_evict(), [NodeId(2)]);
}

#[test]
fn a_restarted_node_is_admitted_once_its_predecessor_is_gone() {
    let mut node = Membership::new(NodeId(1), 3, DeathRule::System, Rng::seed_from_u64(1));
    node.came(NodeId(3));
    assert_eq!((node.epoch(), node.status_of(NodeId(3))), (0, None));
    node.died(NodeId(0));
    assert_eq!((node.epoch(), node.members().collect::<Vec<_>>()), (2, [1, 2, 3].map(NodeId).into()));
    // The restarted node knows the dead nodes from the fabric, and learns of the other restarted ones.
    let mut back = Membership::new(NodeId(3), 3, DeathRule::System, Rng::seed_from_u64(1));
    back.finds(&[0, 2], &[NodeId(1)]);
    back.came(NodeId(5));
    assert_eq!(back.members().collect::<Vec<_>>(), [1, 3, 5].map(NodeId));
    assert_eq!(back.status_of(NodeId(0)), Some(MemberStatus::Departed));
    assert_eq!((back.status_of(NodeId(4)), back.to_evict()), (None, vec![]));
}

#[test]
fn a_late_node_knows_the_restarted_nodes() {
    let mut late = Membership::new(NodeId(2), 3, DeathRule::System, Rng::seed_from_u64(1));
    late.finds(&[0], &[NodeId(1), NodeId(2), NodeId(3)]);
    assert_eq!(late.members().collect::<Vec<_>>(), [1, 2, 3].map(NodeId));
    late.came(NodeId(3));
    assert_eq!((late.epoch(), late.status_of(NodeId(0))), (0, Some(MemberStatus::Departed)));
}

#[test]
fn a_new_member_is_welcomed_again_when_it_connects() {
    let mut node = Membership::new(NodeId(1), 3, DeathRule::Majority, Rng::seed_from_u64(1));
    let view = View { members: vec![1, 2, 3], departed: Vec::new() };
    node.receive(NodeId(2), Message::Decided { epoch: 1, view });
    let is_welcome = |action: &Action| matches!(action, Action::Send(NodeId(3), Message::Welcome { epoch: 1, .. }));
    assert!(node.take_actions().iter().any(is_welcome));
    // That message was lost: the two were not connected yet.
    node.came(NodeId(3));
    assert!(node.take_actions().iter().any(is_welcome));
}

/// A machine of `places`, where the members decide.
fn voter(me: u16, places: u16) -> Membership {
    Membership::new(NodeId(me), places, DeathRule::Majority, Rng::seed_from_u64(1))
}

fn view(members: &[u16], departed: &[u16]) -> View {
    View { members: members.into(), departed: departed.into() }
}

/// The admission of node 3 of three places, in an epoch.
fn welcome(epoch: u64) -> Message {
    let members = BTreeSet::from([1, 2, 3]);
    let removed = BTreeMap::from([(0, Removed { epoch, departed: false })]);
    Message::Welcome { epoch, members, removed, evicted_until: BTreeMap::from([(3, epoch)]) }
}

/// The ballots that a machine asks the others to take part in.
fn prepared(node: &mut Membership) -> Vec<Ballot> {
    let ballot = |action| match action {
        Action::Send(_, Message::Prepare { ballot, .. }) => Some(ballot),
        _ => None,
    };
    node.take_actions().into_iter().filter_map(ballot).collect()
}

#[test]
fn suspicion_is_published_and_so_is_trust() {
    let mut node = voter(1, 3);
    assert_eq!((node.has_changed(), node.status_of(NodeId(0))), (false, Some(MemberStatus::Member)));
    node.suspect(NodeId(0));
    assert_eq!((node.has_changed(), node.status_of(NodeId(0))), (true, Some(MemberStatus::Suspected)));
    node.trust(NodeId(0));
    assert_eq!((node.has_changed(), node.status_of(NodeId(0))), (true, Some(MemberStatus::Member)));
}

#[test]
fn a_node_takes_part_in_nothing_before_its_admission() {
    let mut node = voter(3, 3);
    assert_eq!(node.members().count(), 0);
    node.suspect(NodeId(2));
    // Earlier decisions of the members concern other nodes.
    node.receive(NodeId(1), Message::Decided { epoch: 1, view: view(&[1, 2], &[]) });
    let ballot = Ballot { round: 1, leader: 1 };
    node.receive(NodeId(1), Message::Prepare { epoch: 1, ballot });
    assert_eq!((node.epoch(), node.is_fenced(), node.take_actions()), (0, false, vec![]));
    // Nor does it propose to admit another node.
    node.came(NodeId(5));
    assert_eq!(node.next_tick(), None);
    node.receive(NodeId(1), welcome(4));
    assert_eq!((node.epoch(), node.status_of(NodeId(2))), (4, Some(MemberStatus::Suspected)));
    assert_eq!((node.status_of(NodeId(0)), node.to_evict()), (Some(MemberStatus::Dead), vec![NodeId(0)]));
}

#[test]
fn a_new_member_admits_no_node_that_was_removed_before() {
    let mut node = voter(3, 3);
    let members = BTreeSet::from([2, 3]);
    let removed = BTreeMap::from([0, 1, 4].map(|gone| (gone, Removed { epoch: 3, departed: true })));
    node.came(NodeId(4));
    // No decision follows: that would forget the arrival, too.
    node.receive(NodeId(2), Message::Welcome { epoch: 4, members, removed, evicted_until: BTreeMap::new() });
    assert_eq!(node.next_tick(), None, "place 1 is free, but its node 4 was removed");
}

#[test]
fn without_votes_nothing_is_proposed() {
    let mut node = Membership::new(NodeId(1), 3, DeathRule::System, Rng::seed_from_u64(1));
    node.suspect(NodeId(0));
    assert_eq!((node.next_tick(), node.status_of(NodeId(0))), (None, Some(MemberStatus::Suspected)));
}

#[test]
fn a_welcome_that_comes_again_changes_nothing() {
    let mut node = voter(3, 3);
    node.receive(NodeId(1), welcome(4));
    node.receive(NodeId(1), Message::Decided { epoch: 5, view: view(&[1, 3], &[2]) });
    node.receive(NodeId(2), welcome(4));
    assert_eq!((node.epoch(), node.status_of(NodeId(2))), (5, Some(MemberStatus::Departed)));
    node.depart(Instant::default());
    node.receive(NodeId(1), Message::Decided { epoch: 6, view: view(&[1], &[3]) });
    node.receive(NodeId(2), welcome(4));
    assert_eq!((node.epoch(), node.is_member(), node.is_fenced()), (6, false, false));
}

#[test]
fn a_node_that_never_was_a_member_changes_no_epoch() {
    let mut node = Membership::new(NodeId(1), 3, DeathRule::System, Rng::seed_from_u64(1));
    node.came(NodeId(3));
    node.left(NodeId(3));
    assert_eq!((node.epoch(), node.status_of(NodeId(3))), (0, None));
    node.left(NodeId(2));
    node.left(NodeId(2));
    assert_eq!((node.epoch(), node.status_of(NodeId(2))), (1, Some(MemberStatus::Departed)));
}

#[test]
fn a_departing_node_asks_the_others_at_once() {
    let mut node = voter(2, 3);
    let start = Instant::default() + Duration::from_secs(1);
    node.depart(start);
    node.tick(start);
    assert_eq!(prepared(&mut node).len(), 2, "both others are asked");
}

#[test]
fn a_node_is_isolated_only_without_a_quorum_all_the_time() {
    let mut node = voter(0, 5);
    let start = Instant::default() + Duration::from_secs(1);
    (1..4).for_each(|other| node.suspect(NodeId(other)));
    node.tick(start);
    // One is back, so three of five are in reach.
    node.trust(NodeId(3));
    node.tick(start + ISOLATED_MAX / 2);
    node.suspect(NodeId(3));
    node.tick(start + ISOLATED_MAX);
    node.tick(start + ISOLATED_MAX + ISOLATED_MAX / 2);
    assert!(!node.is_fenced());
    node.tick(start + 2 * ISOLATED_MAX);
    assert!(node.is_fenced());
}

#[test]
fn a_fenced_node_does_not_vote() {
    let mut node = voter(1, 2);
    let start = Instant::default() + Duration::from_secs(1);
    node.suspect(NodeId(0));
    node.tick(start);
    node.tick(start + ISOLATED_MAX);
    assert!(node.is_fenced());
    node.take_actions();
    let ballot = Ballot { round: 9, leader: 0 };
    node.receive(NodeId(0), Message::Prepare { epoch: 1, ballot });
    node.receive(NodeId(0), Message::Accept { epoch: 1, ballot, view: view(&[0], &[]) });
    assert_eq!((node.take_actions(), node.accepted.clone()), (vec![], None));
}

#[test]
fn a_voter_that_has_accepted_refuses_lower_ballots() {
    let mut node = voter(0, 3);
    let [low, high] = [8, 9].map(|round| Ballot { round, leader: 1 });
    // The preparation of the higher one did not reach this node.
    node.receive(NodeId(1), Message::Accept { epoch: 1, ballot: high, view: view(&[0, 1], &[]) });
    node.take_actions();
    node.receive(NodeId(2), Message::Prepare { epoch: 1, ballot: low });
    node.receive(NodeId(2), Message::Accept { epoch: 1, ballot: low, view: view(&[0, 2], &[]) });
    let refusal = Action::Send(NodeId(2), Message::Overtaken { epoch: 1, ballot: high });
    assert_eq!(node.take_actions(), [refusal.clone(), refusal]);
    assert_eq!(node.accepted, Some((high, view(&[0, 1], &[]))));
}

#[test]
fn an_overtaken_proposer_uses_a_higher_ballot() {
    let mut node = voter(0, 3);
    let start = Instant::default() + Duration::from_secs(1);
    node.suspect(NodeId(2));
    node.tick(start);
    let first = prepared(&mut node)[0];
    let ballot = Ballot { round: first.round + 7, leader: 1 };
    node.receive(NodeId(1), Message::Overtaken { epoch: 1, ballot });
    node.tick(start + Duration::from_secs(10));
    assert!(prepared(&mut node)[0] > ballot);
}
