//! Implementations show no outcome that their specification forbids, and the one with a mistake does.

use std::path::Path;
use std::rc::Rc;

use mowgli::litmus::Implementation;
use mowgli::model::Models;
use mowgli::random::{CLIENTS, client};
use mowgli::refine::{NotChecked, Refinement, refine};

fn refined(test: &str, implementations: &[&str]) -> Refinement {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("litmus");
    let file = ["paper", "stamps"].map(|part| suite.join(part).join(format!("{test}.litmus")));
    let file = file.into_iter().find(|file| file.exists()).expect("a test of the suite");
    let text = std::fs::read_to_string(&file).expect("a test");
    let implementations = named(implementations);
    refine(&file.display().to_string(), &text, &Models::builtin(), &implementations)
        .unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn is_sound(test: &str, implementations: &[&str]) {
    let refinement = refined(test, implementations);
    let unsound: Vec<_> = refinement.unsound().collect();
    assert!(unsound.is_empty(), "{test} over {implementations:?}: {:?} {unsound:?}", refinement.names);
    assert!(!refinement.shown.is_empty(), "{test} over {implementations:?} shows nothing");
}

#[test]
fn shared_variables_over_rdma() {
    for test in ["fig_5", "fig_5_wait", "fig_9a", "fig_9b"] {
        is_sound(test, &["sv_rdma"]);
    }
    // The outcomes that the specification allows are shown, too.
    let refinement = refined("fig_5_wait", &["sv_rdma"]);
    assert_eq!(refinement.specified, refinement.shown);
}

#[test]
fn the_barrier_over_shared_variables() {
    for test in ["fig_6", "fig_12", "fig_22", "fig_23", "cw_bar_cr"] {
        is_sound(test, &["bal_sv"]);
    }
    is_sound("fig_6", &["bal_sv", "sv_rdma"]);
}

/// Appendix D of the LOCO paper: what one thread has put somewhere may be missed behind the barrier.
#[test]
fn a_barrier_without_its_fence_is_unsound() {
    let refinement = refined("fig_22", &["bal_no_fence"]);
    let unsound: Vec<_> = refinement.unsound().map(|state| state[0].to_string()).collect();
    assert_eq!((refinement.names, unsound), (vec!["2:a".to_owned()], vec!["0".to_owned()]));
    assert_eq!(refined("cw_bar_cr", &["bal_no_fence"]).unsound().count(), 1);
}

#[test]
fn the_ring_buffer_over_shared_variables() {
    for test in ["fig_13", "fig_13_no_fence", "fig_23", "w1"] {
        is_sound(test, &["rbl_sv"]);
    }
    // Messages of other sizes.
    is_sound("rbl_pair", &["rbl_sv"]);
    is_sound("fig_23", &["rbl_sv", "bal_sv"]);
    // The outcome that the paper's own `so` would forbid.
    let refinement = refined("w1", &["rbl_sv"]);
    let has = |state: &Vec<mowgli::litmus::Value>| {
        let of = |name: &str| state[refinement.names.iter().position(|it| it == name).expect("a register")].to_string();
        (of("0:r"), of("0:a"), of("1:b")) == ("1".into(), "0".into(), "none".into())
    };
    assert!(refinement.shown.iter().any(has));
}

/// Waits by polls also wait for older operations, so they show less.
#[test]
fn waits_over_polls() {
    for test in ["fig_4_top", "fig_4_bottom", "fig_4x", "fig_4y", "fig_8c", "g1", "g2", "l1", "wait_other", "nlr_wt_cw"]
    {
        is_sound(test, &["rdmawait_rdmatso"]);
    }
    for test in
        ["nlw_cr", "nlw_wt_cr", "nrw_nrw_threads", "nrw_nlw", "nrw_nlw_nodes", "nlw_nrw", "cas_nlr", "nrw_rf_other"]
    {
        is_sound(test, &["rdmawait_rdmatso"]);
    }
}

#[test]
fn values_of_two_words_between_guards() {
    // Of these values 16a + b, say, would be the same for a mixture.
    is_sound("msw_get_large", &["msw_hash"]);
    for test in ["msw_put", "msw_put_twice", "msw_get"] {
        is_sound(test, &["msw_guards"]);
        is_sound(test, &["msw_hash"]);
    }
    // Appendix D of the LOCO paper, and mistakes that it does not name: each shows a value of which half is another's.
    for (test, implementation) in [
        ("msw_put", "msw_guards_in_order"),
        ("msw_put_twice", "msw_guards_no_wait"),
        ("msw_get", "msw_guards_no_fence"),
    ] {
        let refinement = refined(test, &[implementation]);
        let unsound: Vec<_> = refinement.unsound().map(|state| state[0].to_string()).collect();
        assert!(!unsound.is_empty(), "{implementation}");
        println!("{implementation}: {unsound:?}");
    }
}

/// The result of a call may be stored in a register that its arguments are read from.
#[test]
fn a_result_may_replace_an_argument() {
    let mut models = Models::builtin();
    let library = "library cell object box() starts 0 method Swap(x: box, v) -> v { CR } let so = 0";
    models.load("cell", library).unwrap_or_else(|error| panic!("{error}"));
    let client = "cell t { box x; } P0@1 { let a = 5; let a = Swap(x, a); } exists (true)";
    let shown = |rest: &str| -> Vec<String> {
        let text = "implementation i of cell over x86tso object box x { word x.c @ 1; } Swap(x, v) { Write(x.c, v);";
        let implementation = Rc::new(Implementation::parse("i", &format!("{text} {rest} }}"), &[]).unwrap());
        let refinement = refine("t", client, &models, &[implementation]).unwrap_or_else(|error| panic!("{error}"));
        refinement.shown.iter().map(|state| state[0].to_string()).collect()
    };
    assert_eq!(shown("return v + 1;"), ["6"]);
    // A call without a result returns none.
    assert_eq!(shown(""), ["none"]);
}

/// What guards ask of their clients: each shows half of one value and half of another otherwise.
#[test]
fn guards_are_for_one_writer_and_for_gets_that_were_waited_for() {
    for threads in [
        "P0@1 { Write(x, (1, 1)); Put(d, y, x); } P1@2 { Write(y, (3, 3)); let a = TryRead(y); }",
        "P0@1 { Write(x, (1, 1)); } P1@2 { Get(d, y, x); let a = TryRead(y); }",
    ] {
        let text = format!("msw t {{ wide x@1 = (0, 0); wide y@2 = (0, 0); }} {threads} exists (true)");
        let refined = |name| refine("t", &text, &Models::builtin(), &named(&[name])).unwrap();
        assert!(refined("msw_guards").unsound().next().is_some(), "{threads}");
        assert!(refined("msw_hash").unsound().next().is_none(), "{threads}");
    }
}

fn named(names: &[&str]) -> Vec<Rc<Implementation>> {
    let all = Implementation::builtin();
    names.iter().map(|name| Rc::clone(all.iter().find(|it| it.name == *name).expect("it is built in"))).collect()
}

/// `FARFIELD_PROGRAMS` changes how many clients; `FARFIELD_TEST_LONG` has more of them, and CI sets it.
#[test]
fn random_clients_see_nothing_that_the_specification_forbids() {
    let some = if std::env::var_os("FARFIELD_TEST_LONG").is_some() { 40 } else { 15 };
    let clients = std::env::var("FARFIELD_PROGRAMS").map_or(some, |text| text.parse().expect("a number"));
    let models = Models::builtin();
    for (library, implementations) in CLIENTS {
        let implementations = named(implementations);
        // A message is two cells, so a client of rings takes as long as five others.
        let clients = if library == "rbl" { clients / 5 } else { clients };
        let (mut too_large, mut less, mut outcomes) = (0, 0, 0);
        for seed in 0..clients {
            let text = client(library, seed);
            let refinement = match refine("client", &text, &models, &implementations) {
                Ok(refinement) => refinement,
                Err(NotChecked::TooLarge(_)) => {
                    too_large += 1;
                    continue;
                }
                Err(error) => panic!("{error}\n{text}"),
            };
            let unsound: Vec<_> = refinement.unsound().collect();
            assert!(
                unsound.is_empty(),
                "{text}\n{:?}\nspecified: {:?}\nunsound: {unsound:?}",
                refinement.names,
                refinement.specified
            );
            outcomes += refinement.shown.len();
            less += usize::from(refinement.shown != refinement.specified);
        }
        println!(
            "{library}: {clients} clients, {outcomes} outcomes, {less} with fewer than specified, {too_large} too large"
        );
        assert!(too_large * 10 <= clients, "{library}: {too_large} of {clients} are too large");
    }
}

/// The same clients find the mistakes of the wrong implementations, where the right one beside them is sound.
#[test]
fn random_clients_find_mistakes() {
    let models = Models::builtin();
    for (library, right, wrong) in [
        ("bal", "bal_sv", "bal_no_fence"),
        ("msw", "msw_guards", "msw_guards_in_order"),
        ("msw", "msw_guards", "msw_guards_no_fence"),
        ("msw", "msw_guards", "msw_guards_no_wait"),
    ] {
        let (right, implementations) = (named(&[right]), named(&[wrong]));
        let is_sound = |seed: &u64, implementations: &[Rc<Implementation>]| {
            let refinement = refine("client", &client(library, *seed), &models, implementations);
            refinement.map(|refinement| refinement.unsound().next().is_none())
        };
        let found = (0..2000).find(|seed| {
            matches!(is_sound(seed, &implementations), Ok(false)) && matches!(is_sound(seed, &right), Ok(true))
        });
        println!("{wrong}: client {found:?}");
        assert!(found.is_some(), "{wrong}");
    }
}

#[test]
fn mistakes_in_implementations_are_told_with_their_place() {
    let client = "sv t { shared x; } P0@1 { Write(x, 1); let a = Read(x); Bcast(d, x, {1}); } exists (true)";
    let said = |text: &str| match Implementation::parse("i", text, &Implementation::builtin()) {
        Err(error) => error.to_string(),
        Ok(implementation) => match refine("t", client, &Models::builtin(), &[Rc::new(implementation)]) {
            Err(error) => error.to_string(),
            Ok(_) => String::new(),
        },
    };
    let with = |rest: &str| format!("implementation i of sv over rdmawait object shared x {{ word x.c @ 1; }} {rest}");
    for (text, what) in [
        ("implementation i", "i:1:17: `of` or `extends` is expected here, and this is the end".into()),
        ("implementation i extends j", "i:1:26: there is no implementation `j`; known are `sv_rdma`, ".into()),
        ("implementation i of", "i:1:20: the name of a library is expected here, and this is the end".into()),
        ("implementation i of sv over rdma_wait", "i:1:21: there is no model `rdma_wait`".into()),
        (
            "implementation i of sv over rdmawait",
            "t:1:8: the implementation `i` has no objects of the kind `shared`".to_owned(),
        ),
        (&with("Write(x, v) { } Write(x, v) { }"), "there is a method `Write` already".into()),
        (&with("object shared x { }"), "what a `shared` is made of was said before".into()),
        (
            "implementation i of sv over rdmawait global { for a in 0..64 { for b in 0..64 { for c in 0..64 { } } } }",
            "rounds of loops in all".into(),
        ),
        (&with(""), "t:1:27: the implementation `i` has no method `Write`".into()),
        (&with("Write(x) { }"), "t:1:27: `Write` is called with 2 arguments, and the implementation's takes 1".into()),
        (&with("Write(x, v) { Write(x.d, v); }"), "there is no `x.d`".into()),
        (&with("Write(x, v) { Write(x.c, w); }"), "`v` is a value, and P0 has no register `w` here".into()),
        (&with("Write(x, v) { for n in x.members { } }"), "`x` has no threads `members`".into()),
        (&with("Write(x, v) { for n in nodes { "), "this block has no end".into()),
        (&with("Write(x, v) { Bcast(d, x, {1}); }"), "there is no method `Bcast`".into()),
    ] {
        assert!(said(text).contains(&what), "{text}\n{}", said(text));
    }
}
