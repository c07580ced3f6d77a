//! A custom object composed of two others: a leaderboard.
//!
//! Every node stores its best score in a row of a shared table ([`Sst`]). A look at the board reads the local copy and
//! needs no network operation. The number of games is one word that all nodes add to ([`AtomicVar`]). An object that is
//! composed like this needs no unsafe code and no messages:
//!
//! - Its sub-objects have names below its own: `board/best`, `board/games`.
//! - Opening it opens them, and so waits for all nodes. A node that opens a different object there gets an error that
//!   names the difference.
//! - Errors of the parts carry the names of the parts, its own errors its own name.
//!
//! ```sh
//! cargo build --release --bin farfield --examples
//! target/release/examples/own_object                                      # three nodes in one process
//! target/release/farfield run -n 3 -- target/release/examples/own_object  # three processes
//! ```

use farfield::{
    AtomicVar, Barrier, Endpoint, Error, ErrorKind, Node, NodeId, OwnedWriter, Result, Sst, local_session, on_each,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A row of the board, as it is stored in network memory: plain data, whole words. Readers never see half of a row.
#[derive(Clone, Copy, PartialEq, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Best {
    score: u64,
    game: u64,
}

/// The best score of every node, and the number of games.
///
/// | call | round trips | operations, n nodes |
/// |---|---|---|
/// | `report`, not the node's best | 1 | 1 atomic |
/// | `report`, the node's best | 2 | 1 atomic, 3·(n − 1) puts |
/// | `top` | 0 | none |
struct Leaderboard {
    path: String,
    best: Sst<Best>,
    games: AtomicVar,
    /// This node's row.
    mine: OwnedWriter<Best>,
}

impl Leaderboard {
    const SCORE_MAX: u64 = 1_000_000;

    /// Opens the board, and waits for all nodes to do so.
    fn open(node: &Node, path: &str) -> Result<Leaderboard> {
        let best = Sst::open(node, &format!("{path}/best"))?;
        let games = AtomicVar::open(node, &format!("{path}/games"), NodeId(0))?;
        let mine = best.writer(node.id().index())?;
        Ok(Leaderboard { path: path.into(), best, games, mine })
    }

    /// Counts a game, and stores its score on the board if it is this node's best.
    async fn report(&mut self, ep: &Endpoint, score: u64) -> Result<()> {
        if score > Self::SCORE_MAX {
            let why = format!("nobody scores {score}: {} is the most", Self::SCORE_MAX);
            return Err(Error::from(ErrorKind::Config { why }).of(&self.path));
        }
        let game = self.games.fetch_add(ep, 1).await?;
        if score > self.mine.value().score {
            self.mine.store(Best { score, game });
            self.mine.push(ep).await?;
        }
        Ok(())
    }

    /// The best score that this node knows of, and its owner.
    fn top(&self) -> Option<(NodeId, Best)> {
        let rows = self.best.rows().filter_map(|row| Some((row.owner(), row.try_load()?)));
        rows.max_by_key(|(_, best)| best.score)
    }
}

const GAMES_PER_NODE: usize = 1000;

/// The scores of a node, the same on every run.
fn scores(node: NodeId) -> impl Iterator<Item = u64> {
    let mut rng = SmallRng::seed_from_u64(u64::from(node.0));
    std::iter::repeat_with(move || rng.random_range(0..=Leaderboard::SCORE_MAX)).take(GAMES_PER_NODE)
}

fn run(node: &Node) -> Result<()> {
    let mut board = Leaderboard::open(node, "board")?;
    let mut everyone = Barrier::open(node, "everyone", 1)?.thread()?;
    let ep = node.endpoint()?;
    ep.block_on(async {
        for score in scores(node.id()) {
            board.report(&ep, score).await?;
        }
        // Pushes before the barrier are visible everywhere after it.
        everyone.wait(&ep).await?;
        let games = board.games.load(&ep).await?;
        let (champion, best) = board.top().expect("all rows are whole behind the barrier");
        println!("{}: {champion} leads with {} after {games} games", node.id(), best.score);
        assert_eq!(games as usize, node.nodes() * GAMES_PER_NODE, "a game was not counted");
        assert_eq!(Some(best.score), node.members().flat_map(scores).max(), "the best score was lost");

        // An error names its object.
        let refused = board.report(&ep, Leaderboard::SCORE_MAX + 1).await.expect_err("more than the most");
        assert_eq!(refused.object(), Some("board"));
        everyone.wait(&ep).await // no node leaves while others still read
    })
}

fn main() -> Result<()> {
    if Node::is_launched() { run(&Node::from_environment()?) } else { on_each(&local_session(3)?, run).map(|_| ()) }
}
