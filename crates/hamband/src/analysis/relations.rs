//! The relations of §3.2 between calls, each as one question: is there a counterexample?
//!
//! # Preconditions
//!
//! The paper's methods are total functions of the state, and a call is permissible where the invariant holds
//! afterwards: 𝒫(σ, c) iff I(c(σ)). Methods here may refuse calls, too. So 𝒫(σ, c) iff the requirements of c hold in σ,
//! and I(c(σ)).
//!
//! # Which states
//!
//! The paper's definitions say "for every state σ". Read literally ([`States::All`]), σ need not satisfy the invariant,
//! and the other call need not be permissible in it, though neither happens in an execution: "the body of each method
//! can assume and rely on the invariant in the pre-state". The literal reading finds more conflicts and dependencies
//! than the paper reports for its own types: in the courseware, `deleteCourse` would depend on `addCourse`, since a
//! course that is added can repair a state that breaks the invariant; and in the bank map, `deposit` would conflict
//! with `open`. So by default ([`States::Permissible`]) σ satisfies the invariant, and each call is permissible in one
//! of its places.
//!
//! That is enough for the paper's lemmas; in short: let c₁ be executed after the history h of its issuer, and be
//! applied after h′ elsewhere. Both histories contain only calls that were permissible where they are. To get from h to
//! h′, first drop the last call that h′ lacks: that is the premise of ◁. Then append the calls that only h′ has, in its
//! order: each is permissible where it is appended, since it does not conflict with the later calls of h′ that h has,
//! too; that is the premise of ▷. Convergence swaps neighbours that concur, in histories that are well-coordinated
//! before and after, so both calls are permissible in the state before them. The module `executions` tests the lemmas
//! on random executions of the abstract semantics (figure 5).

use super::core::Core;
use super::counterexample::{Counterexample, Shown};
use super::question::{Question, State};
use super::solver::{Solver, SolverError};
use super::specification::Specification;

/// Which states the relations are about.
///
/// ```
/// use farfield_hamband::analysis::{Options, States};
///
/// assert_eq!(Options::default().states, States::Permissible);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum States {
    /// Those of executions: they satisfy the invariant, and calls are permissible before they are moved.
    #[default]
    Permissible,
    /// All states, as the paper's definitions say literally.
    All,
}

/// Whether a relation holds.
///
/// ```
/// use farfield_hamband::analysis::Verdict;
///
/// assert!(Verdict::Holds.holds());
/// assert!(!Verdict::Undecided("no answer in 1ms".into()).holds());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was proved.
    Holds,
    /// It was refuted.
    Fails(Box<Counterexample>),
    /// The solver could not decide it, for this reason. It counts as refuted.
    Undecided(String),
}

impl Verdict {
    /// Whether it was proved.
    ///
    /// ```
    /// use farfield_hamband::analysis::{Counterexample, Verdict};
    ///
    /// let causes = vec!["the results differ in last".to_owned()];
    /// let refuted = Verdict::Fails(Box::new(Counterexample { calls: vec![], states: vec![], causes }));
    /// assert!(Verdict::Holds.holds() && !refuted.holds());
    /// ```
    pub fn holds(&self) -> bool {
        *self == Verdict::Holds
    }
}

/// Asks the questions about one specification.
pub(crate) struct Relations<'a> {
    pub(crate) spec: &'a Specification,
    pub(crate) states: States,
    pub(crate) solver: Solver,
}

impl<'a> Relations<'a> {
    /// The initial state satisfies the invariant (§3.2, "In the initial state …").
    pub(crate) fn initial_integrity(&mut self) -> Result<Verdict, SolverError> {
        let mut question = Question::new(self.spec);
        let initial = question.initial();
        question.show(Shown::Whole("initially"), &initial);
        let broken = question.broken(&initial);
        question.assert(&broken);
        question.ask(&mut self.solver)
    }

    /// A method is *guarded*: a call whose requirements hold in a state with the invariant leads to one with it. This
    /// is not in the paper, which checks the invariant after each call, as `requires invariant` does.
    pub(crate) fn is_guarded(&mut self, method: usize) -> Result<Verdict, SolverError> {
        if self.spec.updates[method].checks_invariant.is_some() {
            self.solver.skipped += 1;
            return Ok(Verdict::Holds);
        }
        let mut question = Question::new(self.spec);
        let (before, call) = (question.state("s0"), question.call(method));
        let after = question.after(&before, &call, "s1");
        question.show(Shown::Whole("before"), &before);
        question.show(Shown::After(vec![0]), &after);
        question.assert(&question.integrity(&before));
        question.assert(&question.requirements(&before, &call));
        let broken = question.broken(&after);
        question.assert(&broken);
        question.ask(&mut self.solver)
    }

    /// *Invariant-sufficiency* (§3.2): for every state σ, if I(σ) then 𝒫(σ, c).
    pub(crate) fn is_invariant_sufficient(&mut self, method: usize) -> Result<Verdict, SolverError> {
        let mut question = Question::new(self.spec);
        let (before, call) = (question.state("s0"), question.call(method));
        let after = question.after(&before, &call, "s1");
        question.show(Shown::Whole("before"), &before);
        question.show(Shown::After(vec![0]), &after);
        question.assert(&question.integrity(&before));
        let refused = question.refused(&before, &call, &after);
        question.assert(&refused);
        question.ask(&mut self.solver)
    }

    /// *S-commutativity* (§3.2): c₁ ⇆ c₂ iff c₁ ∘ c₂ = c₂ ∘ c₁. It is symmetric.
    pub(crate) fn state_commutes(&mut self, first: usize, second: usize) -> Result<Verdict, SolverError> {
        if self.touches_nothing_of(first, second) && self.touches_nothing_of(second, first) {
            self.solver.skipped += 1;
            return Ok(Verdict::Holds);
        }
        let mut question = Question::new(self.spec);
        let before = question.state("s0");
        let (one, two) = (question.call(first), question.call(second));
        question.assert_unique(&one, &two);
        let after_one = question.after(&before, &one, "s1");
        let one_two = question.after(&after_one, &two, "s12");
        let after_two = question.after(&before, &two, "s2");
        let two_one = question.after(&after_two, &one, "s21");
        question.show(Shown::Whole("before"), &before);
        question.show(Shown::After(vec![0]), &after_one);
        question.show(Shown::After(vec![0, 1]), &one_two);
        question.show(Shown::After(vec![1]), &after_two);
        question.show(Shown::After(vec![1, 0]), &two_one);
        if self.states == States::Permissible {
            question.assert(&question.integrity(&before));
            question.assert(&question.permissible(&before, &one, &after_one));
            question.assert(&question.permissible(&before, &two, &after_two));
        }
        let different = question.different(&one_two, &two_one);
        question.assert(&different);
        question.ask(&mut self.solver)
    }

    /// *𝒫-R-commutativity* (§3.2): c₁ ▷ c₂ iff for every state σ, if 𝒫(σ, c₁) then 𝒫(c₂(σ), c₁). The call that is moved
    /// to the right is the first one.
    pub(crate) fn right_commutes(&mut self, moved: usize, passed: usize) -> Result<Verdict, SolverError> {
        if self.is_out_of_reach(moved, passed) {
            self.solver.skipped += 1;
            return Ok(Verdict::Holds);
        }
        let mut question = Question::new(self.spec);
        let before = question.state("s0");
        let (one, two) = (question.call(moved), question.call(passed));
        question.assert_unique(&one, &two);
        let after_one = question.after(&before, &one, "s1");
        let after_two = question.after(&before, &two, "s2");
        let two_one = question.after(&after_two, &one, "s21");
        question.show(Shown::Whole("before"), &before);
        question.show(Shown::After(vec![0]), &after_one);
        question.show(Shown::After(vec![1]), &after_two);
        question.show(Shown::After(vec![1, 0]), &two_one);
        question.assert(&question.permissible(&before, &one, &after_one));
        if self.states == States::Permissible {
            question.assert(&question.integrity(&before));
            question.assert(&question.permissible(&before, &two, &after_two));
        }
        let refused = question.refused(&after_two, &one, &two_one);
        question.assert(&refused);
        self.unless_sufficient(&mut question, &one);
        question.ask(&mut self.solver)
    }

    /// *𝒫-L-commutativity* (§3.2): c₂ ◁ c₁ iff for every state σ, if 𝒫(c₁(σ), c₂) then 𝒫(σ, c₂). The call that is moved
    /// to the left is the first argument.
    pub(crate) fn left_commutes(&mut self, moved: usize, passed: usize) -> Result<Verdict, SolverError> {
        if self.is_out_of_reach(moved, passed) {
            self.solver.skipped += 1;
            return Ok(Verdict::Holds);
        }
        let mut question = Question::new(self.spec);
        let before = question.state("s0");
        let (one, two) = (question.call(passed), question.call(moved));
        question.assert_unique(&one, &two);
        let after_one = question.after(&before, &one, "s1");
        let one_two = question.after(&after_one, &two, "s12");
        let after_two = question.after(&before, &two, "s2");
        question.show(Shown::Whole("before"), &before);
        question.show(Shown::After(vec![0]), &after_one);
        question.show(Shown::After(vec![0, 1]), &one_two);
        question.show(Shown::After(vec![1]), &after_two);
        question.assert(&question.permissible(&after_one, &two, &one_two));
        if self.states == States::Permissible {
            question.assert(&question.integrity(&before));
            question.assert(&question.permissible(&before, &one, &after_one));
        }
        let refused = question.refused(&before, &two, &after_two);
        question.assert(&refused);
        self.unless_sufficient(&mut question, &two);
        question.ask(&mut self.solver)
    }

    /// A call conflicts, or depends, only if that very call is not invariant-sufficient. Where σ satisfies the
    /// invariant, the counterexample shows this already; where it need not, another state has to.
    fn unless_sufficient(&self, question: &mut Question<'_>, call: &super::question::Call) {
        if self.states == States::Permissible {
            return;
        }
        let elsewhere: State = question.state("t0");
        let after = question.after(&elsewhere, call, "t1");
        question.assert(&question.integrity(&elsewhere));
        let permissible = question.permissible(&elsewhere, call, &after);
        question.assert(&super::value::not(&permissible));
    }

    fn writes(&self, method: usize) -> Vec<usize> {
        self.spec.updates[method].effects.iter().map(|(variable, _)| *variable).collect()
    }

    /// Whether the effects of a method neither read nor assign what another assigns.
    fn touches_nothing_of(&self, method: usize, other: usize) -> bool {
        let written = self.writes(other);
        let is_written = |variable: usize| written.contains(&variable);
        self.spec.updates[method]
            .effects
            .iter()
            .all(|(variable, value)| !is_written(*variable) && !value.reads(&is_written))
    }

    /// Whether a method's permissibility cannot depend on another's effect: its requirements and effects read nothing
    /// that the other assigns, and no clause of the invariant reads something of both. For states with the invariant
    /// only: a clause that reads nothing of the method holds before it and after it.
    fn is_out_of_reach(&self, method: usize, other: usize) -> bool {
        let (written, own) = (self.writes(other), self.writes(method));
        let reads = |core: &Core, of: &[usize]| core.reads(&|variable| of.contains(&variable));
        let update = &self.spec.updates[method];
        let requirements = update.requirements.iter().map(|requirement| &requirement.condition);
        let values = update.effects.iter().map(|(_, value)| value);
        self.states == States::Permissible
            && !requirements.chain(values).any(|core| reads(core, &written))
            && !self
                .spec
                .invariants
                .iter()
                .any(|clause| reads(&clause.condition, &written) && reads(&clause.condition, &own))
    }
}
