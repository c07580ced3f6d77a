use super::*;

fn refused(text: &str) -> String {
    Specification::parse("t.wrdt", text).expect_err(text).to_string()
}

/// A type with state variables of many types, and this in it.
fn with(part: &str) -> String {
    format!(
        "sort Id\ntype T {{\n\
         state {{ n: int = 0 b: bool = true s: set<Id> = {{}} r: rel<Id, int> = {{}} m: map<Id, int> = {{}} o: option<Id> = none }}\n\
         {part}\n}}"
    )
}

#[test]
fn expressions_of_all_types_are_accepted() {
    let text = with(
        "invariant forall x in s, (y, k) in r, z: Id . x = y implies k >= 0 or z in m
         invariant o != none implies value(o) in s and {} != s and none = o
         invariant exists p in r . p = (value(o), 1) or keys(m) subset s
         update u(a: Id, t: set<Id>, k: nat) {
             requires a in t else \"arguments alone\"
             requires a not in s else \"the state\"
             requires invariant else \"the post-state\"
             s := { x in s union t | x != a } minus {}
             r := { (x, i) in r | i < k } union {(a, -k)}
             m := if a in m then m[a := max(m[a], k)] else m without a
             o := if b then some(a) else none
             n := if n = 0 then min(n, 2 * k) else n - 1
         }
         query q(a: Id) -> bool = a in m iff b
         summary u(a, t, k), u(c, v, l) = if a = c then u(a, t union v, k + l) else u(c, v, l)",
    );
    let spec = Specification::parse("t.wrdt", &text).unwrap_or_else(|error| panic!("{error}"));
    let update = &spec.updates[0];
    assert_eq!((update.of_arguments.len(), update.requirements.len(), update.effects.len()), (1, 1, 5));
    assert_eq!(update.checks_invariant.as_deref(), Some("the post-state"));
}

#[test]
fn a_wrong_type_is_reported_with_its_place_and_a_remedy() {
    for (part, expected) in [
        ("update u() { n := true }", "expected int, found bool"),
        ("update u() { n := s }", "expected int, found set<Id>"),
        ("update u(a: Id) { s := a }", "expected set<Id>, found Id: put it in braces"),
        ("update u(a: Id) { o := a }", "expected option<Id>, found Id: write `some(…)`"),
        ("invariant o in s", "expected Id, found option<Id>: write `value(…)`"),
        ("invariant n", "expected bool, found int: compare it"),
        ("invariant x = 0", "`x` means nothing here: known here are `n`, `b`"),
        ("invariant n in n", "expected a set or a map, found int"),
        ("invariant m[n] = 0", "expected Id, found int"),
        ("invariant s[n] = 0", "expected a map, found set<Id>: only maps have keys"),
        ("invariant {} = {}", "the type of `{}` is not known here"),
        ("invariant forall x in m . true", "expected a set, found map<Id, int>: write `keys(map)`"),
        ("invariant forall (x, y, z) in r . true", "3 names are bound to a (Id, int)"),
        ("invariant forall x: set<Id> . true", "a quantifier cannot range over set<Id>"),
        ("invariant forall n: Id . true", "`n` is the name of a state variable already: choose another"),
        ("invariant forall x: Key . true", "`Key` is no type: declare it before the type: `sort Key`"),
        ("invariant n union n = n", "expected a set, found int: this operator is one of sets"),
        ("update u() { x := 1 }", "`x` is no state variable: assign one of `n`, `b`"),
        ("update u() { n := 1 n := 2 }", "`n` is the name of a variable that this update assigns already"),
        ("update u() { } update u() { }", "`u` is the name of a method already: the first one is in line 4"),
        ("update u(n: int) { }", "`n` is the name of a state variable already"),
        ("update u(unique t: set<Id>) { }", "a set<Id> cannot be unique"),
        ("query q(unique t: Id) -> int = 1", "a parameter of a query is `unique`"),
        ("query q() -> int = true", "expected int, found bool"),
        ("update u(a: int) { } summary u(c), v(d) = u(a)", "`v` is no update: the updates are `u`"),
        ("update u(a: int) { } summary u(c), u(d) = u(c, d)", "`u` has 1 parameters, not 2"),
        (
            "update u(a: int) { } summary u(c), u(d) = u(n)",
            "the state variable `n` cannot be used here: a summary is made",
        ),
    ] {
        let found = refused(&with(part));
        assert!(found.starts_with("t.wrdt:4:") && found.contains(expected), "{part}:\n{found}");
    }
    let of_state = |ty: &str| refused(&format!("sort Id\ntype T {{ state {{ a: int = 0 x: {ty} }} }}"));
    assert!(of_state("nat = 0").contains("2:32: `nat` is a type of parameters and results only: write `int`"));
    assert!(of_state("set<set<int>> = {}").contains("set<int> cannot be compared as an element or a key"));
    assert!(of_state("int = a").contains("`a` means nothing here: an initial value is the same on all replicas"));
}

#[test]
fn an_error_shows_the_line() {
    let shown = refused("type T {\n\tstate { n: int = true }\n}");
    let line = "2:19: expected int, found bool: change the expression, or the type where it is declared";
    assert_eq!(shown, format!("t.wrdt:{line}\n2 | \tstate {{ n: int = true }}\n  | \t{}^", " ".repeat(17)));
}

/// Texts that are cut off, or lack a word, are refused in good order, or accepted.
#[test]
fn no_text_makes_it_panic() {
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/types")).expect("the folder") {
        let text = std::fs::read_to_string(entry.expect("a file").path()).expect("a text");
        let words: Vec<&str> = text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()).collect();
        for n in 0..words.len() {
            let without = [&words[..n], &words[n + 1..]].concat().concat();
            let twice = [&words[..=n], &words[n..]].concat().concat();
            for text in [words[..n].concat(), without, twice] {
                if let Err(error) = Specification::parse("t", &text) {
                    let lines = text.lines().count().max(1) as u32;
                    assert!(error.position.line <= lines && !error.help.is_empty(), "{error}");
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
