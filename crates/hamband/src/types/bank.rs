//! Bank accounts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Element, initially_empty};
use crate::{Coordination, DataType, methods};

/// An amount of money. One call has at most 2⁶⁴ − 1, and the sum of all deposits of an account is exact: it would take
/// 2⁶⁴ calls to exceed 2¹²⁸.
///
/// ```
/// use farfield_hamband::types::Amount;
/// assert_eq!(u128::from(Amount::from(5)), 5);
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Amount(u128);

impl From<u64> for Amount {
    fn from(amount: u64) -> Amount {
        Amount(amount.into())
    }
}

impl From<Amount> for u128 {
    fn from(amount: Amount) -> u128 {
        amount.0
    }
}

/// A withdrawal takes more than is there.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{Account, BalanceTooLow};
/// assert_eq!(Account::default().apply(&Account::withdrawal_of(1)), Err(BalanceTooLow { balance: 0 }));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("the balance is too low: {balance}")]
pub struct BalanceTooLow {
    /// The balance.
    pub balance: u128,
}

/// A bank account, the balance of which is never negative (§2, figure 1 of the paper). `Deposit` is reducible.
/// `Withdraw` conflicts with itself, and depends on `Deposit`.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::Account;
/// let mut account = Account::default();
/// account.apply(&Account::deposit_of(5))?;
/// account.apply(&Account::withdrawal_of(2))?;
/// assert_eq!(account.balance(), 3);
/// assert!(account.apply(&Account::withdrawal_of(4)).is_err());
/// # Ok::<(), farfield_hamband::types::BalanceTooLow>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Account {
    balance: u128,
}

methods! {
    /// The updates of an [`Account`].
    ///
    /// ```
    /// use farfield_hamband::types::{Account, AccountUpdate};
    /// assert_eq!(Account::deposit_of(5), AccountUpdate::Deposit(5.into()));
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub enum AccountUpdate: AccountMethod {
        /// Adds to the balance.
        Deposit(Amount),
        /// Takes from the balance, if there is enough.
        Withdraw(Amount),
    }
}

impl Account {
    /// The balance.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::Account::default().balance(), 0);
    /// ```
    pub fn balance(&self) -> u128 {
        self.balance
    }

    /// A deposit.
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::Account};
    /// let (three, four) = (Account::deposit_of(3), Account::deposit_of(4));
    /// assert_eq!(Account::summarise(&three, &four), Some(Account::deposit_of(7)));
    /// ```
    pub fn deposit_of(amount: u64) -> AccountUpdate {
        AccountUpdate::Deposit(amount.into())
    }

    /// A withdrawal.
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::Account};
    /// assert!(Account::default().check(&Account::withdrawal_of(1)).is_err());
    /// ```
    pub fn withdrawal_of(amount: u64) -> AccountUpdate {
        AccountUpdate::Withdraw(amount.into())
    }
}

impl DataType for Account {
    type Update = AccountUpdate;
    type Refusal = BalanceTooLow;

    fn apply(&mut self, update: &AccountUpdate) -> Result<(), BalanceTooLow> {
        match update {
            AccountUpdate::Deposit(amount) => self.balance = self.balance.saturating_add(amount.0),
            AccountUpdate::Withdraw(amount) => {
                let rest = self.balance.checked_sub(amount.0);
                self.balance = rest.ok_or(BalanceTooLow { balance: self.balance })?;
            }
        }
        Ok(())
    }

    fn coordination() -> Coordination<AccountMethod> {
        use AccountMethod::{Deposit, Withdraw};
        Coordination::none().conflict(Withdraw, Withdraw).depends(Withdraw, Deposit).summarised([Deposit])
    }

    fn summarise(first: &AccountUpdate, then: &AccountUpdate) -> Option<AccountUpdate> {
        match (first, then) {
            (AccountUpdate::Deposit(a), AccountUpdate::Deposit(b)) => {
                Some(AccountUpdate::Deposit(Amount(a.0.saturating_add(b.0))))
            }
            _ => None,
        }
    }

    fn remainder(earlier: &AccountUpdate, later: &AccountUpdate) -> Option<AccountUpdate> {
        match (earlier, later) {
            (AccountUpdate::Deposit(a), AccountUpdate::Deposit(b)) => {
                Some(AccountUpdate::Deposit(Amount(b.0.checked_sub(a.0)?)))
            }
            _ => None,
        }
    }
}

/// A bank with many accounts, the balances of which are never negative (§2 of the paper). `Open` and `Deposit` are
/// irreducible conflict-free, and `Deposit` depends on `Open`. `Withdraw` conflicts with itself, and depends on both.
///
/// ```
/// use farfield_hamband::DataType;
/// use farfield_hamband::types::{BankMap, BankMapUpdate::*, BankRefusal};
/// let mut bank = BankMap::default();
/// assert_eq!(bank.apply(&Deposit { account: 'a', amount: 5 }), Err(BankRefusal::NotOpen));
/// bank.apply(&Open('a'))?;
/// bank.apply(&Deposit { account: 'a', amount: 5 })?;
/// bank.apply(&Withdraw { account: 'a', amount: 2 })?;
/// assert_eq!(bank.balance(&'a'), Some(3));
/// # Ok::<(), BankRefusal>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(bound = "A: Element")]
pub struct BankMap<A> {
    balances: BTreeMap<A, u128>,
}

initially_empty!(BankMap<A> { balances });

methods! {
    /// The updates of a [`BankMap`].
    ///
    /// ```
    /// use farfield_hamband::{DataType, types::{BankMap, BankMapUpdate}};
    /// assert!(BankMap::default().check(&BankMapUpdate::Open(1)).is_ok());
    /// ```
    #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
    #[serde(bound = "A: Element")]
    pub enum BankMapUpdate<A: Element>: BankMapMethod {
        /// Opens an account, if it is not open.
        Open(A),
        /// Adds to the balance of an account.
        Deposit {
            /// The account.
            account: A,
            /// The amount to add.
            amount: u64,
        },
        /// Takes from the balance of an account, if there is enough.
        Withdraw {
            /// The account.
            account: A,
            /// The amount to take.
            amount: u64,
        },
    }
}

/// Why an update of a [`BankMap`] is refused.
///
/// ```
/// use farfield_hamband::types::{BalanceTooLow, BankRefusal};
/// assert_eq!(BankRefusal::from(BalanceTooLow { balance: 3 }).to_string(), "the balance is too low: 3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum BankRefusal {
    /// There is no such account.
    #[error("the account is not open")]
    NotOpen,
    /// There is too little in it.
    #[error(transparent)]
    BalanceTooLow(#[from] BalanceTooLow),
}

impl<A: Element> BankMap<A> {
    /// The balance of an account that is open.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::BankMap::default().balance(&1), None);
    /// ```
    pub fn balance(&self, account: &A) -> Option<u128> {
        self.balances.get(account).copied()
    }

    /// All accounts that are open, and their balances.
    ///
    /// ```
    /// assert_eq!(farfield_hamband::types::BankMap::<u64>::default().accounts().count(), 0);
    /// ```
    pub fn accounts(&self) -> impl Iterator<Item = (&A, u128)> {
        self.balances.iter().map(|(account, balance)| (account, *balance))
    }
}

impl<A: Element> DataType for BankMap<A> {
    type Update = BankMapUpdate<A>;
    type Refusal = BankRefusal;

    fn apply(&mut self, update: &BankMapUpdate<A>) -> Result<(), BankRefusal> {
        match update {
            BankMapUpdate::Open(account) => {
                self.balances.entry(account.clone()).or_default();
            }
            BankMapUpdate::Deposit { account, amount } => {
                let balance = self.balances.get_mut(account).ok_or(BankRefusal::NotOpen)?;
                *balance = balance.saturating_add(u128::from(*amount));
            }
            BankMapUpdate::Withdraw { account, amount } => {
                let balance = self.balances.get_mut(account).ok_or(BankRefusal::NotOpen)?;
                *balance = balance.checked_sub(u128::from(*amount)).ok_or(BalanceTooLow { balance: *balance })?;
            }
        }
        Ok(())
    }

    fn check(&self, update: &BankMapUpdate<A>) -> Result<(), BankRefusal> {
        match update {
            BankMapUpdate::Open(_) => Ok(()),
            BankMapUpdate::Deposit { account, .. } => self.balance(account).map(drop).ok_or(BankRefusal::NotOpen),
            BankMapUpdate::Withdraw { account, amount } => {
                let balance = self.balance(account).ok_or(BankRefusal::NotOpen)?;
                if u128::from(*amount) <= balance { Ok(()) } else { Err(BalanceTooLow { balance }.into()) }
            }
        }
    }

    fn coordination() -> Coordination<BankMapMethod> {
        use BankMapMethod::{Deposit, Open, Withdraw};
        let money = Coordination::none().conflict(Withdraw, Withdraw).depends(Withdraw, Deposit);
        money.depends(Deposit, Open).depends(Withdraw, Open)
    }
}
