//! The analyser against the paper: categories of its types, counterexamples of wrong specifications, and what the
//! solver cannot decide.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a test measures from outside the fabric")]

use std::time::{Duration, Instant};

use farfield_hamband::analysis::Category::{ConflictFree, Conflicting, Reducible};
use farfield_hamband::analysis::{
    Analysis, Category, Counterexample, Options, Specification, States, Verdict, analyse,
};

/// Analyses a text. A machine without the solver fails the test, and the message says what to install.
fn analysed(file: &str, text: &str, options: &Options) -> Analysis {
    let spec = Specification::parse(file, text).unwrap_or_else(|error| panic!("{error}"));
    analyse(&spec, options).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn of_file(file: &str, options: &Options) -> Analysis {
    let path = format!("{}/{file}.wrdt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    analysed(file, &text, options)
}

fn of_type(name: &str) -> Analysis {
    of_file(&format!("types/{name}"), &Options::default())
}

fn of_wrong(name: &str) -> Analysis {
    of_file(&format!("tests/wrong/{name}"), &Options::default())
}

/// A type: categories, synchronisation groups, dependencies and summarisation groups, all by names.
struct Expected {
    file: &'static str,
    categories: &'static [(&'static str, Category)],
    synchronisation: &'static [&'static [&'static str]],
    dependencies: &'static [(&'static str, &'static str)],
    summarisation: &'static [&'static [&'static str]],
}

#[test]
fn every_type_has_the_categories_of_the_paper() {
    for expected in TYPES {
        let analysis = of_type(expected.file);
        assert!(analysis.is_right() && analysis.undecided == 0, "{}:\n{analysis}", expected.file);
        let categories: Vec<_> = analysis.methods.iter().map(|method| (&*method.name, method.category)).collect();
        assert_eq!(categories, expected.categories, "{}:\n{analysis}", expected.file);
        let names = |groups: &[Vec<usize>]| groups.iter().map(|group| analysis.names(group)).collect::<Vec<_>>();
        assert_eq!(names(&analysis.synchronisation_groups), expected.synchronisation, "{}", expected.file);
        assert_eq!(names(&analysis.summarisation_groups), expected.summarisation, "{}", expected.file);
        let name = |method: usize| &*analysis.methods[method].name;
        let dependencies: Vec<_> = analysis.dependencies.iter().map(|(of, on)| (name(*of), name(*on))).collect();
        assert_eq!(dependencies, expected.dependencies, "{}", expected.file);
        println!(
            "{:22} {:3} questions, {:2} skipped, {:.2} s",
            expected.file,
            analysis.questions,
            analysis.skipped,
            analysis.took.as_secs_f64()
        );
    }
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/types")).expect("the folder");
    assert_eq!(folder.count(), TYPES.len(), "a type is not in the table");
}

/// §5 has the groups and dependencies of the schemata, figures 8 and 9 the categories of CRDTs, §2 those of the
/// account, the map of accounts, and both grow-only sets. The rest is ours.
const TYPES: &[Expected] = &[
    Expected {
        file: "account",
        categories: &[("deposit", Reducible), ("withdraw", Conflicting)],
        synchronisation: &[&["withdraw"]],
        dependencies: &[("withdraw", "deposit")],
        summarisation: &[&["deposit"]],
    },
    Expected {
        file: "auction",
        categories: &[("register", Reducible), ("bid", Conflicting), ("close", Conflicting)],
        synchronisation: &[&["bid", "close"]],
        dependencies: &[("bid", "register"), ("close", "bid")],
        summarisation: &[&["register"]],
    },
    Expected {
        file: "bank_map",
        categories: &[("open", ConflictFree), ("deposit", ConflictFree), ("withdraw", Conflicting)],
        synchronisation: &[&["withdraw"]],
        dependencies: &[("deposit", "open"), ("withdraw", "open"), ("withdraw", "deposit")],
        summarisation: &[],
    },
    Expected {
        file: "counter",
        categories: &[("add", Reducible)],
        synchronisation: &[],
        dependencies: &[],
        summarisation: &[&["add"]],
    },
    Expected {
        file: "courseware",
        categories: &[
            ("addCourse", Conflicting),
            ("deleteCourse", Conflicting),
            ("enroll", Conflicting),
            ("registerStudent", ConflictFree),
        ],
        synchronisation: &[&["addCourse", "deleteCourse", "enroll"]],
        dependencies: &[("enroll", "addCourse"), ("enroll", "registerStudent")],
        summarisation: &[],
    },
    Expected {
        file: "gset",
        categories: &[("add", Reducible)],
        synchronisation: &[],
        dependencies: &[],
        summarisation: &[&["add"]],
    },
    Expected {
        file: "gset_by_element",
        categories: &[("add", ConflictFree)],
        synchronisation: &[],
        dependencies: &[],
        summarisation: &[],
    },
    Expected {
        file: "lww_register",
        categories: &[("write", Reducible)],
        synchronisation: &[],
        dependencies: &[],
        summarisation: &[&["write"]],
    },
    Expected {
        file: "movie",
        categories: &[
            ("addCustomer", Conflicting),
            ("deleteCustomer", Conflicting),
            ("addMovie", Conflicting),
            ("deleteMovie", Conflicting),
        ],
        synchronisation: &[&["addCustomer", "deleteCustomer"], &["addMovie", "deleteMovie"]],
        dependencies: &[],
        summarisation: &[],
    },
    Expected {
        file: "mv_register",
        categories: &[("write", ConflictFree)],
        synchronisation: &[],
        dependencies: &[("write", "write")],
        summarisation: &[],
    },
    Expected {
        file: "or_set",
        categories: &[("add", ConflictFree), ("remove", ConflictFree)],
        synchronisation: &[],
        dependencies: &[("remove", "add")],
        summarisation: &[],
    },
    Expected {
        file: "pn_counter",
        categories: &[("increment", Reducible), ("decrement", Reducible)],
        synchronisation: &[],
        dependencies: &[],
        summarisation: &[&["increment"], &["decrement"]],
    },
    Expected {
        file: "project_management",
        categories: &[
            ("addProject", Conflicting),
            ("deleteProject", Conflicting),
            ("worksOn", Conflicting),
            ("addEmployee", Reducible),
        ],
        synchronisation: &[&["addProject", "deleteProject", "worksOn"]],
        dependencies: &[("worksOn", "addProject"), ("worksOn", "addEmployee")],
        summarisation: &[&["addEmployee"]],
    },
    Expected {
        file: "shopping_cart",
        categories: &[("put", ConflictFree), ("remove", ConflictFree)],
        synchronisation: &[],
        dependencies: &[("put", "put"), ("remove", "put")],
        summarisation: &[],
    },
];

fn refuted(verdict: &Verdict) -> &Counterexample {
    match verdict {
        Verdict::Fails(counterexample) => counterexample,
        other => panic!("not refuted: {other:?}"),
    }
}

/// The number that a variable has in a state of a counterexample.
fn number(counterexample: &Counterexample, state: usize, variable: &str) -> i64 {
    let variables = &counterexample.states[state].variables;
    let (_, value) = variables.iter().find(|(name, _)| name == variable).expect("the variable is shown");
    value.parse().expect("a number")
}

#[test]
fn a_withdrawal_without_a_check_is_wrong() {
    let analysis = of_wrong("withdraw_unchecked");
    assert!(!analysis.is_right() && analysis.methods[0].is_guarded.holds());
    let example = refuted(&analysis.methods[1].is_guarded);
    let (before, after) = (number(example, 0, "balance"), number(example, 1, "balance"));
    assert!(before >= 0 && after < 0, "{example}");
    assert_eq!(example.calls, [format!("withdraw({})", before - after)]);
    assert_eq!(example.causes, ["breaks the invariant: the balance is not negative: balance >= 0"]);
    let report = analysis.to_string();
    assert!(report.starts_with("WRONG: withdraw breaks the invariant where its requirements hold: add a `requires`"));
}

#[test]
fn an_enrolment_without_its_course_is_wrong() {
    let analysis = of_wrong("enroll_unchecked");
    let example = refuted(&analysis.methods[1].is_guarded);
    // The course is missing before, and the student is not.
    assert_eq!(example.calls, ["enroll(student1, course1)"]);
    assert_eq!(example.states[1].label, "enroll(student1, course1)");
    let before: Vec<_> = example.states[0].variables.iter().map(|(_, value)| &**value).collect();
    assert!(before[0].contains("student1") && !before[1].contains("course1"), "{example}");
    assert!(example.states[1].variables[0].1.contains("(student1, course1)"), "{example}");
    assert!(example.causes[0].contains("enrolments refer to courses"), "{example}");
}

#[test]
fn a_register_without_times_conflicts() {
    let analysis = of_wrong("last_applied_wins");
    assert!(analysis.is_right(), "as a sequential type it is");
    assert_eq!(analysis.category("write"), Some(Conflicting));
    let example = refuted(&analysis.state_commutes[0].verdict);
    assert_eq!(example.causes, ["the results differ in content"]);
    let result = |state: usize| &*example.states[state].variables[0].1;
    assert!(result(2) != result(4) && result(2).starts_with("some(value"), "{example}");
}

#[test]
fn a_summary_that_is_none_is_wrong_and_another_is_found() {
    let analysis = of_wrong("summary_of_maxima");
    assert!(!analysis.is_right());
    assert_eq!(refuted(&analysis.summaries[0].verdict).causes, ["the results differ in value"]);
    assert_eq!(analysis.summaries[1].text, "add(a), add(b) = add(a + b)");
    assert_eq!(analysis.category("add"), Some(Reducible));
}

#[test]
fn an_initial_state_without_the_invariant_is_wrong() {
    let analysis = of_wrong("initially_negative");
    let example = refuted(&analysis.initial);
    assert_eq!((&*example.states[0].label, number(example, 0, "balance")), ("initially", -1));
}

#[test]
fn two_methods_may_be_summarised_by_one_of_them() {
    let text = "
        sort E
        type Set {
            state { all: set<E> = {} }
            update add(e: E) { all := all union {e} }
            update add_all(es: set<E>) { all := all union es }
            summary add(a), add(b) = add_all({a, b})
            summary add(a), add_all(bs) = add_all({a} union bs)
            summary add_all(cs), add(b) = add_all(cs union {b})
        }";
    let analysis = analysed("set", text, &Options::default());
    assert_eq!(analysis.summarisation_groups, [[0, 1]], "{analysis}");
    assert_eq!((analysis.category("add"), analysis.category("add_all")), (Some(Reducible), Some(Reducible)));
}

#[test]
fn a_summary_may_depend_on_the_arguments() {
    let text = "
        type Counter {
            state { n: int = 0 }
            update up(by: nat) { n := n + by }
            update down(to: nat) { n := n - to }
            summary up(a), up(b) = up(a + b)
            summary down(a), down(b) = down(a + b)
            summary up(a), down(b) = if a < b then down(b - a) else up(a - b)
            summary down(a), up(b) = if a < b then up(b - a) else down(a - b)
        }";
    let analysis = analysed("counter", text, &Options::default());
    assert!(analysis.is_right(), "{analysis}");
    assert_eq!(analysis.summarisation_groups, [[0, 1]], "{analysis}");
    // Its arguments have to be natural numbers, too.
    let wrong = analysed(
        "counter",
        &text.replace("if a < b then down(b - a) else up(a - b)", "up(a - b)"),
        &Options::default(),
    );
    assert!(refuted(&wrong.summaries[2].verdict).causes[0].contains("refused"), "{wrong}");
}

#[test]
fn the_invariant_may_be_checked_by_the_runtime() {
    let text = "
        type Account {
            state { balance: int = 0 }
            invariant balance >= 0
            update deposit(amount: nat) { balance := balance + amount }
            update withdraw(amount: nat) {
                requires invariant else \"the balance is too low\"
                balance := balance - amount
            }
        }";
    let analysis = analysed("account", text, &Options::default());
    assert!(analysis.is_right(), "{analysis}");
    assert_eq!(analysis.category("withdraw"), Some(Conflicting));
    assert_eq!(analysis.dependencies_of("withdraw"), ["deposit"]);
}

/// All states, with the invariant or without: what the definitions say literally.
#[test]
fn the_literal_reading_finds_more_than_the_paper_reports() {
    let options = Options { states: States::All, ..Options::default() };
    let courseware = of_file("types/courseware", &options);
    assert!(courseware.dependencies_of("deleteCourse").contains(&"addCourse"), "{courseware}");
    let bank = of_file("types/bank_map", &options);
    assert_eq!(bank.category("deposit"), Some(Conflicting), "{bank}");
    // Where the invariant is one number, both readings agree.
    let account = of_file("types/account", &options);
    assert_eq!((account.category("deposit"), account.category("withdraw")), (Some(Reducible), Some(Conflicting)));
    assert_eq!(account.dependencies_of("withdraw"), ["deposit"]);
}

/// Whether sums of three cubes commute with anything is nothing that the solver finds out.
const HARD: &str = "
    type Cubes {
        state { x: int = 0 y: int = 0 z: int = 0 found: bool = false }
        update move(a: int, b: int, c: int) {
            x := a y := b z := c
            found := found or a * a * a + b * b * b + c * c * c = 114
        }
        update ask(n: int) { found := if found then n * n * n * n + n != x * x * x + y * y * y else false }
    }";

#[test]
fn a_pair_undecided_in_time_counts_as_conflict_and_says_so() {
    let options = Options { timeout: Duration::from_millis(1), ..Options::default() };
    let start = Instant::now();
    let analysis = analysed("cubes", HARD, &options);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    assert!(analysis.undecided > 0, "{analysis}");
    let undecided = analysis.state_commutes.iter().find(|pair| matches!(pair.verdict, Verdict::Undecided(_)));
    let pair = undecided.unwrap_or_else(|| panic!("all was decided in 1 ms:\n{analysis}"));
    assert!(analysis.conflicts.contains(&(pair.first, pair.second)), "{analysis}");
    assert_eq!(analysis.methods[pair.first].category, Conflicting);
    let report = analysis.to_string();
    assert!(report.contains("NOT DECIDED whether") && report.contains("it counts as that: they conflict"), "{report}");
    assert!(report.contains("NOT DECIDED, which count as not proved: raise --timeout"), "{report}");
}

/// Nested types: a map of maps, a map of sets, options of tuples; and effects with quantifiers, whose values the solver
/// does not tell.
#[test]
fn all_types_are_translated() {
    let text = "
        sort K, V
        type Nested {
            state {
                deep: map<K, map<int, set<V>>> = {}
                sets: map<K, rel<V, int>> = {}
                last: option<(K, int)> = none
                all: bool = true
            }
            update put(k: K, n: int, v: V) {
                deep := deep[k := (if k in deep then deep[k] else {})[n := {v}]]
                last := some((k, n))
            }
            update add(k: K, v: V, n: int) {
                sets := if k in sets then sets[k := sets[k] union {(v, n)}] else sets[k := {(v, n)}]
            }
            update drop(k: K) { deep := deep without k sets := sets without k }
            update look(k: K) { all := all and (k in sets implies forall (v, n) in sets[k] . n > 0) }
        }";
    let analysis = analysed("nested", text, &Options::default());
    assert!(analysis.undecided == 0, "{analysis}");
    assert!(analysis.conflicts.contains(&(0, 0)) && analysis.conflicts.contains(&(1, 2)), "{analysis}");
    assert!(!analysis.conflicts.contains(&(1, 1)) && !analysis.conflicts.contains(&(2, 2)), "{analysis}");
    assert!(analysis.conflicts.contains(&(1, 3)), "{analysis}");
}

#[test]
fn the_picture_is_well_formed_and_has_every_edge() {
    for file in ["courseware", "auction", "pn_counter", "movie"] {
        let analysis = of_type(file);
        let picture = farfield_hamband::analysis::svg(&analysis);
        let document = roxmltree::Document::parse(&picture).expect("well-formed");
        let titles: Vec<_> =
            document.descendants().filter(|node| node.has_tag_name("title")).filter_map(|node| node.text()).collect();
        assert_eq!(titles.len(), analysis.conflicts.len() + analysis.dependencies.len(), "{file}");
        let texts: Vec<_> =
            document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|node| node.text()).collect();
        for method in &analysis.methods {
            assert!(texts.contains(&&*method.name), "{file}: {} in {texts:?}", method.name);
        }
    }
}

/// The page's example is the account, and its report begins as the page has it.
#[test]
fn the_page_is_true() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/hamband.md");
    let page = std::fs::read_to_string(page).expect("the page is in the checkout");
    let block = |start: &str| {
        let from = page.find(start).unwrap_or_else(|| panic!("{start} is in the page")) + start.len();
        page[from..].split("```").next().expect("a block").to_owned()
    };
    let written = block("```wrdt\n");
    assert_eq!(written, include_str!("../types/account.wrdt"));
    let report = analysed("account.wrdt", &written, &Options::default()).to_string();
    // Examples are those of one version of z3, but not what they are about.
    let head = |text: &str| {
        text.lines()
            .filter(|line| !line.starts_with("    ") && !line.contains(" s"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(head(&block("```text\nAccount\n")), head(&report)[1..]);
    let mistake = written.replace("balance >= 0", "balance");
    let error = Specification::parse("account.wrdt", &mistake).expect_err("no condition").to_string();
    assert_eq!(block("```text\naccount.wrdt").trim_end(), error.strip_prefix("account.wrdt").expect("the file"));
}
