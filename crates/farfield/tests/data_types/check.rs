//! Wrong declarations and wrong code: a check refutes each, with the example that is expected.

use std::sync::atomic::{AtomicI64, Ordering};

use farfield_hamband::check::{Check, Refuted, Relation, check};
use farfield_hamband::{Coordination, DataType, methods};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// What is wrong with a [`Stock`].
mod fault {
    pub(super) const NONE: u8 = 0;
    pub(super) const TAKES_DO_NOT_CONFLICT: u8 = 1;
    pub(super) const SETS_DO_NOT_CONFLICT: u8 = 2;
    pub(super) const TAKE_DOES_NOT_DEPEND: u8 = 3;
    pub(super) const SUMMARY_IS_MAXIMUM: u8 = 4;
    pub(super) const SUMMARY_IS_NONE: u8 = 5;
    pub(super) const SUMMARY_IS_OF_ANOTHER_GROUP: u8 = 6;
    pub(super) const REMAINDER_IS_ALL: u8 = 7;
    pub(super) const REMAINDER_IS_NONE: u8 = 8;
    pub(super) const TAKE_IS_UNCHECKED: u8 = 9;
    pub(super) const REFUSAL_TAKES_ALL: u8 = 10;
    pub(super) const ADDS_A_COUNTER: u8 = 11;
    pub(super) const PANICS: u8 = 12;
    pub(super) const CHECK_IS_LAX: u8 = 13;
    pub(super) const NEGATIVE: u8 = 14;
    pub(super) const ADD_IS_REFUSED_ABOVE: u8 = 15;
    pub(super) const TOO_STRONG: u8 = 16;
    pub(super) const LAST_TAKE_IS_UNCHECKED: u8 = 17;
}

/// Pieces in stock, and the price of one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Stock<const FAULT: u8> {
    pieces: i64,
    price: u8,
}

methods! {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum StockUpdate: StockMethod {
        Add(i64),
        Take(i64),
        SetPrice(u8),
    }
}
use StockUpdate::{Add, SetPrice, Take};

impl<const FAULT: u8> Default for Stock<FAULT> {
    fn default() -> Self {
        Stock { pieces: if FAULT == fault::NEGATIVE { -1 } else { 0 }, price: 0 }
    }
}

impl<const FAULT: u8> DataType for Stock<FAULT> {
    type Update = StockUpdate;
    type Refusal = String;

    fn apply(&mut self, update: &StockUpdate) -> Result<(), String> {
        static COUNTER: AtomicI64 = AtomicI64::new(0);
        match update {
            Add(_) if FAULT == fault::ADD_IS_REFUSED_ABOVE && self.pieces > 0 => return Err("it is full".to_owned()),
            Add(n) if FAULT == fault::ADDS_A_COUNTER => self.pieces += n + COUNTER.fetch_add(1, Ordering::Relaxed),
            Add(n) => self.pieces += n,
            Take(n) if FAULT == fault::PANICS && *n > self.pieces => panic!("too few"),
            Take(n) if FAULT == fault::TAKE_IS_UNCHECKED => self.pieces -= n,
            Take(n) if FAULT == fault::LAST_TAKE_IS_UNCHECKED && self.pieces == 1 => self.pieces -= n,
            Take(n) if *n > self.pieces => {
                if FAULT == fault::REFUSAL_TAKES_ALL {
                    self.pieces = 0;
                }
                return Err(format!("there are {}", self.pieces));
            }
            Take(n) => self.pieces -= n,
            SetPrice(price) => self.price = *price,
        }
        Ok(())
    }

    fn check(&self, update: &StockUpdate) -> Result<(), String> {
        if FAULT == fault::CHECK_IS_LAX { Ok(()) } else { self.clone().apply(update) }
    }

    fn invariant(&self) -> bool {
        self.pieces >= 0
    }

    fn coordination() -> Coordination<StockMethod> {
        use StockMethod::{Add, SetPrice, Take};
        if FAULT == fault::TOO_STRONG {
            return Coordination::all().depends(Add, SetPrice);
        }
        let mut stock = Coordination::none().summarised([Add]);
        if FAULT != fault::TAKES_DO_NOT_CONFLICT {
            stock = stock.conflict(Take, Take);
        }
        if FAULT != fault::SETS_DO_NOT_CONFLICT {
            stock = stock.conflict(SetPrice, SetPrice);
        }
        if FAULT != fault::TAKE_DOES_NOT_DEPEND { stock.depends(Take, Add) } else { stock }
    }

    fn summarise(first: &StockUpdate, then: &StockUpdate) -> Option<StockUpdate> {
        match (first, then) {
            (Add(_), Add(_)) if FAULT == fault::SUMMARY_IS_NONE => None,
            (Add(a), Add(b)) if FAULT == fault::SUMMARY_IS_OF_ANOTHER_GROUP => Some(Take(-a - b)),
            (Add(a), Add(b)) if FAULT == fault::SUMMARY_IS_MAXIMUM => Some(Add(*a.max(b))),
            (Add(a), Add(b)) => Some(Add(a + b)),
            _ => None,
        }
    }

    fn remainder(earlier: &StockUpdate, later: &StockUpdate) -> Option<StockUpdate> {
        match (earlier, later) {
            _ if FAULT == fault::REMAINDER_IS_NONE => None,
            (Add(a), Add(b)) if FAULT != fault::REMAINDER_IS_ALL => Some(Add(b - a)),
            _ => Some(later.clone()),
        }
    }
}

/// What is refuted of a stock exhaustively.
fn exhaustively<const FAULT: u8>() -> Refuted {
    let few = [Add(1), Add(2), Take(1), Take(2), SetPrice(1), SetPrice(2)];
    Check::<Stock<FAULT>>::of(Stock::default(), few).exhaustively().expect_err("it is wrong")
}

/// The same, and it is refuted at random, too.
fn refuted<const FAULT: u8>() -> Refuted {
    let refuted = exhaustively::<FAULT>();
    let calls = prop_oneof![(1..9i64).prop_map(Add), (1..9i64).prop_map(Take), any::<u8>().prop_map(SetPrice)];
    let random = Check::<Stock<FAULT>>::new(Stock::default(), calls).at_random().expect_err("it is wrong");
    // The kind is the same. Which methods come first may differ.
    let kind = |refuted: &Refuted| core::mem::discriminant(&refuted.relation);
    assert_eq!(kind(&refuted), kind(&random), "{refuted}\n{random}");
    println!("{refuted}\n{random}\n");
    refuted
}

#[test]
fn a_stock_that_is_right_passes() {
    let calls = prop_oneof![(1..9i64).prop_map(Add), (1..9i64).prop_map(Take), (0..3u8).prop_map(SetPrice)];
    let report = check(Stock::<{ fault::NONE }>::default(), calls).unwrap_or_else(|refuted| panic!("{refuted}"));
    assert_eq!(report.warnings(), [] as [String; 0]);
    assert!(report.states > 1000 && report.executed_calls > 500, "{report}");
}

#[test]
fn missing_conflicts() {
    let relation = Relation::PermissibleConflict { method: "Take", with: "Take" };
    assert_eq!(refuted::<{ fault::TAKES_DO_NOT_CONFLICT }>().relation, relation);
    let refuted_of_sets = refuted::<{ fault::SETS_DO_NOT_CONFLICT }>();
    assert_eq!(refuted_of_sets.relation, Relation::StateConflict { methods: ["SetPrice", "SetPrice"] });
    assert_eq!(
        refuted_of_sets.to_string(),
        "\
`SetPrice` and `SetPrice` do not S-commute, and the coordination does not say so: declare `.conflict(SetPrice, SetPrice)`
    before                         Stock { pieces: 0, price: 0 }
    SetPrice(1)                    Stock { pieces: 0, price: 1 }
    SetPrice(1), then SetPrice(2)  Stock { pieces: 0, price: 2 }
    SetPrice(2)                    Stock { pieces: 0, price: 2 }
    SetPrice(2), then SetPrice(1)  Stock { pieces: 0, price: 1 }"
    );
    // An update that is refused after another one of its own method. It depends on `Take`, too.
    let relation = Relation::PermissibleConflict { method: "Add", with: "Add" };
    assert_eq!(exhaustively::<{ fault::ADD_IS_REFUSED_ABOVE }>().relation, relation);
}

#[test]
fn a_missing_dependency() {
    let relation = Relation::Dependency { method: "Take", on: "Add" };
    assert_eq!(refuted::<{ fault::TAKE_DOES_NOT_DEPEND }>().relation, relation);
}

#[test]
fn wrong_summaries() {
    let methods = ["Add", "Add"];
    assert_eq!(refuted::<{ fault::SUMMARY_IS_MAXIMUM }>().relation, Relation::WrongSummary { methods });
    assert_eq!(refuted::<{ fault::SUMMARY_IS_NONE }>().relation, Relation::NoSummary { methods });
    assert_eq!(refuted::<{ fault::SUMMARY_IS_OF_ANOTHER_GROUP }>().relation, Relation::NoSummary { methods });
    assert_eq!(refuted::<{ fault::REMAINDER_IS_ALL }>().relation, Relation::WrongRemainder { methods });
    assert_eq!(refuted::<{ fault::REMAINDER_IS_NONE }>().relation, Relation::WrongRemainder { methods });
}

#[test]
fn wrong_code() {
    assert_eq!(refuted::<{ fault::NEGATIVE }>().relation, Relation::Initial);
    assert_eq!(refuted::<{ fault::TAKE_IS_UNCHECKED }>().relation, Relation::Invariant { method: "Take" });
    // It is no matter of coordination that a second call breaks the invariant.
    assert_eq!(refuted::<{ fault::LAST_TAKE_IS_UNCHECKED }>().relation, Relation::Invariant { method: "Take" });
    // Nothing is changed where nothing is there.
    let refusal = refuted::<{ fault::REFUSAL_TAKES_ALL }>();
    assert_eq!(refusal.relation, Relation::RefusalChangesState { method: "Take" });
    assert_eq!(refusal.example.reached_by, ["Add(1)"]);
    assert_eq!(refuted::<{ fault::ADDS_A_COUNTER }>().relation, Relation::NotDeterministic { method: "Add" });
    assert_eq!(refuted::<{ fault::CHECK_IS_LAX }>().relation, Relation::CheckDiffers { method: "Take" });
    let panics = refuted::<{ fault::PANICS }>();
    assert_eq!(panics.relation, Relation::Panics { method: "Take" });
    assert_eq!(panics.example.lines[1], ("Take(1)".to_owned(), "too few".to_owned()));
}

#[test]
fn an_example_that_proptest_finds_is_shrunk() {
    let calls = prop_oneof![(1..1000i64).prop_map(Add), (1..1000i64).prop_map(Take)];
    let check = Check::<Stock<{ fault::TAKES_DO_NOT_CONFLICT }>>::new(Stock::default(), calls);
    let refuted = check.at_random().unwrap_err();
    assert_eq!(refuted.example.reached_by.len(), 1, "{refuted}");
    let failed = check.executions().unwrap_err();
    assert_eq!(failed.relation, Relation::ExecutionIntegrity { method: "Take" });
    assert!(failed.example.lines.len() <= 9, "{failed}");
}

#[test]
fn too_strong_coordination_is_a_warning() {
    let few = [Add(1), Add(2), Take(1), Take(2), SetPrice(1), SetPrice(2)];
    let report =
        Check::<Stock<{ fault::TOO_STRONG }>>::of(Stock::default(), few).run().unwrap_or_else(|r| panic!("{r}"));
    let unneeded = [["Add", "Add"], ["Add", "Take"], ["Add", "SetPrice"], ["Take", "SetPrice"]];
    assert_eq!(report.unneeded_conflicts, unneeded);
    assert_eq!(report.unneeded_dependencies, [["Add", "SetPrice"]]);
    assert_eq!(report.warnings().len(), 5);
}

/// A field that is not encoded.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
struct Forgetful {
    #[serde(skip)]
    value: u8,
}

methods! {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum ForgetfulUpdate: ForgetfulMethod {
        Max(u8),
    }
}

impl DataType for Forgetful {
    type Update = ForgetfulUpdate;
    type Refusal = String;

    fn apply(&mut self, ForgetfulUpdate::Max(value): &ForgetfulUpdate) -> Result<(), String> {
        self.value = self.value.max(*value);
        Ok(())
    }

    fn coordination() -> Coordination<ForgetfulMethod> {
        Coordination::none()
    }
}

#[test]
fn a_codec_that_forgets() {
    let refuted = check(Forgetful::default(), any::<u8>().prop_map(ForgetfulUpdate::Max)).unwrap_err();
    assert_eq!(refuted.relation, Relation::Codec { what: "the state".to_owned() });
}

#[test]
fn a_strategy_that_generates_nothing() {
    let none = any::<u8>().prop_filter("none is right", |_| false).prop_map(ForgetfulUpdate::Max);
    let refuted = check(Forgetful::default(), none).unwrap_err();
    assert!(matches!(refuted.relation, Relation::Strategy { .. }), "{refuted}");
}

#[test]
fn a_check_repeats_with_its_seed() {
    let calls = || prop_oneof![(1..999i64).prop_map(Add), (1..999i64).prop_map(Take)];
    let refuted = |seed| {
        let check = Check::<Stock<{ fault::TAKES_DO_NOT_CONFLICT }>>::new(Stock::default(), calls()).seed(seed);
        (check.at_random().unwrap_err(), check.executions().unwrap_err())
    };
    assert_eq!(refuted(1), refuted(1));
}
