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
