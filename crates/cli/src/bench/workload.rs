//! YCSB's workloads: which keys a benchmark touches, and how.
//!
//! Workloads a, b, c and f are those of Cooper et al., "Benchmarking Cloud Serving Systems with YCSB" (SoCC 2010), with
//! keys drawn uniformly or from a Zipf distribution with θ = 0.99, YCSB's constant. The keyspace is LOCO's: 10 MB of
//! 64-bit keys with 64-bit values, filled to 80 %.
//!
//! A draw has to be cheap, since it is timed together with the operation that it is drawn for. YCSB's own method (Gray
//! et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994) takes a power per draw and is exact
//! for the first two ranks only. Here the ranks are cut into a few hundred blocks, narrow enough that the ranks of one
//! are almost equally likely; an alias table (Walker 1977) picks the block, and a rejection that almost always accepts
//! without computing a power picks the rank inside. The result is the exact distribution from a table that stays in the
//! first-level cache.
//!
//! Ranks are scrambled by a permutation of the keyspace, so that hot keys are not neighbours. YCSB hashes and takes the
//! remainder, which makes some keys collide and leaves others out; a permutation keeps every key's probability exact.

use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// A mix of operations, by YCSB's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Workload {
    /// Update heavy: 50 % reads, 50 % updates.
    A,
    /// Read mostly: 95 % reads, 5 % updates.
    B,
    /// Read only.
    C,
    /// 50 % reads, 50 % read-modify-writes.
    F,
}

impl Workload {
    /// The share of operations that only read.
    pub(crate) const fn read_percent(self) -> u64 {
        match self {
            Workload::A | Workload::F => 50,
            Workload::B => 95,
            Workload::C => 100,
        }
    }
}

/// How likely each key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distribution {
    /// Every key alike.
    Uniform,
    /// The key of rank k, counted from one, in proportion to k^-0.99; ranks are scattered over the keyspace.
    Zipfian,
}

/// How many keys a store holds and how many it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keyspace {
    /// Entries the store has room for.
    pub(crate) slots: u64,
    /// Keys that are loaded before the run, numbered from 0; operations only touch these.
    pub(crate) keys: u64,
}

impl Keyspace {
    /// The size of LOCO's keyspace.
    pub(crate) const BYTES: u64 = 10_000_000;
    /// How far LOCO fills it.
    pub(crate) const FILL_PERCENT: u64 = 80;
    /// A 64-bit key and a 64-bit value.
    const ENTRY_BYTES: u64 = 16;

    /// The keyspace of `bytes` bytes of entries, `fill_percent` of which are loaded.
    pub(crate) const fn of_bytes(bytes: u64, fill_percent: u64) -> Self {
        let slots = bytes / Self::ENTRY_BYTES;
        let keys = (slots as u128 * fill_percent as u128 / 100) as u64;
        Self { slots, keys }
    }

    /// A keyspace with `keys` keys loaded, filled as far as LOCO's.
    pub(crate) const fn of_keys(keys: u64) -> Self {
        let slots = (keys as u128 * 100).div_ceil(Self::FILL_PERCENT as u128) as u64;
        Self { slots, keys }
    }

    /// LOCO's keyspace, unless `keys` (the user's `--keys`) overrides it.
    pub(crate) const fn choose(keys: Option<u64>) -> Self {
        match keys {
            Some(keys) => Self::of_keys(keys),
            None => Self::of_bytes(Self::BYTES, Self::FILL_PERCENT),
        }
    }
}

/// Draws keys. Make one per run and clone it for each thread; it holds no generator of its own.
#[derive(Clone, Debug)]
pub(crate) struct KeyChooser {
    keys: u64,
    zipf: Option<Zipf>,
    scramble: Scramble,
}

impl KeyChooser {
    /// YCSB's skew.
    const THETA: f64 = 0.99;

    /// A chooser of keys from `0..keys`. Every chooser with the same arguments has the same hot keys.
    ///
    /// # Panics
    ///
    /// If `keys` is zero.
    pub(crate) fn new(distribution: Distribution, keys: u64) -> Self {
        assert!(keys > 0, "a keyspace holds at least one key");
        let zipf = match distribution {
            Distribution::Uniform => None,
            Distribution::Zipfian => Some(Zipf::new(keys, Self::THETA)),
        };
        Self { keys, zipf, scramble: Scramble::new(keys) }
    }

    /// One key, below the number of keys.
    #[inline]
    pub(crate) fn draw(&self, rng: &mut impl Rng) -> u64 {
        match &self.zipf {
            None => scale(rng.next_u64(), self.keys).0,
            Some(zipf) => self.scramble.apply(zipf.draw(rng) - 1),
        }
    }
}

/// The next operation of a thread, and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Read the key's value.
    Read(u64),
    /// Overwrite the key's value.
    Update(u64),
    /// Read the key's value and overwrite it with one computed from it.
    ReadModifyWrite(u64),
}

/// One thread's operations: endless, and the same in every run with the same seed.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    workload: Workload,
    chooser: KeyChooser,
    /// A draw below it is a read; `u64::MAX` stands for always.
    read_below: u64,
    rng: SmallRng,
}

impl Operations {
    /// The operations of thread `thread` (numbered over all nodes) in the run with seed `seed`.
    pub(crate) fn new(workload: Workload, chooser: KeyChooser, seed: u64, thread: u64) -> Self {
        // Seeding runs the number through a mixer, so that neighbouring threads get unrelated streams.
        let rng = SmallRng::seed_from_u64(seed ^ thread.wrapping_add(1).wrapping_mul(GOLDEN_RATIO));
        let read_below = match workload.read_percent() {
            100 => u64::MAX,
            percent => (u64::MAX / 100) * percent,
        };
        Self { workload, chooser, read_below, rng }
    }

    /// The next operation.
    #[inline]
    pub(crate) fn draw(&mut self) -> Operation {
        let key = self.chooser.draw(&mut self.rng);
        if self.read_below == u64::MAX || self.rng.next_u64() < self.read_below {
            Operation::Read(key)
        } else if self.workload == Workload::F {
            Operation::ReadModifyWrite(key)
        } else {
            Operation::Update(key)
        }
    }
}

/// A step of [`Latest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LatestStep {
    /// Read a key, which is there unless its client is behind, or further on.
    Read(u64),
    Insert(u64),
    Delete(u64),
}

/// YCSB's workload D for one of several clients: 95 % reads, the newer a key the likelier, and 5 % inserts of new keys.
/// So that it can go on, a client deletes its oldest key before each insert. It takes others to be as far as itself.
#[derive(Clone, Debug)]
pub(crate) struct Latest {
    zipf: Zipf,
    rng: SmallRng,
    client: u64,
    clients: u64,
    /// Keys of each client that are there.
    own: u64,
    /// The number of its next key, among its own.
    next: u64,
    /// Whether its oldest key was deleted for it.
    has_room: bool,
}

impl Latest {
    const INSERT_PERCENT: u64 = 5;

    /// Of one client of so many, with about `keys` keys in all: those from 0 on are there at first.
    pub(crate) fn new(keys: u64, client: u64, clients: u64, seed: u64) -> Latest {
        let own = (keys / clients).max(1);
        let rng = SmallRng::seed_from_u64(seed ^ client.wrapping_add(1).wrapping_mul(GOLDEN_RATIO));
        let zipf = Zipf::new(own * clients, KeyChooser::THETA);
        Latest { zipf, rng, client, clients, own, next: own, has_room: false }
    }

    fn key(&self, number: u64) -> u64 {
        number * self.clients + self.client
    }

    pub(crate) fn draw(&mut self) -> LatestStep {
        if std::mem::take(&mut self.has_room) {
            self.next += 1;
            return LatestStep::Insert(self.key(self.next - 1));
        }
        if self.rng.next_u64() < u64::MAX / 100 * Self::INSERT_PERCENT {
            self.has_room = true;
            return LatestStep::Delete(self.key(self.next - self.own));
        }
        LatestStep::Read(self.next * self.clients - self.zipf.draw(&mut self.rng))
    }
}

/// The odd number nearest to 2^64 divided by the golden ratio.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

/// Scales a random number to `0..range` (Lemire 2019, without the rejection: the bias is below `range` / 2^64). The
/// second number is the rest of the product: a random fraction of 2^64, independent of the first.
#[inline]
pub(crate) fn scale(random: u64, range: u64) -> (u64, u64) {
    let product = u128::from(random) * u128::from(range);
    ((product >> 64) as u64, product as u64)
}

/// The Zipf distribution over the ranks 1 to `n`: rank k has probability k^-θ / (1^-θ + … + n^-θ).
#[derive(Clone, Debug)]
struct Zipf {
    theta: f64,
    blocks: Vec<Block>,
}

/// A block of neighbouring ranks, and its entry in the alias table.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The first rank, its likeliest.
    first: u64,
    /// How many ranks.
    ranks: u64,
    /// A fraction of 2^64: above it, a draw of this entry stands for `alias` instead.
    keep: u64,
    /// The block that fills up this entry.
    alias: u32,
}

impl Zipf {
    /// Ranks below this are blocks of their own; a later block is `first / NARROW` ranks wide, so that its last rank is
    /// at most 1 + 1 / `NARROW` times less likely than its first.
    const NARROW: u64 = 32;

    fn new(n: u64, theta: f64) -> Self {
        assert!(n > 0 && (0.0..=1.0).contains(&theta), "the squeeze in `draw` needs an exponent of at most one");
        let mut blocks = Vec::new();
        let mut weights = Vec::new();
        let mut first = 1;
        while first <= n {
            let ranks = (first / Self::NARROW).max(1).min(n - first + 1);
            blocks.push(Block { first, ranks, keep: u64::MAX, alias: blocks.len() as u32 });
            weights.push(power_sum(first, ranks, theta));
            match first.checked_add(ranks) {
                Some(next) => first = next,
                None => break,
            }
        }
        let mut zipf = Self { theta, blocks };
        zipf.fill_alias_table(&weights);
        zipf
    }

    /// Vose's construction: entries lighter than the mean are filled up from heavier ones.
    fn fill_alias_table(&mut self, weights: &[f64]) {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        let mut left: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
        let (mut light, mut heavy): (Vec<usize>, Vec<usize>) = (0..left.len()).partition(|&i| left[i] < 1.0);
        while let (Some(&small), Some(&large)) = (light.last(), heavy.last()) {
            light.pop();
            self.blocks[small].keep = (left[small] * 2f64.powi(64)) as u64;
            self.blocks[small].alias = large as u32;
            left[large] -= 1.0 - left[small];
            if left[large] < 1.0 {
                heavy.pop();
                light.push(large);
            }
        }
        // What remains differs from the mean by rounding alone, and keeps its whole entry.
    }

    /// One rank, from 1 to `n`.
    #[inline]
    fn draw(&self, rng: &mut impl Rng) -> u64 {
        let (entry, fraction) = scale(rng.next_u64(), self.blocks.len() as u64);
        let mut block = &self.blocks[entry as usize];
        if fraction > block.keep {
            block = &self.blocks[block.alias as usize];
        }
        if block.ranks == 1 {
            return block.first;
        }
        // A rejected rank is drawn again from the same block: the table has already weighed the blocks against each
        // other.
        loop {
            let (offset, fraction) = scale(rng.next_u64(), block.ranks);
            if self.accepts(block.first, block.first + offset, fraction) {
                return block.first + offset;
            }
        }
    }

    /// Whether `rank`, drawn uniformly from the block that begins with `first`, stands: with probability (`first` /
    /// `rank`)^θ. As θ is at most one, that is no less than `first` / `rank`, which takes no power to compute and for θ
    /// = 0.99 settles all but a few draws in ten thousand of those that are accepted.
    #[inline]
    fn accepts(&self, first: u64, rank: u64, fraction: u64) -> bool {
        let fraction = fraction as f64 * 2f64.powi(-64);
        fraction * (rank as f64) < first as f64 || fraction < (first as f64 / rank as f64).powf(self.theta)
    }
}

/// k^-θ summed over the `ranks` values of k from `first` on: directly if they are few, else by the Euler–Maclaurin
/// formula. Its next term is below 10^-8 of the sum here.
fn power_sum(first: u64, ranks: u64, theta: f64) -> f64 {
    if ranks <= 64 {
        return (first..=first + (ranks - 1)).map(|k| (k as f64).powf(-theta)).sum();
    }
    let (a, b) = (first as f64, first as f64 + ranks as f64);
    let integral =
        if theta == 1.0 { (b / a).ln() } else { (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta) };
    let slope = |x: f64| theta * x.powf(-theta - 1.0);
    integral + (a.powf(-theta) - b.powf(-theta)) / 2.0 + (slope(a) - slope(b)) / 12.0
}

/// A fixed permutation of `0..keys`: an invertible hash of as many bits as the keys need, applied until its result is a
/// key (less than twice on average).
#[derive(Clone, Copy, Debug)]
struct Scramble {
    keys: u64,
    mask: u64,
    shift: u32,
}

impl Scramble {
    fn new(keys: u64) -> Self {
        let bits = (u64::BITS - (keys - 1).leading_zeros()).max(1);
        Self { keys, mask: u64::MAX >> (u64::BITS - bits), shift: bits.div_ceil(2) }
    }

    #[inline]
    fn apply(&self, rank: u64) -> u64 {
        let mut x = rank;
        loop {
            // Each step is invertible on the masked bits: an addition, multiplications by odd numbers, and shifts of at
            // least one bit folded back in.
            x = x.wrapping_add(GOLDEN_RATIO) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(0xff51_afd7_ed55_8ccd) & self.mask;
            x ^= x >> self.shift;
            x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53) & self.mask;
            x ^= x >> self.shift;
            if x < self.keys {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rng() -> SmallRng {
        SmallRng::seed_from_u64(7)
    }

    /// Pearson's statistic, in standard deviations from its mean: for draws from the distribution it is about normal.
    fn chi_square_deviation(observed: &[u64], probability: impl Fn(usize) -> f64) -> f64 {
        let draws = observed.iter().sum::<u64>() as f64;
        let statistic: f64 = observed
            .iter()
            .enumerate()
            .map(|(i, &count)| (count as f64 - draws * probability(i)).powi(2) / (draws * probability(i)))
            .sum();
        let freedom = (observed.len() - 1) as f64;
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn the_keyspace_is_locos_unless_keys_are_given() {
        assert_eq!(Keyspace::choose(None), Keyspace { slots: 625_000, keys: 500_000 });
        assert_eq!(Keyspace::choose(Some(1_000)), Keyspace { slots: 1_250, keys: 1_000 });
        assert_eq!(Keyspace::choose(Some(1)), Keyspace { slots: 2, keys: 1 });
    }

    #[test]
    fn uniform_draws_are_uniform() {
        let chooser = KeyChooser::new(Distribution::Uniform, 1_000);
        let (mut observed, mut rng) = (vec![0; 1_000], rng());
        for _ in 0..1_000_000 {
            observed[chooser.draw(&mut rng) as usize] += 1;
        }
        assert!(chi_square_deviation(&observed, |_| 1e-3).abs() < 4.0);
    }

    #[test]
    fn zipfian_keys_have_their_exact_frequencies() {
        const KEYS: usize = 3_000;
        let chooser = KeyChooser::new(Distribution::Zipfian, KEYS as u64);
        let (mut observed, mut rng) = (vec![0; KEYS], rng());
        for _ in 0..3_000_000 {
            observed[chooser.draw(&mut rng) as usize] += 1;
        }
        let by_rank: Vec<u64> = (0..KEYS).map(|rank| observed[chooser.scramble.apply(rank as u64) as usize]).collect();
        let zeta: f64 = (1..=KEYS).map(|k| (k as f64).powf(-0.99)).sum();
        let deviation = chi_square_deviation(&by_rank, |i| ((i + 1) as f64).powf(-0.99) / zeta);
        assert!(deviation.abs() < 4.0, "{deviation} standard deviations from the distribution");
    }

    #[test]
    fn zipfian_ranks_fit_a_large_keyspace() {
        // Equal slices of the logarithm, so that head and tail are both looked at.
        const KEYS: u64 = 500_000;
        let slice = |rank: u64| (rank as f64).log2().floor() as usize;
        let mut probability = [0.0; 19];
        (1..=KEYS).for_each(|k| probability[slice(k)] += (k as f64).powf(-0.99));
        let zeta: f64 = probability.iter().sum();
        let (zipf, mut observed, mut rng) = (Zipf::new(KEYS, 0.99), [0; 19], rng());
        for _ in 0..2_000_000 {
            observed[slice(zipf.draw(&mut rng))] += 1;
        }
        assert!(chi_square_deviation(&observed, |i| probability[i] / zeta).abs() < 4.0);
    }

    #[test]
    fn the_newest_keys_are_read_most_and_each_client_keeps_as_many() {
        let (mut latest, mut present, mut reads) = (Latest::new(90, 1, 3, 42), (0..30).collect::<Vec<u64>>(), [0; 90]);
        let (mut inserts, mut steps) = (0, 0);
        while inserts < 1_000 {
            steps += 1;
            match latest.draw() {
                LatestStep::Read(key) => {
                    let newest = 3 * (present[present.len() - 1] + 1) - 1;
                    reads[(newest - key) as usize] += 1;
                    assert!(key % 3 != 1 || present.contains(&(key / 3)), "key {key} of {present:?}");
                }
                LatestStep::Delete(key) => assert_eq!(key, 3 * present.remove(0) + 1),
                LatestStep::Insert(key) => {
                    inserts += 1;
                    present.push(key / 3);
                    assert_eq!((key % 3, present.len()), (1, 30));
                }
            }
        }
        let percent = 100.0 * 1_000.0 / f64::from(steps - 1_000);
        assert!((4.0..6.0).contains(&percent), "{percent} % inserts");
        assert!(reads[0] > 5 * reads[9] && reads[9] > reads[89], "{reads:?}");
    }

    #[test]
    fn power_sums_are_exact() {
        for (first, ranks) in [(1, 1), (40, 1), (2_080, 65), (100_000, 3_125), (450_000, 14_000)] {
            let exact: f64 = (first..first + ranks).map(|k| (k as f64).powf(-0.99)).sum();
            assert!((power_sum(first, ranks, 0.99) / exact - 1.0).abs() < 1e-10, "{first} {ranks}");
        }
    }

    #[test]
    fn blocks_cover_every_rank_once() {
        for n in [1, 2, 31, 32, 33, 1_000, 500_000, u64::MAX] {
            let zipf = Zipf::new(n, 0.99);
            assert!(zipf.blocks.len() < 2_000);
            assert_eq!(zipf.blocks[0].first, 1);
            assert!(zipf.blocks.windows(2).all(|pair| pair[0].first + pair[0].ranks == pair[1].first));
            let last = zipf.blocks.last().expect("at least one block");
            assert_eq!(last.first + (last.ranks - 1), n);
        }
    }

    #[test]
    fn scrambling_is_a_permutation_that_spreads_hot_keys() {
        for keys in [1, 2, 3, 5, 64, 65, 1_000, 4_097] {
            let scramble = Scramble::new(keys);
            let mut seen = vec![false; keys as usize];
            (0..keys).for_each(|rank| seen[scramble.apply(rank) as usize] = true);
            assert!(seen.iter().all(|&seen| seen), "a permutation of {keys} keys");
        }
        let scramble = Scramble::new(500_000);
        let mut tenths = [0; 10];
        (0..1_000).for_each(|rank| tenths[(scramble.apply(rank) / 50_000) as usize] += 1);
        assert!(tenths.iter().all(|count| (60..=140).contains(count)), "hot keys cluster: {tenths:?}");
    }

    #[test]
    fn workloads_mix_as_ycsb_says() {
        for workload in [Workload::A, Workload::B, Workload::C, Workload::F] {
            let chooser = KeyChooser::new(Distribution::Zipfian, 1_000);
            let mut operations = Operations::new(workload, chooser, 1, 0);
            let (mut reads, mut updates, mut rmws) = (0u64, 0u64, 0u64);
            for _ in 0..100_000 {
                match operations.draw() {
                    Operation::Read(key) if key < 1_000 => reads += 1,
                    Operation::Update(key) if key < 1_000 => updates += 1,
                    Operation::ReadModifyWrite(key) if key < 1_000 => rmws += 1,
                    other => panic!("{other:?} is outside the keyspace"),
                }
            }
            assert!(reads.abs_diff(workload.read_percent() * 1_000) < 1_000, "{workload:?}: {reads} reads");
            assert_eq!(updates > 0, matches!(workload, Workload::A | Workload::B));
            assert_eq!(rmws > 0, workload == Workload::F);
        }
    }

    #[test]
    fn a_seed_repeats_and_threads_differ() {
        let stream = |seed, thread| {
            let chooser = KeyChooser::new(Distribution::Uniform, 1 << 40);
            let mut operations = Operations::new(Workload::A, chooser, seed, thread);
            std::array::from_fn::<_, 8, _>(|_| operations.draw())
        };
        assert_eq!(stream(1, 0), stream(1, 0));
        assert_ne!(stream(1, 0), stream(1, 1));
        assert_ne!(stream(1, 0), stream(2, 0));
    }
}
