use super::*;

/// An announcement among these nodes. Its sender knows those that are gone.
fn among(participants: &[u16], gone: &[u16]) -> ObjectDescriptor {
    ObjectDescriptor {
        path: "object".into(),
        kind: "Words".into(),
        layout: "two".into(),
        participants: participants.into(),
        regions: vec![("word".into(), 64, 8)],
        expected: Vec::new(),
        gone: gone.into(),
    }
}

/// How each of two nodes judges the other's announcement, in a session of three nodes at a time.
fn compare(mine: &[u16], theirs: &[u16], my_gone: &[u16], their_gone: &[u16]) -> (bool, bool) {
    let (mine, theirs) = (among(mine, &[]), among(theirs, their_gone));
    (mine.is_of_another_epoch(&theirs, my_gone, 3), mine.differs_by_lives(&theirs, my_gone, 3))
}

#[test]
fn participants_may_differ_by_nodes_known_to_be_gone() {
    let (all, two) = (&[0, 1, 2][..], &[0, 1][..]);
    assert_eq!(compare(all, all, &[2], &[2]), (false, true), "there is no difference");
    assert_eq!(compare(all, two, &[2], &[]), (true, true));
    assert_eq!(compare(all, two, &[], &[2]), (true, true));
    assert_eq!(compare(two, all, &[2], &[]), (true, true));
    assert_eq!(compare(all, two, &[], &[]), (false, false), "node 2 is alive");
    assert_eq!(compare(two, all, &[], &[]), (false, false), "node 2 is alive");
    assert_eq!(compare(all, &[1], &[2], &[2]), (false, false), "node 0 is alive");
}

#[test]
fn participants_differ_by_those_that_have_taken_the_rank_of_others() {
    assert_eq!(compare(&[0, 1, 2], &[1, 2, 3], &[0], &[]), (true, true), "node 3 is the next of rank 0");
    assert_eq!(compare(&[1, 2, 3], &[0, 1, 2], &[], &[0]), (true, true));
    assert_eq!(compare(&[0, 1, 2], &[1, 2, 3], &[], &[]), (false, true), "node 3 shows that node 0 has gone");
    assert_eq!(compare(&[1, 2], &[1, 2, 3], &[], &[]), (false, true), "neither counts on the one before");
    assert_eq!(compare(&[0, 1], &[1, 5], &[0], &[]), (false, true), "node 5 is not the next of rank 0");
}

#[test]
fn the_first_difference_is_named_for_both() {
    let (mine, needs) = (among(&[0, 1], &[]), [("word".to_string(), 8)]);
    assert!(mine.differs(&mine, &needs).is_none());
    let said = |theirs: &ObjectDescriptor, needs: &[(String, u64)]| {
        let differs = mine.differs(theirs, needs).expect("a difference");
        (differs.seen_here(), differs.seen_there())
    };
    let theirs = ObjectDescriptor { layout: "three".into(), ..mine.clone() };
    let (here, there) = said(&theirs, &[]);
    assert_eq!(here, "its layout is \"two\" here and \"three\" there");
    assert_eq!(there, "its layout is \"three\" here and \"two\" there");
    let theirs = ObjectDescriptor { kind: "Queue".into(), ..mine.clone() };
    assert!(said(&theirs, &[]).0.starts_with("its type"));
    let theirs = ObjectDescriptor { participants: vec![0, 1, 2], ..mine.clone() };
    assert!(said(&theirs, &[]).0.starts_with("the set of participants"));
    assert!(mine.differs_otherwise(&theirs, &needs).is_none());
    let theirs = ObjectDescriptor { expected: vec![("word".into(), 16)], ..mine.clone() };
    assert_eq!(said(&theirs, &[]).0, "region `word` in bytes is Some(8) here and Some(16) there");
    let more = [("word".to_string(), 32)];
    assert_eq!(said(&mine, &more).0, "region `word` in bytes is Some(32) here and Some(8) there");
}
