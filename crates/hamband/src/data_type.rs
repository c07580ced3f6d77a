//! The user's part: a plain sequential type, its updates, and which of them have to be coordinated.

use core::fmt::{Debug, Display};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::coordination::Coordination;

/// A plain sequential type, of which [`Replicated`](crate::Replicated) keeps replicas: ⟨Σ, I, updates, queries⟩ of
/// §3.1. The value itself is the state σ, and any method that takes `&self` is a query.
///
/// The replicas apply each other's updates in different orders, and only as far as [`DataType::coordination`] says that
/// the order matters. So that has to be true. Three tools find out: the analysis ([`analysis`](crate::analysis)) proves
/// it of a specification, [`check`](https://docs.rs/farfield-hamband/latest/farfield_hamband/check/) tests it against
/// this code, and a replica that meets an update which it has to refuse reports it.
///
/// ```
/// use farfield_hamband::{Coordination, DataType, methods};
/// use serde::{Deserialize, Serialize};
///
/// /// The balance is never negative.
/// #[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
/// struct Account {
///     balance: u64,
/// }
///
/// methods! {
///     #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
///     enum AccountUpdate: AccountMethod {
///         Deposit(u64),
///         Withdraw(u64),
///     }
/// }
///
/// #[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
/// #[error("the balance is {balance}")]
/// struct TooLow {
///     balance: u64,
/// }
///
/// impl DataType for Account {
///     type Update = AccountUpdate;
///     type Refusal = TooLow;
///
///     fn apply(&mut self, update: &AccountUpdate) -> Result<(), TooLow> {
///         match update {
///             AccountUpdate::Deposit(amount) => self.balance += amount,
///             AccountUpdate::Withdraw(amount) => {
///                 self.balance = self.balance.checked_sub(*amount).ok_or(TooLow { balance: self.balance })?;
///             }
///         }
///         Ok(())
///     }
///
///     fn coordination() -> Coordination<AccountMethod> {
///         use AccountMethod::{Deposit, Withdraw};
///         // Two withdrawals may take the same money, and one may take the money of a deposit.
///         Coordination::none().conflict(Withdraw, Withdraw).depends(Withdraw, Deposit).summarised([Deposit])
///     }
///
///     fn summarise(first: &AccountUpdate, then: &AccountUpdate) -> Option<AccountUpdate> {
///         match (first, then) {
///             (AccountUpdate::Deposit(a), AccountUpdate::Deposit(b)) => Some(AccountUpdate::Deposit(a + b)),
///             _ => None,
///         }
///     }
///
///     fn remainder(earlier: &AccountUpdate, later: &AccountUpdate) -> Option<AccountUpdate> {
///         match (earlier, later) {
///             (AccountUpdate::Deposit(a), AccountUpdate::Deposit(b)) => Some(AccountUpdate::Deposit(b.checked_sub(*a)?)),
///             _ => None,
///         }
///     }
/// }
///
/// let mut account = Account::default();
/// account.apply(&AccountUpdate::Deposit(5))?;
/// assert!(account.apply(&AccountUpdate::Withdraw(6)).is_err());
/// account.apply(&AccountUpdate::Withdraw(2))?;
/// assert_eq!(account.balance, 3);
/// # Ok::<(), TooLow>(())
/// ```
pub trait DataType: Clone + PartialEq + Debug + Send + Serialize + DeserializeOwned + 'static {
    /// A call of an update method: an enum from [`methods!`](crate::methods!).
    type Update: Update;
    /// Why an update is not permissible.
    type Refusal: Clone + Debug + Display + Send + Serialize + DeserializeOwned + 'static;

    /// Applies an update, if it is permissible in this state. It does the same on every replica: it uses the state and
    /// the call only, and no clock, randomness or order of a hash table. It must not panic.
    ///
    /// # Errors
    /// The update is not permissible: its requirement does not hold, or the invariant would not. The state is then
    /// unchanged.
    fn apply(&mut self, update: &Self::Update) -> Result<(), Self::Refusal>;

    /// Whether an update is permissible in this state (§3.2, 𝒫). A leader asks before it orders a call. By default, a
    /// copy of the state tries it; a type with a large state has a cheaper answer.
    ///
    /// # Errors
    /// As `apply`.
    fn check(&self, update: &Self::Update) -> Result<(), Self::Refusal> {
        self.clone().apply(update)
    }

    /// The invariant I (§3.1): true of the initial state, and after every update that `apply` does not refuse. It is
    /// for checks; replicas do not evaluate it.
    fn invariant(&self) -> bool {
        true
    }

    /// Which methods conflict, depend on others, and can be summarised (§3.2, §3.3).
    fn coordination() -> Coordination<<Self::Update as Update>::Method>;

    /// The one call that does what `first` and then `then` do, of two calls of the methods of one summarisation group
    /// (§3.3, `Summarize`); `None` if they are of none.
    fn summarise(first: &Self::Update, then: &Self::Update) -> Option<Self::Update> {
        let _ = (first, then);
        None
    }

    /// The part of a summary that an earlier one of the same source has not: the call that does, after `earlier`, the
    /// same as `later` without it. A replica that knows the earlier summary applies this. Every method that is
    /// summarised needs it.
    fn remainder(earlier: &Self::Update, later: &Self::Update) -> Option<Self::Update> {
        let _ = (earlier, later);
        None
    }
}

/// A call of an update method. [`methods!`](crate::methods!) implements it.
///
/// ```
/// use farfield_hamband::{Method, Update, methods};
/// methods! {
///     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
///     enum CounterUpdate: CounterMethod {
///         Add(i64),
///     }
/// }
/// assert_eq!(CounterUpdate::Add(5).method(), CounterMethod::Add);
/// ```
pub trait Update: Clone + PartialEq + Debug + Send + Serialize + DeserializeOwned + 'static {
    /// The update methods, without their arguments.
    type Method: Method;

    /// The method that is called.
    fn method(&self) -> Self::Method;
}

/// The update methods of a type. [`methods!`](crate::methods!) implements it.
///
/// ```
/// use farfield_hamband::{Method, methods};
/// methods! {
///     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
///     enum SetUpdate: SetMethod {
///         Add(u64),
///         Remove { element: u64, tags: Vec<u64> },
///         Clear,
///     }
/// }
/// assert_eq!(SetMethod::NAMES, ["Add", "Remove", "Clear"]);
/// assert_eq!(SetMethod::ALL[SetMethod::Remove.number()], SetMethod::Remove);
/// ```
pub trait Method: Copy + Eq + Debug + Send + Sync + 'static {
    /// All methods, by their numbers.
    const ALL: &'static [Self];
    /// Their names.
    const NAMES: &'static [&'static str];

    /// The number of the method, from 0.
    fn number(self) -> usize;
}

/// Defines the updates of a [`DataType`]: an enum with a variant for each method, and a second one, of the methods
/// without their arguments. It implements [`Update`] and [`Method`]. The codecs are serde's, so the enum derives
/// `Serialize` and `Deserialize`.
///
/// ```
/// farfield_hamband::methods! {
///     /// The updates of an account.
///     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
///     pub enum AccountUpdate: AccountMethod {
///         /// Adds to the balance.
///         Deposit(u64),
///         /// Takes from it.
///         Withdraw { amount: u64 },
///         /// Ends it.
///         Close,
///     }
/// }
/// assert_eq!(farfield_hamband::Update::method(&AccountUpdate::Withdraw { amount: 3 }), AccountMethod::Withdraw);
/// ```
///
/// An enum with parameters has a bound for each; [`Element`](crate::types::Element) is one that is enough.
///
/// ```
/// use farfield_hamband::types::Element;
/// farfield_hamband::methods! {
///     #[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
///     #[serde(bound = "E: Element")]
///     enum SetUpdate<E: Element>: SetMethod {
///         Add(E),
///     }
/// }
/// assert_eq!(farfield_hamband::Update::method(&SetUpdate::Add("a".to_owned())), SetMethod::Add);
/// ```
#[macro_export]
macro_rules! methods {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $update:ident $(<$($parameter:ident: $bound:path),+ $(,)?>)?: $method:ident {
            $($(#[$of_variant:meta])* $variant:ident $(($($tuple:tt)*))? $({$($fields:tt)*})?),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        $visibility enum $update $(<$($parameter),+>)? {
            $($(#[$of_variant])* $variant $(($($tuple)*))? $({$($fields)*})?),+
        }

        #[doc = concat!("The methods of [`", stringify!($update), "`], without their arguments.")]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the variants have those of the other enum")]
        $visibility enum $method {
            $($variant),+
        }

        impl $crate::Method for $method {
            const ALL: &'static [$method] = &[$($method::$variant),+];
            const NAMES: &'static [&'static str] = &[$(stringify!($variant)),+];

            fn number(self) -> usize {
                self as usize
            }
        }

        impl $(<$($parameter: $bound),+>)? $crate::Update for $update $(<$($parameter),+>)? {
            type Method = $method;

            fn method(&self) -> $method {
                match self {
                    $(Self::$variant { .. } => $method::$variant),+
                }
            }
        }
    };
}
