use super::layout::{Kind, Label, Layout, fit};
use super::samples::{Recorder, barrier, busy, mutex, torn};
use super::story::Story;
use super::{Lane, Timeline, What};

fn all() -> [(&'static str, Timeline); 6] {
    [
        ("barrier", barrier()),
        ("torn", torn()),
        ("mutex", mutex()),
        ("busy", busy(400, true)),
        ("calm", busy(600, false)),
        ("empty", Timeline::default()),
    ]
}

fn count(page: &str, what: &str) -> usize {
    page.matches(what).count()
}

/// A thread of n0 and one of n1; the first issues a put to the second's node.
fn one_put() -> Recorder {
    let mut r = Recorder::new("one put", "", &[("writer", 0), ("reader", 1)]);
    r.add(0, What::Issue { op: 1, verb: "put", peer: 1, text: "put 1 → n1 z".into() });
    r
}

#[test]
fn texts_are_escaped() {
    let evil = "</script><b>\"'&";
    let mut r = Recorder::new(evil, evil, &[(evil, 0)]);
    r.timeline.replay = evil.into();
    r.add(0, What::Read { cell: evil.into(), value: 1, buffered: true });
    r.add(0, What::Issue { op: 1, verb: "put", peer: 0, text: evil.into() });
    r.add(0, What::Lock { name: evil.into() });
    r.add(0, What::Note { text: evil.into() });
    r.fail(1, 0, evil);
    let page = r.timeline.to_html();
    assert_eq!(count(&page, "<b>\""), 0);
    assert_eq!(count(&page, "</script>"), 1);
}

#[test]
fn every_event_is_in_the_table_once_and_has_one_mark() {
    for (name, timeline) in all() {
        let page = timeline.to_html();
        let numbers = |before: &str| -> Vec<usize> {
            page.split(before).skip(1).map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
        };
        assert_eq!(numbers("<tr id=\"e"), Vec::from_iter(0..timeline.events.len()), "{name}");
        let mut marks = numbers(" id=\"m");
        marks.sort_unstable();
        let waits_only = |rank: &usize| matches!(timeline.events[*rank].what, What::Waits { .. });
        let drawn = (0..timeline.events.len()).filter(|rank| marks.contains(rank) || !waits_only(rank));
        assert_eq!(marks, Vec::from_iter(drawn), "{name}");
    }
}

#[test]
fn an_operation_that_never_completes_is_drawn_to_the_end() {
    let mut r = one_put();
    for _ in 0..9 {
        r.add(1, What::Read { cell: "z".into(), value: 0, buffered: false });
    }
    let page = r.timeline.to_html();
    assert!(page.contains("data-a=\"0\" data-b=\"9.5\""), "ten columns end at 9.5");
    assert!(page.contains(">not complete</text>"));
}

#[test]
fn a_read_between_completion_and_landing_is_pointed_out() {
    for lands in [false, true] {
        let mut r = one_put();
        r.add(0, What::Completed { op: 1 });
        let step = r.add(1, What::Read { cell: "z".into(), value: 0, buffered: false });
        if lands {
            r.add(0, What::Landed { op: 1, cell: "n1 z".into(), value: 1 });
        }
        r.fail(step, 1, "z is 0");
        let story = Story::of(&r.timeline);
        assert_eq!(story.hints.len(), 1);
        assert_eq!((story.hints[0].read, story.hints[0].lands), (2, lands.then_some(3)));
        assert_eq!(story.ops[&1].late(), Some(lands.then_some(3)));
        let page = r.timeline.to_html();
        assert!(page.contains("<em>not in memory</em>"));
        assert_eq!(page.contains(">not landed</text>"), !lands);
    }
}

#[test]
fn reads_in_order_are_not_pointed_out() {
    let mut r = one_put();
    r.add(1, What::Read { cell: "z".into(), value: 0, buffered: false });
    r.add(0, What::Landed { op: 1, cell: "z".into(), value: 1 });
    r.add(0, What::Completed { op: 1 });
    r.add(1, What::Read { cell: "z".into(), value: 1, buffered: false });
    r.add(0, What::Read { cell: "z".into(), value: 0, buffered: false });
    let story = Story::of(&r.timeline);
    assert!(story.hints.is_empty());
    assert_eq!(story.ops[&1].end(), Some(3));
    assert_eq!(story.changes[2], Some((0, 1)));
}

#[test]
fn changes_and_buffered_writes_are_followed() {
    let mut r = Recorder::new("", "", &[("writer", 0)]);
    for value in 1..=2 {
        r.add(0, What::Write { cell: "x".into(), value });
    }
    for value in 1..=2 {
        r.add(0, What::Drained { cell: "x".into(), value });
    }
    let story = Story::of(&r.timeline);
    assert_eq!(story.spans.iter().map(|s| (s.from, s.to)).collect::<Vec<_>>(), [(0, Some(2)), (1, Some(3))]);
    assert_eq!(story.changes[2..], [Some((0, 1)), Some((1, 2))]);
}

#[test]
fn idle_threads_have_no_lane() {
    let timeline = barrier();
    let story = Story::of(&timeline);
    let layout = Layout::of(&timeline, &story);
    let threads = layout.strips.iter().filter(|strip| matches!(strip.kind, Kind::Thread(_)));
    assert_eq!(threads.map(|strip| strip.name.as_str()).collect::<Vec<_>>(), ["writer", "peer", "reader"]);
    assert_eq!(layout.idle, ["service on n1", "service on n2", "service on n3"]);
}

#[test]
fn lanes_and_bars_do_not_overlap() {
    for (name, timeline) in all() {
        let story = Story::of(&timeline);
        let layout = Layout::of(&timeline, &story);
        for pair in layout.strips.windows(2) {
            assert!(pair[0].y + pair[0].height <= pair[1].y, "{name}");
        }
        let bars: Vec<_> = story.ops.values().map(|op| (layout.bars[&op.id], op.issue, op.end())).collect();
        for (i, (row, from, to)) in bars.iter().enumerate() {
            let clash = bars[i + 1..].iter().any(|(other, issue, end)| {
                row == other && to.is_none_or(|to| *issue < to) && end.is_none_or(|end| *from < end)
            });
            assert!(!clash, "{name}: bar {i}");
        }
    }
}

#[test]
fn labels_do_not_overlap_and_important_ones_go_first() {
    let label =
        |rank: f64, text: &str, first| Label { rank, shift_px: 0.0, text: text.into(), first, attributes: "".into() };
    let labels =
        [label(0.0, "read x=1", false), label(1.0, "read y=0", true), label(2.0, "put", false), label(9.0, "", false)];
    assert_eq!(fit(&labels, 1), [None, Some(0), None, Some(0)]);
    assert_eq!(fit(&labels, 2), [Some(1), Some(0), None, Some(0)]);
    assert_eq!(fit(&labels, 3), [Some(1), Some(0), Some(2), Some(0)]);
}

#[test]
fn empty_and_odd_timelines_are_fine() {
    assert!(Timeline::default().to_html().contains("All 0 events"));
    let mut r = Recorder::new("odd", "", &[]);
    r.timeline.threads.push(Lane { name: "only".into(), node: 3 });
    r.add(9, What::Completed { op: 5 });
    r.add(9, What::Seen { op: 6 });
    r.add(0, What::Unlock { name: "m".into() });
    r.add(0, What::Received { from: 8, text: String::new() });
    r.fail(u64::MAX, 7, "beyond the end");
    assert!(r.timeline.to_html().contains("beyond the end"));
}

#[test]
fn the_page_is_deterministic_and_stands_alone() {
    for (name, timeline) in all() {
        let page = timeline.to_html();
        assert_eq!(page, timeline.to_html(), "{name}");
        for outside in ["http:", "https:", "src=", "<link", "@import"] {
            assert!(!page.contains(outside), "{name}: {outside}");
        }
    }
}
