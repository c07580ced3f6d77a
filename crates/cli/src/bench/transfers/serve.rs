//! One node of a benchmark of transfers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use farfield::fabric::Word;
use farfield::{Barrier, BarrierThread, Endpoint, LockKind, LockOptions, Node, TransactionOptions, Transactions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::report::ThreadResult;
use super::{ACCOUNT_BYTES, AMOUNT, Plan, TRANSFER_MAX};
use crate::bench::worker::{self, say};
use crate::bench::workload::scale;

/// The default limit of a node's memory, and the memory that it needs beside the accounts.
const MEMORY_BYTES: u64 = 64 << 30;
const MEMORY_BYTES_MORE: u64 = 1 << 30;

/// Serves in a benchmark until it is over.
pub(super) fn main(plan: &Plan) -> Result<()> {
    let own_bytes = plan.accounts.div_ceil(u64::from(plan.nodes)) * ACCOUNT_BYTES;
    let limit = usize::try_from(MEMORY_BYTES.max(own_bytes + MEMORY_BYTES_MORE))?;
    let node = Node::builder().environment()?.memory_bytes_max(limit).start()?;
    node.wait_for_all(Duration::from_secs(30))?;
    let kind: LockKind = plan.kind.parse()?;
    let cells = usize::try_from(plan.accounts)?;
    let options = TransactionOptions { cells, locks: plan.locks, lock: LockOptions::new(kind) };
    let accounts = Arc::new(Transactions::open(&node, "accounts", options)?);
    accounts.own_cells().for_each(|(_, word)| word.store(AMOUNT));
    let barrier = Barrier::open(&node, "phases", usize::from(plan.threads))?;
    let mut threads = Vec::new();
    for thread in 0..plan.threads {
        let worker = Worker {
            plan: plan.clone(),
            accounts: Arc::clone(&accounts),
            number: u64::from(node.id().0) * u64::from(plan.threads) + u64::from(thread),
            is_first: thread == 0,
            endpoint: node.endpoint()?,
            phase: barrier.thread()?,
        };
        threads.push(|| worker.main());
    }
    worker::run_threads(threads)
}

/// One thread.
struct Worker {
    plan: Plan,
    accounts: Arc<Transactions>,
    /// Among those of all nodes.
    number: u64,
    /// Of its node.
    is_first: bool,
    endpoint: Endpoint,
    phase: BarrierThread,
}

impl Worker {
    fn main(mut self) -> Result<()> {
        self.plan.cores.pin(self.number as usize)?;
        self.meet()?;
        if self.number == 0 {
            say("running", &())?;
        }
        let result = self.endpoint.block_on(self.measure())?;
        // From here on all puts are visible, and no thread makes a transfer.
        self.meet()?;
        say("thread", &result)?;
        if self.is_first {
            if self.number == 0 && self.plan.steal {
                let (_, word) = self.accounts.own_cells().next().context("node 0 has an account")?;
                word.store(word.load().wrapping_sub(1));
            }
            let sum = self.accounts.own_cells().map(|(_, word)| word).map(Word::load).fold(0, u64::wrapping_add);
            say("sum", &sum)?;
        }
        // Each node stays until the others have finished reading its memory.
        self.meet()
    }

    fn meet(&mut self) -> Result<()> {
        worker::meet(&self.endpoint, &mut self.phase)
    }

    /// Transfers amounts until the time is over.
    async fn measure(&self) -> Result<ThreadResult> {
        let endpoint = &self.endpoint;
        let mut rng = SmallRng::seed_from_u64(self.number);
        let mut result = ThreadResult::new();
        let accounts = self.plan.accounts;
        let start = endpoint.now();
        let end = start + Duration::from_secs_f64(self.plan.seconds);
        let (mut now, mut before) = (start, endpoint.counts());
        while now < end {
            let from = scale(rng.next_u64(), accounts).0;
            let to = (from + 1 + scale(rng.next_u64(), accounts - 1).0) % accounts;
            let amount = 1 + scale(rng.next_u64(), TRANSFER_MAX).0;
            let moved = self.transfer(from as usize, to as usize, amount).await;
            let (ended, after) = (endpoint.now(), endpoint.counts());
            match moved {
                Ok(true) => result.add((ended - now).as_nanos() as u64, after - before),
                Ok(false) => result.aborted += 1,
                Err(error) if error.is_timeout() => result.timeouts += 1,
                Err(error) => return Err(error.into()),
            }
            (now, before) = (ended, after);
        }
        result.done.seconds = (now - start).as_secs_f64();
        Ok(result)
    }

    /// Transfers an amount from one account to another. Returns whether the account had enough.
    async fn transfer(&self, from: usize, to: usize, amount: u64) -> farfield::Result<bool> {
        let mut transaction = self.accounts.begin(&self.endpoint, &[from, to]).await?;
        let held = transaction.read_all(&[from, to]).await?;
        let Some(left) = held[0].checked_sub(amount) else {
            transaction.abort().await?;
            return Ok(false);
        };
        transaction.write(from, left)?;
        transaction.write(to, held[1].wrapping_add(amount))?;
        transaction.commit().await?;
        Ok(true)
    }
}
