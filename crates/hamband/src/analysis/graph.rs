//! The analysis of a specification: all relations, and from them groups and categories.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::relations::{Relations, States, Verdict};
use super::solver::{Solver, SolverError};
use super::specification::Specification;
use super::summary::{SummaryVerdict, groups};

/// How to analyse.
///
/// ```
/// use std::time::Duration;
/// use farfield_hamband::analysis::Options;
///
/// let patient = Options { timeout: Duration::from_secs(60), ..Options::default() };
/// assert_eq!(patient.solver.to_str(), Some("z3"));
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    /// The solver: `z3`, found in PATH, or the path of that program.
    pub solver: PathBuf,
    /// The longest time for one question. One that takes longer is undecided.
    pub timeout: Duration,
    /// Which states the relations are about.
    pub states: States,
}

impl Default for Options {
    fn default() -> Options {
        Options { solver: "z3".into(), timeout: Duration::from_secs(10), states: States::default() }
    }
}

/// The category of a method (§3.3), which determines how its calls are propagated.
///
/// ```
/// use farfield_hamband::analysis::{Category, Options, Specification, analyse};
///
/// let text = "type Set { state { all: set<int> = {} } update add(e: int) { all := all union {e} } }";
/// let analysis = analyse(&Specification::parse("set.wrdt", text)?, &Options::default())?;
/// assert_eq!(analysis.category("add"), Some(Category::ConflictFree)); // two elements are no element
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Category {
    /// Conflict-free, dependence-free and summarisable: one remote write of a summary.
    Reducible,
    /// Conflict-free, but dependent or not summarisable: a buffer for each issuing process.
    ConflictFree,
    /// Ordered by the leader of its synchronisation group.
    Conflicting,
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Category::Reducible => "reducible",
            Category::ConflictFree => "irreducible conflict-free",
            Category::Conflicting => "conflicting",
        })
    }
}

/// An update method.
///
/// ```
/// use farfield_hamband::analysis::{Category, Options, Specification, analyse};
///
/// let text = "type Counter { state { value: int = 0 } update add(n: int) { value := value + n } }";
/// let analysis = analyse(&Specification::parse("counter.wrdt", text)?, &Options::default())?;
/// let add = &analysis.methods[0];
/// assert_eq!((add.name.as_str(), add.category), ("add", Category::Reducible));
/// assert!(add.is_guarded.holds() && add.is_invariant_sufficient.holds());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Method {
    /// Its name.
    pub name: String,
    /// Its category.
    pub category: Category,
    /// Whether its requirements keep the invariant. If not, the specification is wrong.
    pub is_guarded: Verdict,
    /// Whether it is invariant-sufficient: permissible in every state with the invariant.
    pub is_invariant_sufficient: Verdict,
}

/// A relation between two methods, which are numbers in [`Analysis::methods`].
///
/// ```
/// use farfield_hamband::analysis::{Options, Specification, analyse};
///
/// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
/// let analysis = analyse(&Specification::parse("last.wrdt", text)?, &Options::default())?;
/// let pair = &analysis.state_commutes[0];
/// assert_eq!((pair.first, pair.second), (0, 0)); // two calls of the only method
/// assert!(!pair.verdict.holds()); // their order matters
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pair {
    /// The first one; of 𝒫-R- and 𝒫-L-commutativity, the one that is moved.
    pub first: usize,
    /// The second one.
    pub second: usize,
    /// Whether all calls of the two have it.
    pub verdict: Verdict,
}

/// What the analysis has found.
///
/// ```
/// use farfield_hamband::analysis::{Category, Options, Specification, analyse};
///
/// let account = "
///     type Account {
///         state { balance: int = 0 }
///         invariant balance >= 0
///         update deposit(amount: nat) { balance := balance + amount }
///         update withdraw(amount: nat) {
///             requires balance >= amount else \"the balance is too low\"
///             balance := balance - amount
///         }
///     }";
/// let analysis = analyse(&Specification::parse("account.wrdt", account)?, &Options::default())?;
/// assert!(analysis.is_right());
/// assert_eq!(analysis.category("deposit"), Some(Category::Reducible));
/// assert_eq!(analysis.category("withdraw"), Some(Category::Conflicting));
/// assert_eq!(analysis.synchronisation_groups, [[1]]);
/// assert_eq!(analysis.dependencies_of("withdraw"), ["deposit"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Analysis {
    /// The type's name.
    pub name: String,
    /// The update methods, in the order of the text.
    pub methods: Vec<Method>,
    /// Whether the initial state satisfies the invariant. If not, the specification is wrong.
    pub initial: Verdict,
    /// S-commutativity, for each two methods in one order.
    pub state_commutes: Vec<Pair>,
    /// 𝒫-R-commutativity, of those methods that are not invariant-sufficient.
    pub right_commutes: Vec<Pair>,
    /// 𝒫-L-commutativity, of those methods that are not invariant-sufficient.
    pub left_commutes: Vec<Pair>,
    /// The summaries of the specification, and those that were found.
    pub summaries: Vec<SummaryVerdict>,
    /// The edges of the conflict graph, each once, with the smaller number first.
    pub conflicts: Vec<(usize, usize)>,
    /// Its connected components that have an edge.
    pub synchronisation_groups: Vec<Vec<usize>>,
    /// The dependency relation: the first method depends on the second.
    pub dependencies: Vec<(usize, usize)>,
    /// Disjoint sets of methods that are closed under summaries.
    pub summarisation_groups: Vec<Vec<usize>>,
    /// Questions that the solver was asked.
    pub questions: usize,
    /// Questions that needed no solver: the methods touch different state variables, nothing can be refused, or the
    /// runtime checks the invariant.
    pub skipped: usize,
    /// Questions that it did not decide. Those about relations count as conflicts or dependencies.
    pub undecided: usize,
    /// How long it took.
    pub took: Duration,
    /// Which states the relations are about.
    pub states: States,
}

impl Analysis {
    /// Whether the specification is right as a sequential type: its initial state satisfies the invariant, each method
    /// keeps it, and each summary that it declares is one.
    ///
    /// ```
    /// use farfield_hamband::analysis::{Options, Specification, analyse};
    ///
    /// let text = "type Debit {
    ///     state { balance: int = 0 } invariant balance >= 0
    ///     update take(n: nat) { balance := balance - n }
    /// }";
    /// let analysis = analyse(&Specification::parse("debit.wrdt", text)?, &Options::default())?;
    /// assert!(!analysis.is_right()); // `take` has no requirement, and breaks the invariant
    /// assert!(analysis.initial.holds() && !analysis.methods[0].is_guarded.holds());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_right(&self) -> bool {
        self.initial.holds()
            && self.methods.iter().all(|method| method.is_guarded.holds())
            && self.summaries.iter().all(|summary| summary.verdict.holds())
    }

    /// The category of a method, if there is one of that name.
    ///
    /// ```
    /// # use farfield_hamband::analysis::{Category, Options, Specification, analyse};
    /// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
    /// let analysis = analyse(&Specification::parse("last.wrdt", text)?, &Options::default())?;
    /// assert_eq!(analysis.category("set"), Some(Category::Conflicting));
    /// assert_eq!(analysis.category("reset"), None); // there is no such method
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn category(&self, method: &str) -> Option<Category> {
        self.methods.iter().find(|other| other.name == method).map(|method| method.category)
    }

    /// The names of the methods that this one depends on.
    ///
    /// ```
    /// # use farfield_hamband::analysis::{Options, Specification, analyse};
    /// let text = "type Stock {
    ///     state { pieces: int = 0 } invariant pieces >= 0
    ///     update add(n: nat) { pieces := pieces + n }
    ///     update take(n: nat) { requires invariant else \"too few\" pieces := pieces - n }
    /// }";
    /// let analysis = analyse(&Specification::parse("stock.wrdt", text)?, &Options::default())?;
    /// assert_eq!(analysis.dependencies_of("take"), ["add"]);
    /// assert!(analysis.dependencies_of("add").is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dependencies_of(&self, method: &str) -> Vec<&str> {
        let of = self.dependencies.iter().filter(|(dependent, _)| self.methods[*dependent].name == method);
        of.map(|(_, on)| &*self.methods[*on].name).collect()
    }

    /// The names of the methods of a group.
    ///
    /// ```
    /// # use farfield_hamband::analysis::{Options, Specification, analyse};
    /// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
    /// let analysis = analyse(&Specification::parse("last.wrdt", text)?, &Options::default())?;
    /// assert_eq!(analysis.names(&analysis.synchronisation_groups[0]), ["set"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn names(&self, group: &[usize]) -> Vec<&str> {
        group.iter().map(|method| &*self.methods[*method].name).collect()
    }
}

/// Analyses a specification: asks the solver about every relation.
///
/// ```
/// use farfield_hamband::analysis::{Options, Specification, analyse};
///
/// let text = "type Last { state { last: int = 0 } update set(to: int) { last := to } }";
/// let analysis = analyse(&Specification::parse("last.wrdt", text)?, &Options::default())?;
/// assert!(analysis.is_right() && analysis.undecided == 0);
/// assert_eq!(analysis.conflicts, [(0, 0)]); // two calls of `set` conflict
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The solver cannot be asked. What it cannot decide is no error ([`Verdict::Undecided`]).
pub fn analyse(spec: &Specification, options: &Options) -> Result<Analysis, SolverError> {
    let start = Instant::now();
    let solver = Solver::new(options.solver.clone(), options.timeout);
    let mut relations = Relations { spec, states: options.states, solver };
    let count = spec.updates.len();
    let initial = relations.initial_integrity()?;
    let mut sufficient = Vec::new();
    let mut guarded = Vec::new();
    for method in 0..count {
        guarded.push(relations.is_guarded(method)?);
        sufficient.push(relations.is_invariant_sufficient(method)?);
    }
    let (mut state_commutes, mut right_commutes, mut left_commutes) = (Vec::new(), Vec::new(), Vec::new());
    for (first, is_sufficient) in sufficient.iter().enumerate() {
        for second in 0..count {
            let pair = |verdict| Pair { first, second, verdict };
            if first <= second {
                state_commutes.push(pair(relations.state_commutes(first, second)?));
            }
            // A call that is invariant-sufficient concurs with all, and is independent of all.
            if !is_sufficient.holds() {
                right_commutes.push(pair(relations.right_commutes(first, second)?));
                left_commutes.push(pair(relations.left_commutes(first, second)?));
            }
        }
    }
    let fails = |pair: &&Pair| !pair.verdict.holds();
    let edge = |pair: &Pair| (pair.first.min(pair.second), pair.first.max(pair.second));
    let conflicts: BTreeSet<_> = state_commutes.iter().chain(&right_commutes).filter(fails).map(edge).collect();
    let dependencies: Vec<_> = left_commutes.iter().filter(fails).map(|pair| (pair.first, pair.second)).collect();
    let mut summaries = relations.declared_summaries()?;
    let is_free = |method: &usize| {
        !conflicts.iter().any(|(a, b)| a == method || b == method) && !dependencies.iter().any(|(of, _)| of == method)
    };
    // A method with conflicts or dependencies is irreducible, whatever its summaries are.
    let free: Vec<usize> = (0..count).filter(is_free).collect();
    for first in &free {
        for second in &free {
            let is_known =
                summaries.iter().any(|summary| summary.methods == [*first, *second] && summary.verdict.holds());
            if !is_known && let Some(summary) = relations.found_summary(*first, *second)? {
                summaries.push(summary);
            }
        }
    }
    let summarisation_groups = groups(&free, &summaries);
    let category = |method: usize| {
        if conflicts.iter().any(|(a, b)| *a == method || *b == method) {
            Category::Conflicting
        } else if summarisation_groups.iter().flatten().any(|member| *member == method) {
            Category::Reducible
        } else {
            Category::ConflictFree
        }
    };
    let verdicts = guarded.into_iter().zip(sufficient).zip(&spec.updates).enumerate();
    let methods = verdicts.map(|(number, ((is_guarded, is_invariant_sufficient), update))| Method {
        name: update.name.clone(),
        category: category(number),
        is_guarded,
        is_invariant_sufficient,
    });
    let methods = methods.collect();
    Ok(Analysis {
        name: spec.name.clone(),
        methods,
        initial,
        synchronisation_groups: components(count, &conflicts),
        conflicts: conflicts.into_iter().collect(),
        state_commutes,
        right_commutes,
        left_commutes,
        summaries,
        dependencies,
        summarisation_groups,
        questions: relations.solver.questions,
        skipped: relations.solver.skipped,
        undecided: relations.solver.unknown,
        took: start.elapsed(),
        states: options.states,
    })
}

/// The connected components of a graph that have an edge; a loop is one.
fn components(count: usize, edges: &BTreeSet<(usize, usize)>) -> Vec<Vec<usize>> {
    let mut leader: Vec<usize> = (0..count).collect();
    for (a, b) in edges {
        let (a, b) = (leader[*a].min(leader[*b]), leader[*a].max(leader[*b]));
        leader.iter_mut().filter(|of| **of == b).for_each(|of| *of = a);
    }
    let has_edge = |node: usize| edges.iter().any(|(a, b)| *a == node || *b == node);
    let component = |of: usize| (0..count).filter(|node| leader[*node] == of).collect::<Vec<_>>();
    (0..count).filter(|node| leader[*node] == *node && has_edge(*node)).map(component).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_have_edges() {
        let edges = BTreeSet::from([(0, 3), (3, 4), (2, 2)]);
        assert_eq!(components(6, &edges), [vec![0, 3, 4], vec![2]]);
        assert_eq!(components(3, &BTreeSet::new()), Vec::<Vec<usize>>::new());
    }
}
