//! Refinement: whether an implementation shows an outcome that the specification forbids. LOCO paper, Definition 3.10.

use std::collections::BTreeSet;
use std::rc::Rc;

use crate::enumerate::{Detail, consistent};
use crate::litmus::{Condition, Implementation, Observable, Quantifier, Test, Value};
use crate::model::Models;
use crate::too_large::TooLarge;
use crate::witness::{self, Answer};

/// The outcomes of a client, which are what its own registers hold, with a library and with an implementation of it.
///
/// ```
/// # use mowgli::{litmus::Implementation, model::Models, refine::refine};
/// let client = "sv t { shared x; } P0@1 { Write(x, 1); let a = Read(x); } exists (true)";
/// let refinement = refine("t", client, &Models::builtin(), &Implementation::builtin()[..1])?; // over `sv_rdma`
/// assert_eq!(refinement.names, ["0:a"]);
/// assert_eq!(refinement.shown, refinement.specified); // 1, and nothing else
/// # Ok::<(), mowgli::refine::NotChecked>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refinement {
    /// The registers.
    pub names: Vec<String>,
    /// The outcomes that the specification allows.
    pub specified: BTreeSet<Vec<Value>>,
    /// The outcomes that the implementation shows.
    pub shown: BTreeSet<Vec<Value>>,
}

impl Refinement {
    /// The outcomes that the implementation shows and the specification forbids.
    ///
    /// ```
    /// # use mowgli::{litmus::Implementation, model::Models, refine::refine};
    /// # let client = "rdmawait, bal t { p@1 = 1; z@2; c@3; barrier b(P0, P1, P2); }
    /// #     P0@1 { Put(d, z, p); BAR(b); }
    /// #     P1@2 { BAR(b); }
    /// #     P2@3 { BAR(b); Get(e, c, z); Wait(e); let a = Read(c); }
    /// #     exists (true)";
    /// # let all = Implementation::builtin();
    /// let broken: Vec<_> = all.into_iter().filter(|it| it.name == "bal_no_fence").collect();
    /// let refinement = refine("t", client, &Models::builtin(), &broken)?;
    /// assert_eq!(refinement.unsound().count(), 1); // without its fence, a put may be missed behind the barrier
    /// # Ok::<(), mowgli::refine::NotChecked>(())
    /// ```
    pub fn unsound(&self) -> impl Iterator<Item = &Vec<Value>> {
        self.shown.difference(&self.specified)
    }
}

/// Why an outcome of a client makes an implementation unsound.
///
/// ```
/// # use mowgli::{litmus::{Implementation, Value}, model::Models, refine::why, witness::Answer};
/// # let client = "rdmawait, bal t { p@1 = 1; z@2; c@3; barrier b(P0, P1, P2); }
/// #     P0@1 { Put(d, z, p); BAR(b); }
/// #     P1@2 { BAR(b); }
/// #     P2@3 { BAR(b); Get(e, c, z); Wait(e); let a = Read(c); }
/// #     exists (true)";
/// # let all = Implementation::builtin();
/// # let broken: Vec<_> = all.into_iter().filter(|it| it.name == "bal_no_fence").collect();
/// // Behind a barrier without a fence, a put is missed: `a` is 0.
/// let why = why("t", client, &Models::builtin(), &broken, &[Value::number(0)])?;
/// let (Answer::Forbidden(_, cycle), Answer::Witness(execution)) = (why.specified, why.shown) else { panic!() };
/// assert_eq!(cycle.law, "Λ-consistency");
/// assert_eq!(execution.seen, [("2:a".to_owned(), Value::number(0))]);
/// # Ok::<(), mowgli::refine::NotChecked>(())
/// ```
#[derive(Clone, Debug)]
pub struct Why {
    /// The specification's answer: it forbids the outcome.
    pub specified: Answer,
    /// The implementation's answer: an execution that has the outcome.
    pub shown: Answer,
}

/// Explains an outcome that an implementation shows and its specification forbids: one of [`Refinement::unsound`].
///
/// # Errors
/// As [`refine`].
///
/// ```
/// # use mowgli::{litmus::{Implementation, Quantifier}, model::Models, refine::{refine, why}, witness::Answer};
/// # let client = "rdmawait, bal t { p@1 = 1; z@2; c@3; barrier b(P0, P1, P2); }
/// #     P0@1 { Put(d, z, p); BAR(b); }
/// #     P1@2 { BAR(b); }
/// #     P2@3 { BAR(b); Get(e, c, z); Wait(e); let a = Read(c); }
/// #     exists (true)";
/// # let all = Implementation::builtin();
/// let broken: Vec<_> = all.into_iter().filter(|it| it.name == "bal_no_fence").collect();
/// let models = Models::builtin();
/// let refinement = refine("t", client, &models, &broken)?;
/// let outcome = refinement.unsound().next().expect("a put may be missed behind the barrier");
/// let why = why("t", client, &models, &broken, outcome)?;
/// assert!(why.specified.reason(Quantifier::Exists).starts_with("It breaks Λ-consistency by the cycle"));
/// assert!(matches!(why.shown, Answer::Witness(_)));
/// # Ok::<(), mowgli::refine::NotChecked>(())
/// ```
pub fn why(
    file: &str,
    client: &str,
    models: &Models,
    implementations: &[Rc<Implementation>],
    outcome: &[Value],
) -> Result<Why, NotChecked> {
    let find = |mut test: Test| {
        test.shown = registers(&test);
        let is = |(register, value): (&Observable, &Value)| Condition::Is(*register, value.clone());
        let all = test.shown.iter().zip(outcome).map(is);
        test.condition = all.fold(Condition::True, |all, is| Condition::And(Box::new(all), Box::new(is)));
        test.quantifier = Quantifier::Exists;
        witness::find(&test)
    };
    let specified = find(Test::parse(file, client, models)?)?;
    let shown = find(Test::expand(file, client, models, implementations)?)?;
    Ok(Why { specified, shown })
}

/// The client's own registers.
fn registers(test: &Test) -> Vec<Observable> {
    let all = test.observables().into_iter().filter(|it| matches!(it, Observable::Register(..)));
    // Those of implementations have the implementation's name and another colon.
    all.filter(|it| test.name_of(*it).matches(':').count() == 1).collect()
}

/// Why a refinement was not checked.
///
/// ```
/// # use mowgli::{model::Models, refine::{NotChecked, refine}};
/// let client = "sv t { shared x; } P0@1 { Wirte(x, 1); } exists (true)";
/// let error = refine("t", client, &Models::builtin(), &[]).unwrap_err();
/// assert!(matches!(error, NotChecked::Text(_)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotChecked {
    /// A mistake in the client, or in an implementation.
    #[error(transparent)]
    Text(#[from] crate::text::Error),
    /// Too many executions.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}

/// Compares the outcomes of a client, the text of a litmus test, with those that it has over implementations of
/// libraries.
///
/// # Errors
/// A mistake in a text, or too many executions.
///
/// ```
/// # use mowgli::{litmus::Implementation, model::Models, refine::refine};
/// let client = "rdmawait, bal t { p@1 = 1; z@2; barrier b(P0, P1); }
///     P0@1 { Put(d, z, p); BAR(b); }
///     P1@2 { BAR(b); let a = Read(z); }
///     exists (true)";
/// let all = Implementation::builtin();
/// let barrier: Vec<_> = all.into_iter().filter(|it| it.name == "bal_sv").collect();
/// let refinement = refine("t", client, &Models::builtin(), &barrier)?;
/// assert_eq!((refinement.shown.len(), refinement.unsound().count()), (1, 0));
/// # Ok::<(), mowgli::refine::NotChecked>(())
/// ```
pub fn refine(
    file: &str,
    client: &str,
    models: &Models,
    implementations: &[Rc<Implementation>],
) -> Result<Refinement, NotChecked> {
    let mut specified = Test::parse(file, client, models)?;
    let mut expanded = Test::expand(file, client, models, implementations)?;
    specified.shown = registers(&specified);
    expanded.shown = registers(&expanded);
    let names: Vec<_> = specified.shown.iter().map(|it| specified.name_of(*it)).collect();
    debug_assert!(expanded.shown.iter().map(|it| expanded.name_of(*it)).eq(names.iter().cloned()));
    let outcomes = |test: &Test| consistent(test, Detail::Shown).map(|all| all.states.into_keys().collect());
    Ok(Refinement { names, specified: outcomes(&specified)?, shown: outcomes(&expanded)? })
}
