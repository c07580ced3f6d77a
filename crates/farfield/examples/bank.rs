//! A bank with accounts in the memories of all nodes. A transfer takes two locks, always in the same order, and updates
//! both accounts with gets and puts. No concurrent transfers create or lose money.
//!
//! It uses custom network memory together with ready-made objects ([`MutexArray`], [`Barrier`]). It also shows the
//! guarantee of a lock: puts under it are visible to its next holder, on whatever nodes the words are.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/bank                                      # three nodes in one process
//! target/release/farfield run -n 3 -- target/release/examples/bank  # three processes
//! ```

use farfield::fabric::{GroupKey, RemotePtr};
use farfield::toolkit::{Object, ObjectBuilder};
use farfield::{Barrier, Endpoint, MutexArray, Node, Result, local_session, on_each};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const ACCOUNTS_PER_NODE: usize = 16;
const OPENING_BALANCE: u64 = 1000;
const TRANSFERS_PER_NODE: usize = 20_000;

/// The accounts and a lock for each.
struct Bank {
    accounts: Vec<RemotePtr<u64>>,
    locks: MutexArray,
    /// Keeps the accounts' names open.
    _object: Object,
}

impl Bank {
    /// Opens the bank on this node, and waits for all other nodes to do so.
    fn open(node: &Node, path: &str) -> Result<Bank> {
        let bytes = ACCOUNTS_PER_NODE * 8;
        let mine = node.alloc(GroupKey::DATA, bytes)?;
        for account in mine.words(0, ACCOUNTS_PER_NODE) {
            account.store(OPENING_BALANCE);
        }
        let object = ObjectBuilder::new(node, path, "Bank")
            .layout(&format!("{ACCOUNTS_PER_NODE} accounts on each node"))
            .region("accounts", mine)
            .require_regions(move |_| vec![("accounts".into(), bytes as u64)])
            .announce()?;
        object.wait(node.timeout())?;
        let mut accounts = Vec::new();
        for member in node.members() {
            let first = object.remote::<u64>(member, "accounts")?;
            accounts.extend((0..ACCOUNTS_PER_NODE).map(|index| first.at(index)));
        }
        let locks = MutexArray::open(node, &format!("{path}/locks"), accounts.len())?;
        Ok(Bank { accounts, locks, _object: object })
    }

    /// Moves `amount`, or the whole balance if that is less.
    async fn transfer(&self, ep: &Endpoint, from: usize, to: usize, amount: u64) -> Result<()> {
        if from == to {
            return Ok(());
        }
        // All transfers use one order, so that no two of them wait for each other.
        let first = self.locks.lock(ep, from.min(to)).await?;
        let second = self.locks.lock(ep, from.max(to)).await?;
        let (source, target) = (self.accounts[from], self.accounts[to]);
        // Both gets are in flight before the first is awaited.
        let (balance, receiver) = (ep.get(source), ep.get(target));
        let (balance, receiver) = (balance.await?, receiver.await?);
        let amount = amount.min(balance);
        ep.put_value(source, balance - amount).await?;
        ep.put_value(target, receiver + amount).await?;
        // A release waits until the puts are visible.
        second.unlock().await?;
        first.unlock().await
    }

    /// The money in all accounts, while no transfer is in progress.
    async fn total(&self, ep: &Endpoint) -> Result<u64> {
        let mut total = 0;
        for account in &self.accounts {
            total += ep.get(*account).await?;
        }
        Ok(total)
    }
}

fn run(node: &Node) -> Result<()> {
    let bank = Bank::open(node, "bank")?;
    let mut everyone = Barrier::open(node, "everyone", 1)?.thread()?;
    let ep = node.endpoint()?;
    let mut rng = SmallRng::seed_from_u64(u64::from(node.id().0));
    let accounts = bank.accounts.len();
    ep.block_on(async {
        let start = ep.now();
        for _ in 0..TRANSFERS_PER_NODE {
            let (from, to) = (rng.random_range(0..accounts), rng.random_range(0..accounts));
            bank.transfer(&ep, from, to, rng.random_range(1..=100)).await?;
        }
        let took = ep.now() - start;
        everyone.wait(&ep).await?;
        let total = bank.total(&ep).await?;
        println!("{}: {TRANSFERS_PER_NODE} transfers in {took:.1?}; {total} in {accounts} accounts", node.id());
        assert_eq!(total, accounts as u64 * OPENING_BALANCE, "money was made or lost");
        everyone.wait(&ep).await // no node leaves while others still read
    })
}

fn main() -> Result<()> {
    if Node::is_launched() { run(&Node::from_environment()?) } else { on_each(&local_session(3)?, run).map(|_| ()) }
}
