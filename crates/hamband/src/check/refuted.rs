//! The result of a check that refutes something, and the example that shows it.

use core::fmt;

/// Something that a type declares, or has to do, is not so, with an example. It prints both, and the remedy.
///
/// ```
/// use farfield_hamband::Coordination;
/// use farfield_hamband::check::{Check, Relation};
/// use farfield_hamband::types::Account;
///
/// let calls = [1, 2].map(Account::deposit_of).into_iter().chain([1, 2].map(Account::withdrawal_of));
/// let refuted = Check::of(Account::default(), calls).coordination(Coordination::none()).exhaustively().unwrap_err();
/// assert_eq!(refuted.relation, Relation::Dependency { method: "Withdraw", on: "Deposit" });
/// assert_eq!(
///     refuted.to_string(),
///     "\
/// `Withdraw` depends on `Deposit`, and the coordination does not say so: declare `.depends(Withdraw, Deposit)`
///     before                                        Account { balance: 0 }
///     Deposit(Amount(1))                            Account { balance: 1 }
///     Deposit(Amount(1)), then Withdraw(Amount(1))  Account { balance: 0 }
///     Withdraw(Amount(1))                           refused: the balance is too low: 0"
/// );
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refuted {
    /// The relation that does not hold.
    pub relation: Relation,
    /// An example.
    pub example: Example,
}

impl fmt::Display for Refuted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.relation, self.example)
    }
}

impl core::error::Error for Refuted {}

/// A relation that a check has refuted. Methods are there by their names.
///
/// ```
/// use farfield_hamband::check::Relation;
/// let relation = Relation::StateConflict { methods: ["Add", "Remove"] };
/// assert!(relation.to_string().ends_with("declare `.conflict(Add, Remove)`"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Relation {
    /// The invariant does not hold initially (§3.2).
    #[error("the initial state does not satisfy the invariant: change one of them")]
    Initial,
    /// An update that was not refused leads to a state without the invariant.
    #[error("`{method}` breaks the invariant: let `apply` refuse such a call")]
    Invariant {
        /// The method.
        method: &'static str,
    },
    /// An update that was refused has changed the state.
    #[error("`{method}` is refused, and changes the state: let `apply` check its requirements first")]
    RefusalChangesState {
        /// The method.
        method: &'static str,
    },
    /// The same update had two results in the same state.
    #[error("`{method}` had two results in one state: `apply` may use the state and the call only")]
    NotDeterministic {
        /// The method.
        method: &'static str,
    },
    /// `DataType::check` and `DataType::apply` do not agree.
    #[error("`check` and `apply` do not agree whether `{method}` is permissible")]
    CheckDiffers {
        /// The method.
        method: &'static str,
    },
    /// `apply` panics.
    #[error("`{method}` panics: refuse the call, or let its arithmetic wrap or saturate")]
    Panics {
        /// The method.
        method: &'static str,
    },
    /// A value differs after it was encoded and decoded, or cannot be.
    #[error("the codec of {what} loses something: what it decodes is not what it has encoded")]
    Codec {
        /// The encoded value: the state, or a call of a method.
        what: String,
    },
    /// Two calls lead to different states in different orders (§3.2, S-commute).
    #[error(
        "`{}` and `{}` do not S-commute, and the coordination does not say so: declare `.conflict({}, {})`",
        methods[0], methods[1], methods[0], methods[1]
    )]
    StateConflict {
        /// The methods.
        methods: [&'static str; 2],
    },
    /// A call is not permissible after another, though it was before it (§3.2, 𝒫-concur).
    #[error(
        "`{method}` does not P-concur with `{with}`, and the coordination does not say so: declare `.conflict({method}, {with})`"
    )]
    PermissibleConflict {
        /// The method that becomes impermissible.
        method: &'static str,
        /// The method that makes it so.
        with: &'static str,
    },
    /// A call is permissible after another, and is not without it (§3.2, dependency).
    #[error("`{method}` depends on `{on}`, and the coordination does not say so: declare `.depends({method}, {on})`")]
    Dependency {
        /// The method that depends.
        method: &'static str,
        /// The method before it.
        on: &'static str,
    },
    /// Two calls of a summarisation group have no summary in it (§3.3).
    #[error(
        "`summarise` has no call of the group for `{}` and `{}`: return one, or take them out of `.summarised`",
        methods[0], methods[1]
    )]
    NoSummary {
        /// The methods.
        methods: [&'static str; 2],
    },
    /// The summary of two calls does not do the same as both (§3.3).
    #[error("the summary of `{}` and `{}` does not do what they do: correct `summarise`", methods[0], methods[1])]
    WrongSummary {
        /// The methods.
        methods: [&'static str; 2],
    },
    /// The remainder of a summary after an earlier one is missing, or wrong.
    #[error("after `{}`, the remainder of a summary does not do what is missing: correct `remainder`", methods[0])]
    WrongRemainder {
        /// The methods of both summaries.
        methods: [&'static str; 2],
    },
    /// In an execution (figure 5), a process has to refuse a call that another has made, or loses the invariant.
    #[error("an execution does not keep the invariant: a process cannot apply a `{method}` of another one")]
    ExecutionIntegrity {
        /// The method.
        method: &'static str,
    },
    /// In an execution (figure 5), two processes have the same calls and different states.
    #[error("an execution does not converge: two processes have the same calls and different states")]
    ExecutionConvergence,
    /// In an execution (figure 5), a call reaches some processes only.
    #[error("an execution gets stuck: a call cannot be propagated")]
    ExecutionStuck,
    /// The strategy does not generate calls.
    #[error("the strategy generates no calls: {why}")]
    Strategy {
        /// The message of proptest.
        why: String,
    },
}

/// The calls and the states that refute a relation. All lines start from the state `before`.
///
/// ```
/// use farfield_hamband::check::Example;
/// let lines = vec![("before".into(), "0".into()), ("Add(1)".into(), "2".into())];
/// let example = Example { reached_by: vec!["Add(1)".into()], lines };
/// assert_eq!(example.to_string(), "\n    reached by  Add(1)\n    before      0\n    Add(1)      2");
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Example {
    /// The calls that lead to the state before.
    pub reached_by: Vec<String>,
    /// Calls, and the state after them or the refusal of the last one.
    pub lines: Vec<(String, String)>,
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reached = (!self.reached_by.is_empty()).then(|| ("reached by".to_owned(), self.reached_by.join(", then ")));
        let lines: Vec<_> = reached.iter().chain(&self.lines).collect();
        // A label that is long does not move all other lines.
        let width =
            lines.iter().map(|(label, _)| label.chars().count()).filter(|width| *width <= 80).max().unwrap_or(0);
        for (label, text) in lines {
            write!(f, "\n    {label:width$}  {text}")?;
        }
        Ok(())
    }
}
