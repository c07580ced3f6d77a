use super::*;

#[test]
fn a_path_says_which_generation_it_belongs_to() {
    for (path, base, generation) in [
        ("lock", "lock", Some(0)),
        ("lock/rows/1", "lock", Some(0)),
        ("lock@12", "lock", Some(12)),
        ("lock@3/rows", "lock", Some(3)),
        ("locks", "lock", None),
        ("lock@x", "lock", None),
        ("a/lock@2", "a", Some(0)),
        ("other", "lock", None),
    ] {
        assert_eq!(generation_of(path, base), generation, "{path} of {base}");
    }
}

#[test]
fn a_home_that_is_gone_is_followed_by_its_place_or_the_next() {
    let members = [0, 6, 3].map(NodeId).to_vec(); // places 0, 2 and 3 of 4
    let again = Reopening { path: "p@1".into(), generation: 1, members, places: 4 };
    assert_eq!([0, 1, 2, 3, 7].map(|node| again.home(NodeId(node)).0), [0, 6, 6, 3, 3]);
}

#[test]
fn members_are_those_of_the_last_generation_that_has_begun() {
    let reopenings = Reopenings::default();
    let begins = |generation: u64| {
        let mut paths = reopenings.paths.lock();
        let known = paths.entry("lock".into()).or_default();
        (known.last, known.members) = (generation, vec![0, 2]);
    };
    begins(0); // called for, but not agreed on
    assert_eq!(reopenings.members_of("lock@0"), None);
    begins(3);
    let members = Some(vec![NodeId(0), NodeId(2)]);
    assert_eq!(["lock@3", "lock@3/rows"].map(|path| reopenings.members_of(path)), [members.clone(), members]);
    assert_eq!(["lock", "lock@2", "lock@4", "other@3"].map(|path| reopenings.members_of(path)), [const { None }; 4]);
    assert_eq!(["lock", "lock/rows", "lock@2"].map(|path| reopenings.is_past(path)), [true; 3]);
    assert_eq!(["lock@3", "lock@4", "locks"].map(|path| reopenings.is_past(path)), [false; 3]);
}

#[test]
fn a_node_that_gives_up_asks_for_no_reopening() {
    let reopenings = Reopenings::default();
    let says = |step| Call { path: "lock".into(), generation: 1, members: vec![0, 1], step, opened: 0 };
    let asking = || -> Vec<NodeId> {
        reopenings.paths.lock().values().flat_map(|known| known.asking().collect::<Vec<_>>()).collect()
    };
    reopenings.hear(NodeId(1), says(Step::Calls));
    assert_eq!((asking(), reopenings.asked.load()), (vec![NodeId(1)], 1));
    reopenings.hear(NodeId(1), says(Step::GivesUp));
    assert_eq!((asking(), reopenings.asked.load()), (vec![], 0));
}
