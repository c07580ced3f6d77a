//! Tests of a type's declarations, against its code (feature `check`).
//!
//! The [analysis](crate::analysis) proves the relations of a specification. Code may still differ from its
//! specification. So this module tests the relations of §§3.2 and 3.3 on the code itself, in three ways:
//!
//! | | states | calls |
//! |---|---|---|
//! | [`Check::exhaustively`] | all that a few calls reach, in every order, up to a bound | the same few calls, two at a time |
//! | [`Check::at_random`] | those that random calls reach | random; proptest shrinks an example |
//! | [`Check::executions`] | those of processes that follow figure 5 with the declared coordination | random, shrunk likewise |
//!
//! These are tested in every state, where σ is the state and c₁, c₂ are calls:
//!
//! | of | it holds that |
//! |---|---|
//! | `apply` | I(σ) initially, and after each call that is not refused; a refusal leaves σ as it was; twice is the same; no panic |
//! | `check` | it refuses the calls that `apply` refuses |
//! | codecs | σ and c are the same after they are encoded and decoded |
//! | methods that are not declared to conflict | if c₁ and c₂ are permissible, so is each after the other (𝒫-concur), and c₁ ∘ c₂ = c₂ ∘ c₁ (S-commute) |
//! | methods that are not declared dependent | if c₂ is permissible in c₁(σ), so it is in σ (independent) |
//! | summarisation groups | `summarise(c₁, c₂)` does what c₁ and then c₂ do, and `remainder` the rest of it |
//!
//! The states are those that satisfy the invariant, and both calls are permissible in one of their places, as in the
//! analysis (`docs/hamband.md`, "Which states"). A call that is refused there is not invariant-sufficient, so that part
//! of the definitions needs no test of its own. A conflict orders two calls everywhere, so two methods that conflict
//! need not be declared dependent.
//!
//! A [`Refuted`] relation has an example, and names the declaration that is missing. A [`Report`] lists all that no
//! sample has needed: coordination that may be too strong, and methods that were always refused.
//!
//! ```
//! use farfield_hamband::check::check;
//! use farfield_hamband::types::Account;
//! use proptest::prelude::*;
//!
//! let calls = prop_oneof![(0..9u64).prop_map(Account::deposit_of), (0..9u64).prop_map(Account::withdrawal_of)];
//! let report = check(Account::default(), calls)?;
//! assert!(report.warnings().is_empty());
//! # Ok::<(), farfield_hamband::check::Refuted>(())
//! ```

mod executions;
mod laws;
mod refuted;

use core::cell::RefCell;
use core::fmt;
use std::collections::{BTreeSet, VecDeque};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::{BoxedStrategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, RngSeed, TestCaseError, TestError, TestRng, TestRunner};

use self::executions::Step;
use self::laws::{Laws, MethodOf, Seen, name};
pub use self::refuted::{Example, Refuted, Relation};
use crate::coordination::Coordination;
use crate::data_type::{DataType, Method, Update};

/// Tests all that a type declares, with calls of a proptest strategy: [`Check::new`] and [`Check::run`], with the usual
/// bounds.
///
/// # Errors
/// The first relation that is refuted, with an example.
///
/// ```
/// use farfield_hamband::check::check;
/// use farfield_hamband::types::{GSet, GSetUpdate};
/// use proptest::prelude::*;
/// check(GSet::default(), prop::collection::btree_set(0..4u8, 0..3).prop_map(GSetUpdate::Add))?;
/// # Ok::<(), farfield_hamband::check::Refuted>(())
/// ```
pub fn check<T: DataType>(initial: T, calls: impl Strategy<Value = T::Update> + 'static) -> Result<Report, Refuted> {
    Check::new(initial, calls).run()
}

/// A check of a type: from which initial state, with which calls, and how far.
///
/// ```
/// use farfield_hamband::check::Check;
/// use farfield_hamband::types::{LwwRegister, LwwUpdate, Timestamp};
///
/// let writes = (0..3).flat_map(|time| {
///     (0..2).map(move |node| LwwUpdate::Write { value: 10 * time + u64::from(node), at: Timestamp { time, node } })
/// });
/// let report = Check::of(LwwRegister::default(), writes)
///     .never_both(|LwwUpdate::Write { at: one, .. }, LwwUpdate::Write { at: other, .. }| one == other) // they are unique
///     .bounds(3, 200)
///     .run()?;
/// assert!(report.pairs > 1000);
/// # Ok::<(), farfield_hamband::check::Refuted>(())
/// ```
pub struct Check<T: DataType> {
    laws: Laws<T>,
    calls: BoxedStrategy<T::Update>,
    /// The calls that are tried exhaustively; if there are none, some of the strategy.
    few: Vec<T::Update>,
    depth: usize,
    states: usize,
    cases: u32,
    executions: u32,
    seed: u64,
}

/// Calls in a history, at random.
const HISTORY: usize = 12;
/// Processes of an execution, and its steps.
const PROCESSES: usize = 3;
const STEPS: usize = 24;
/// Of the strategy, this many calls of each method are tried exhaustively. They are looked for so often.
const FEW: usize = 4;
const LOOKS: usize = 500;

impl<T: DataType> Check<T> {
    /// A check with the calls of a strategy. A few of them are tried exhaustively, too.
    ///
    /// Let it generate few ids and small amounts, so that calls meet each other.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{GSetByElement, GSetByElementUpdate::Add};
    /// use proptest::prelude::*;
    /// Check::new(GSetByElement::default(), (0..4u8).prop_map(Add)).run()?;
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    pub fn new(initial: T, calls: impl Strategy<Value = T::Update> + 'static) -> Check<T> {
        let laws = Laws::new(initial, T::coordination());
        Check { laws, calls: calls.boxed(), few: vec![], depth: 6, states: 1000, cases: 1000, executions: 500, seed: 0 }
    }

    /// A check with these calls.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{Counter, CounterUpdate::Add};
    /// Check::of(Counter::default(), [Add(1), Add(-5), Add(i64::MAX)]).run()?;
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    ///
    /// # Panics
    /// There are no calls.
    pub fn of(initial: T, calls: impl IntoIterator<Item = T::Update>) -> Check<T> {
        let few: Vec<T::Update> = calls.into_iter().collect();
        Check { few: few.clone(), ..Check::new(initial, select(few)) }
    }

    /// Of two such calls, one at most is made: they have the same unique tag or timestamp, for example. It is asked of
    /// a call and itself, too, since a call may be made twice. By default, all calls are made together.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{OrSet, OrSetUpdate, Tag};
    /// let additions = ['a', 'b'].map(|element| OrSetUpdate::Add { element, tag: Tag { node: 0, count: 1 } });
    /// let check = Check::of(OrSet::default(), additions);
    /// assert!(check.exhaustively().is_err()); // of two additions with one tag, the first wins
    /// check.never_both(|_, _| true).exhaustively()?;
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    #[must_use]
    pub fn never_both(mut self, are_exclusive: impl Fn(&T::Update, &T::Update) -> bool + 'static) -> Check<T> {
        self.laws.never_both = Box::new(are_exclusive);
        self
    }

    /// Checks another coordination than [`DataType::coordination`]: whether less is enough.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::Account;
    /// use farfield_hamband::Coordination;
    /// let check = Check::of(Account::default(), [Account::deposit_of(1), Account::withdrawal_of(1)]);
    /// assert!(check.coordination(Coordination::none()).run().is_err());
    /// ```
    #[must_use]
    pub fn coordination(mut self, coordination: Coordination<MethodOf<T>>) -> Check<T> {
        let Laws { initial, never_both, .. } = self.laws;
        self.laws = Laws { never_both, ..Laws::new(initial, coordination) };
        self
    }

    /// How far the exhaustive part goes: states after so many calls, and so many states. By default 6 and 1000.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{Counter, CounterUpdate::Add};
    /// let report = Check::of(Counter::default(), [Add(1)]).bounds(5, 100).exhaustively()?;
    /// assert_eq!(report.states, 6);
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    #[must_use]
    pub fn bounds(self, depth: usize, states: usize) -> Check<T> {
        Check { depth, states, ..self }
    }

    /// How many random states there are, and how many executions. By default 1000 and 500.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{Counter, CounterUpdate::Add};
    /// assert_eq!(Check::of(Counter::default(), [Add(1)]).cases(7, 0).at_random()?.states, 7);
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    #[must_use]
    pub fn cases(self, cases: u32, executions: u32) -> Check<T> {
        Check { cases, executions, ..self }
    }

    /// Another seed of the random part. A check with the same seed does the same.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{Counter, CounterUpdate::Add};
    /// Check::of(Counter::default(), [Add(1)]).seed(5).at_random()?;
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    #[must_use]
    pub fn seed(self, seed: u64) -> Check<T> {
        Check { seed, ..self }
    }

    /// All three parts.
    ///
    /// # Errors
    /// The first relation that is refuted, with an example.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{Counter, CounterUpdate::Add};
    /// println!("{}", Check::of(Counter::default(), [Add(1), Add(-5)]).run()?);
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    pub fn run(&self) -> Result<Report, Refuted> {
        let mut seen = Seen::default();
        self.explore(&mut seen)?;
        self.sample(&mut seen)?;
        let calls = self.execute()?;
        Ok(self.report(seen, calls))
    }

    /// Tests all states that a few calls reach from the initial one: a relation that they refute has a shortest
    /// example.
    ///
    /// # Errors
    /// The first relation that is refuted, with an example.
    ///
    /// ```
    /// use farfield_hamband::check::{Check, Relation};
    /// use farfield_hamband::types::{Courseware, CoursewareMethod, CoursewareUpdate::*};
    /// use farfield_hamband::{Coordination, DataType};
    ///
    /// let calls = [AddCourse('l'), DeleteCourse('l'), RegisterStudent('a'), Enroll { student: 'a', course: 'l' }];
    /// let check = Check::of(Courseware::default(), calls);
    /// assert_eq!(check.exhaustively()?.warnings(), [] as [String; 0]);
    ///
    /// use CoursewareMethod as M;
    /// let too_little = Coordination::none().conflict(M::AddCourse, M::DeleteCourse);
    /// let too_little = too_little.depends(M::Enroll, M::AddCourse).depends(M::Enroll, M::RegisterStudent);
    /// let refuted = check.coordination(too_little).exhaustively().unwrap_err();
    /// assert_eq!(refuted.relation, Relation::PermissibleConflict { method: "Enroll", with: "DeleteCourse" });
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    pub fn exhaustively(&self) -> Result<Report, Refuted> {
        let mut seen = Seen::default();
        self.explore(&mut seen)?;
        Ok(self.report(seen, 0))
    }

    /// Tests states that random calls reach, with further random calls. An example is shrunk.
    ///
    /// # Errors
    /// A relation that is refuted, with an example.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::{Counter, CounterUpdate::Add};
    /// use proptest::prelude::*;
    /// Check::new(Counter::default(), any::<i64>().prop_map(Add)).at_random()?;
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    pub fn at_random(&self) -> Result<Report, Refuted> {
        let mut seen = Seen::default();
        self.sample(&mut seen)?;
        Ok(self.report(seen, 0))
    }

    /// Executes the abstract semantics (figure 5) at random: three processes make calls and propagate them, as far as
    /// the declared coordination lets them. No process refuses a call of another, all keep the invariant, and those
    /// with the same calls have the same state. An execution that fails is shrunk.
    ///
    /// # Errors
    /// An execution that fails.
    ///
    /// ```
    /// use farfield_hamband::check::{Check, Relation};
    /// use farfield_hamband::types::Account;
    /// use farfield_hamband::Coordination;
    /// let check = Check::of(Account::default(), [Account::deposit_of(1), Account::withdrawal_of(1)]);
    /// check.executions()?;
    /// let refuted = check.coordination(Coordination::none()).executions().unwrap_err();
    /// assert_eq!(refuted.relation, Relation::ExecutionIntegrity { method: "Withdraw" });
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    pub fn executions(&self) -> Result<Report, Refuted> {
        let calls = self.execute()?;
        Ok(self.report(Seen::default(), calls))
    }

    fn runner(&self, cases: u32) -> TestRunner {
        let rng_seed = RngSeed::Fixed(self.seed);
        let config = Config { cases, failure_persistence: None, rng_seed, ..Config::default() };
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
    }

    /// A few calls of each method.
    fn few(&self) -> Result<Vec<T::Update>, Refuted> {
        if !self.few.is_empty() {
            return Ok(self.few.clone());
        }
        let mut runner = self.runner(1);
        let mut few: Vec<T::Update> = Vec::new();
        for _ in 0..LOOKS {
            let tree = self.calls.new_tree(&mut runner).map_err(|why| no_calls(&why.to_string()))?;
            let call = tree.current();
            let of_method = few.iter().filter(|other| other.method() == call.method()).count();
            if of_method < FEW && !few.contains(&call) {
                few.push(call);
            }
        }
        Ok(few)
    }

    fn explore(&self, seen: &mut Seen) -> Result<(), Refuted> {
        let few = self.few()?;
        let start = self.laws.start()?;
        let mut known = BTreeSet::from([encoded(&start.state)]);
        let mut places = VecDeque::from([start]);
        while let Some(place) = places.pop_front() {
            for next in self.laws.judge(&place, &few, seen)? {
                let is_within = next.history.len() <= self.depth && known.len() < self.states;
                if is_within && known.insert(encoded(&next.state)) {
                    places.push_back(next);
                }
            }
        }
        Ok(())
    }

    fn sample(&self, seen: &mut Seen) -> Result<(), Refuted> {
        let strategy = (vec(self.calls.clone(), 0..=HISTORY), vec(self.calls.clone(), 2..=5));
        let all = RefCell::new(seen);
        shrunk(self.runner(self.cases), &strategy, |history, calls| {
            let place = self.laws.reach(history)?;
            self.laws.judge(&place, calls, &mut all.borrow_mut()).map(drop)
        })
    }

    fn execute(&self) -> Result<usize, Refuted> {
        let call = (0..PROCESSES, self.calls.clone()).prop_map(|(process, call)| Step::Call { process, call });
        let propagate = (0..PROCESSES, 0..STEPS).prop_map(|(process, call)| Step::Propagate { process, call });
        let strategy = (vec(prop_oneof![call, propagate], 0..=STEPS), Just(()));
        let calls = RefCell::new(0);
        shrunk(self.runner(self.executions), &strategy, |steps, ()| {
            *calls.borrow_mut() += self.laws.execute(PROCESSES, steps)?;
            Ok(())
        })?;
        Ok(calls.into_inner())
    }

    fn report(&self, seen: Seen, executed_calls: usize) -> Report {
        let methods = MethodOf::<T>::ALL;
        let (mut conflicts, mut dependencies) = (vec![], vec![]);
        for (one, first) in methods.iter().enumerate() {
            for (other, second) in methods.iter().enumerate() {
                let coordination = &self.laws.coordination;
                if one <= other && coordination.conflicts(*first, *second) && !seen.conflicts.contains(&(one, other)) {
                    conflicts.push([name(*first), name(*second)]);
                }
                if coordination.dependencies(*first).contains(second) && !seen.dependencies.contains(&(one, other)) {
                    dependencies.push([name(*first), name(*second)]);
                }
            }
        }
        let refused = methods.iter().filter(|method| !seen.permissible.contains(&method.number()));
        let (unneeded_conflicts, unneeded_dependencies) = (conflicts, dependencies);
        Report {
            states: seen.states,
            pairs: seen.pairs,
            executed_calls,
            unneeded_conflicts,
            unneeded_dependencies,
            never_permissible: refused.map(|method| name(*method)).collect(),
        }
    }
}

/// The work of a check, and the declarations that no sample of it has needed.
///
/// ```
/// use farfield_hamband::check::Check;
/// use farfield_hamband::types::{Counter, CounterUpdate::Add};
/// use farfield_hamband::Coordination;
/// let check = Check::of(Counter::default(), [Add(1), Add(2)]);
/// let report = check.coordination(Coordination::all()).run()?;
/// assert_eq!(report.unneeded_conflicts, [["Add", "Add"]]);
/// assert_eq!(report.warnings(), ["no sample needs the conflict of `Add` and `Add`"]);
/// # Ok::<(), farfield_hamband::check::Refuted>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The states that were tested: some of the random ones more than once.
    pub states: usize,
    /// The states with two calls.
    pub pairs: usize,
    /// The calls of all executions.
    pub executed_calls: usize,
    /// Conflicts that are declared, and that no sample needs.
    pub unneeded_conflicts: Vec<[&'static str; 2]>,
    /// Dependencies that are declared, the dependent method first, and that no sample needs.
    pub unneeded_dependencies: Vec<[&'static str; 2]>,
    /// Methods of which no call was permissible in any state. Nothing is known of them.
    pub never_permissible: Vec<&'static str>,
}

impl Report {
    /// Declarations that may be too strong, and methods that were not tested. A report of executions alone has no
    /// samples, and so warns of everything.
    ///
    /// ```
    /// use farfield_hamband::check::Check;
    /// use farfield_hamband::types::Account;
    /// let report = Check::of(Account::default(), [Account::withdrawal_of(1)]).run()?; // no call gives it money
    /// assert_eq!(report.warnings()[0], "no call of `Deposit` was permissible, so nothing is known of it");
    /// # Ok::<(), farfield_hamband::check::Refuted>(())
    /// ```
    pub fn warnings(&self) -> Vec<String> {
        let refused = self.never_permissible.iter();
        let refused = refused.map(|method| format!("no call of `{method}` was permissible, so nothing is known of it"));
        let conflicts = self.unneeded_conflicts.iter();
        let conflicts = conflicts.map(|[one, other]| format!("no sample needs the conflict of `{one}` and `{other}`"));
        let dependencies = self.unneeded_dependencies.iter();
        let dependencies =
            dependencies.map(|[method, on]| format!("no sample needs the dependency of `{method}` on `{on}`"));
        refused.chain(conflicts).chain(dependencies).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states, {} pairs of calls, {} calls executed", self.states, self.pairs, self.executed_calls)?;
        self.warnings().iter().try_for_each(|warning| write!(f, "\nwarning: {warning}"))
    }
}

/// Tests random lists, each with another value. The refutation of the smallest ones that are found.
fn shrunk<I: Clone + fmt::Debug, V: fmt::Debug>(
    mut runner: TestRunner,
    strategy: &impl Strategy<Value = (Vec<I>, V)>,
    test: impl Fn(&[I], &V) -> Result<(), Refuted>,
) -> Result<(), Refuted> {
    let refuted = RefCell::new(None);
    let outcome = runner.run(strategy, |(items, value)| {
        test(&items, &value).map_err(|why| {
            let text = why.relation.to_string();
            // The last one that fails is the smallest.
            *refuted.borrow_mut() = Some(why);
            TestCaseError::fail(text)
        })
    });
    let (mut items, value, mut refuted) = match (outcome, refuted.into_inner()) {
        (Ok(()), _) => return Ok(()),
        (Err(TestError::Fail(_, (items, value))), Some(refuted)) => (items, value, refuted),
        (Err(TestError::Fail(why, _) | TestError::Abort(why)), _) => return Err(no_calls(why.message())),
    };
    // Now that the values are small, some items may not be needed any more.
    let mut at = 0;
    while at < items.len() {
        let mut fewer = items.clone();
        fewer.remove(at);
        match test(&fewer, &value) {
            Err(other) if other.relation == refuted.relation => (items, refuted, at) = (fewer, other, 0),
            _ => at += 1,
        }
    }
    Err(refuted)
}

fn no_calls(why: &str) -> Refuted {
    Refuted { relation: Relation::Strategy { why: why.to_owned() }, example: Example::default() }
}

/// Equal states are equal bytes, unless a codec is wrong.
fn encoded<T: DataType>(state: &T) -> Vec<u8> {
    postcard::to_allocvec(state).unwrap_or_default()
}
