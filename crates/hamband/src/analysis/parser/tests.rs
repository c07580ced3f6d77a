use super::super::syntax::{Kind, Operator};
use super::*;

/// Where and what is wrong with a text, and what to do.
fn refused(text: &str) -> String {
    let mistake = parse(text).expect_err(text);
    format!("{}:{}: {}: {}", mistake.at.line, mistake.at.column, mistake.what, mistake.help)
}

fn body(update: &str) -> String {
    format!("type T {{ state {{ n: int = 0 }} update u(a: int) {{ {update} }} }}")
}

#[test]
fn a_whole_specification_is_read() {
    let text = "
        sort Key
        type Map {
            state { all: map<Key, int> = {} some: option<(Key, int)> = none }
            invariant forall k in keys(all) . all[k] >= 0 // of all keys
                and k in all
            invariant \"named\": true
            update put(k: Key, n: nat, unique t: int) {
                requires k not in all else \"it is there\"
                requires invariant else \"no\"
                all := all[k := n]
            }
            query get(k: Key) -> int = all[k]
            summary put(a, b, c), put(d, e, f) = if a = d then put(a, b + e, c) else put(d, e, f)
        }";
    let written = parse(text).expect("it is right");
    assert_eq!((written.name.as_str(), written.sorts.len(), written.state.len()), ("Map", 1, 2));
    let names: Vec<_> = written.invariants.iter().map(|invariant| &*invariant.name).collect();
    assert_eq!(names, ["forall k in keys(all) . all[k] >= 0 and k in all", "named: true"]);
    let update = &written.updates[0];
    let flags: Vec<_> = update.parameters.iter().map(|p| (p.ty.is_natural, p.is_unique)).collect();
    assert_eq!(flags, [(false, false), (true, false), (false, true)]);
    assert!(update.requirements[0].condition.is_some() && update.requirements[1].condition.is_none());
    assert_eq!((update.effects.len(), written.queries.len(), written.summaries.len()), (1, 1, 1));
}

#[test]
fn operators_bind_as_the_page_says() {
    let text = body("n := if not a = 1 and a < 2 + 3 * 4 or a in s implies false then 1 else 2");
    let written = parse(&text).expect("it is right");
    let Kind::If(condition, ..) = &written.updates[0].effects[0].1.kind else { panic!("no choice") };
    let Kind::Binary(Operator::Implies, left, _) = &condition.kind else { panic!("no implication") };
    let Kind::Binary(Operator::Or, left, _) = &left.kind else { panic!("no disjunction") };
    let Kind::Binary(Operator::And, left, right) = &left.kind else { panic!("no conjunction") };
    assert!(matches!(&left.kind, Kind::Not(of) if matches!(of.kind, Kind::Binary(Operator::Equal, ..))));
    let Kind::Binary(Operator::Less, _, sum) = &right.kind else { panic!("no comparison") };
    assert!(
        matches!(&sum.kind, Kind::Binary(Operator::Add, _, right) if matches!(right.kind, Kind::Binary(Operator::Multiply, ..)))
    );
}

#[test]
fn a_mistake_names_its_place_the_expected_token_and_a_remedy() {
    for (text, expected) in [
        ("", "1:1: expected `type`, found the end of the file: a specification is `type Name"),
        ("typ T {}", "1:1: expected `type`, found `typ`"),
        (
            "type T {\n  stat { }\n}",
            "2:3: expected a part of the type or `}`, found `stat`: a part begins with `state`",
        ),
        ("type T { state { n int = 0 } }", "1:20: expected `:`, found `int`: write the variable's type"),
        ("type T { state { n: int } }", "1:25: expected `=`, found `}`: write the initial value"),
        ("type T { state { n: set = {} } }", "1:21: `set` lacks the types of what is in it: types are"),
        ("type T { state { n: set<int, int> = {} } }", "1:21: `set` has 1 type in it, not 2"),
        ("type T { state { n: rel<int> = {} } }", "1:21: `rel` has two types or more"),
        ("type T { state { n: set<nat> = {} } }", "1:25: `nat` is the whole type of a parameter"),
        ("type T { update in() {} }", "1:17: expected the name of the update, found `in`: `in` is a word"),
        ("type T {} type U {}", "1:11: expected the end of the file, found `type`: a file has one type"),
        (&body("n = 1"), ":= `, found"),
        (&body("n := "), "expected an expression, found `}`: an expression begins with a name"),
        (&body("n := 1 requires true else \"x\""), "`requires` stands after an effect: move it"),
        (&body("requires true n := 1"), "expected `else`, found `n`: write why a call is refused"),
        (&body("n := f(1)"), "there is no function `f` of 1 arguments: functions are value(option)"),
        (&body("n := if a then 1"), "expected `else`, found `}`"),
        (&body("requires 1 < a < 3 else \"x\""), "a comparison follows another: write `and`"),
        (&body("requires forall x: int true else \"x\""), "expected `.`, found `true`: write `.` between"),
        (&body(&format!("n := {}1{}", "(".repeat(200), ")".repeat(200))), "nested more than 100 deep: split it"),
        (&body(&format!("n := {}1", "1 + ".repeat(200))), "more than 100 operators follow each other"),
        (&body(&format!("n := {}1", "- ".repeat(200))), "nested more than 100 deep: split it"),
    ] {
        let found = refused(text);
        assert!(found.contains(expected.trim_start_matches(":= `, ")), "{text}:\n{found}\n{expected}");
    }
}
