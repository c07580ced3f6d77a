//! A key-value store that is linearizable. A thread that has got a value knows what its writer knew.

use farfield_core::{Endpoint, KvOptions, Placement, Result};

use super::knowledge::Party;
use super::peril::Peril;
use super::{Object, Program, Step, VICTIM};
use crate::kv::client::{Answer, Client, all_slots_come_back, keys, linearizable, tiny};
use crate::kv::node_failure;
use farfield_check::parts::{Excuse, cut};

struct Clients {
    /// Those of the nodes.
    clients: Vec<Client>,
    keys: Vec<u64>,
    placement: Placement,
}

pub(super) fn open(program: &Program<'_>) -> Result<Box<dyn Object>> {
    let placement = if program.draw(2) == 0 { Placement::Inserter } else { Placement::Hash };
    let may_lose = matches!(program.peril, Peril::Death | Peril::Suspicion);
    // With three nodes, the first key is on node 0 if it is placed by its hash, and the second on the victim.
    let all = keys([|hash| hash % 3 == 0, |hash| hash % 3 == u64::from(VICTIM.0), |_| true]);
    let keys = all[..if may_lose { 2 } else { 1 + program.draw(3) }].to_vec();
    let slots_per_node = match (may_lose, placement) {
        (true, Placement::Inserter) => 6,
        (false, Placement::Inserter) => 1 + program.draw(2),
        // Each node has its share of them.
        (true, Placement::Hash) => 2 * program.nodes(),
        (false, Placement::Hash) => program.nodes(),
    };
    let options = KvOptions { placement, slots_per_node, locks: 1 + program.draw(3), ..tiny() };
    let mut there: Vec<(usize, u64, u64)> = Vec::new();
    if may_lose {
        there = vec![(0, keys[0], program.board.token()), (VICTIM.index(), keys[1], program.board.token())];
    } else if program.draw(2) == 0 {
        there.push((program.draw_node(), keys[0], program.board.token()));
    }
    let mut clients = Client::open(program.cluster, options, &there)?;
    match program.peril {
        Peril::Nothing | Peril::Refusals(_) => {
            linearizable(program.cluster, &clients, &keys);
            if placement == Placement::Inserter {
                all_slots_come_back(program.cluster, &clients, &keys);
            }
        }
        Peril::Death => node_failure::judge(program.cluster, &clients, &keys, Some(keys[0])),
        Peril::Suspicion => {
            node_failure::may_be_cut_off(program.cluster, &mut clients)?;
            node_failure::judge(program.cluster, &clients, &keys, None);
        }
    }
    Ok(Box::new(Clients { clients, keys, placement }))
}

#[derive(Clone, Copy)]
enum Call {
    Get,
    GetMany,
    Insert,
    Update,
    Upsert,
    Delete,
}

async fn make(
    client: &Client,
    ep: &Endpoint,
    party: &mut Party,
    call: Call,
    key: u64,
    keys: &[u64],
    pending: Option<usize>,
) -> Result<()> {
    let pending = pending.unwrap_or(usize::MAX);
    let value = party.token();
    match call {
        Call::Get => {
            if let Answer::Is(Some(token)) = client.get(ep, key).await? {
                party.hears(token, None);
            }
            Ok(())
        }
        Call::GetMany => client.get_many(ep, keys).await,
        Call::Insert => cut(pending, client.insert(ep, key, value)).await.transpose().map(drop),
        Call::Update => cut(pending, client.update(ep, key, value)).await.transpose().map(drop),
        Call::Upsert => cut(pending, client.upsert(ep, key, value)).await.transpose().map(drop),
        Call::Delete => cut(pending, client.delete(ep, key)).await.transpose().map(drop),
    }
}

impl Object for Clients {
    fn step(&self, program: &Program<'_>, thread: usize) -> Option<Step> {
        let (node, peril, keys) = (program.node_of(thread), program.peril.clone(), self.keys.clone());
        let may_lose = matches!(peril, Peril::Death | Peril::Suspicion);
        // The judge of losses takes the calls of a node one by one.
        if may_lose && !program.is_first(thread) {
            return None;
        }
        let (client, key) = (self.clients[node].clone(), keys[program.draw(keys.len())]);
        let is_kept = may_lose && key == keys[0] && self.placement == Placement::Inserter;
        let may_insert = !is_kept || node != VICTIM.index();
        let call = match program.draw(8) {
            0 => Call::Delete,
            1 | 2 if may_insert => Call::Insert,
            3 if may_insert => Call::Upsert,
            4 | 5 => Call::Update,
            6 if !may_lose => Call::GetMany,
            _ => Call::Get,
        };
        let pending = (!may_lose && program.draw(4) == 0).then(|| program.draw(8));
        Some(Box::new(move |ep, party| {
            let since = Excuse::now();
            let made = ep.block_on(make(&client, ep, party, call, key, &keys, pending));
            peril.unless_faults(since, made).map(drop)
        }))
    }
}
