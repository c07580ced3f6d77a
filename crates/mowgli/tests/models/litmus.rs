//! The litmus tests of the RDMA^TSO papers, and of what this machine adds: every outcome of each program is looked at,
//! and none may be lost when quiet steps are taken first.
//! [`crate::program`] explains the notation.

use crate::program::Program;

/// `litmus(locations, threads)`.
fn litmus(locations: &str, threads: &[&str]) -> Program {
    Program::new(locations, threads)
}

// What one thread sees of its own operations.

#[test]
fn fig_1_a_put_reads_its_source_late() {
    litmus("x@1 z@2", &["1: put z = x; x = 1"]).allows("z=1").allows("z=0");
}

#[test]
fn fig_3a_poll_says_that_the_source_was_read() {
    litmus("x@1 z@2", &["1: put z = x; poll 2; x = 1"]).forbids("z=1");
}

#[test]
fn fig_3b_poll_takes_the_oldest_operation() {
    litmus("x@1 y@1 w@2 z@2", &["1: put w = y; put z = x; poll 2; x = 1"]).allows("z=1");
}

#[test]
fn fig_3c_as_many_polls_as_operations() {
    litmus("x@1 y@1 w@2 z@2", &["1: put w = y; put z = x; poll 2; poll 2; x = 1"]).forbids("z=1");
}

#[test]
fn fig_3d_wait_says_that_the_source_was_read() {
    litmus("x@1 z@2", &["1: put z = x as d; wait d; x = 1"]).forbids("z=1");
}

#[test]
fn fig_3e_wait_names_its_operation() {
    litmus("x@1 y@1 w@2 z@2", &["1: put w = y as e; put z = x as d; wait d; x = 1"]).forbids("z=1");
}

#[test]
fn r1_a_read_takes_the_own_buffered_write() {
    litmus("x@1", &["1: x = 1; a = x"]).forbids("a=0");
}

#[test]
fn n1_a_put_reads_after_the_writes_of_fenced_gets() {
    litmus("x@1 w@2=1", &["1: get x = w as d; rfence 2; put w = x"]).forbids("w=0");
}

#[test]
fn n2_without_the_fence_a_put_reads_first() {
    litmus("x@1 w@2=1", &["1: get x = w as d; put w = x"]).allows("w=0").allows("w=1");
}

#[test]
fn g1_a_put_overtakes_a_get() {
    litmus("x@1 y@2", &["1: get x = y as d; put y = 1; wait d; a = x"]).allows("a=1 x=1").allows("a=0 x=0");
}

#[test]
fn g2_a_fence_keeps_a_put_behind_a_get() {
    litmus("x@1 y@2", &["1: get x = y as d; rfence 2; put y = 1; wait d; a = x"]).forbids("a=1").forbids("x=1");
}

#[test]
fn l1_a_loopback_put_is_complete_before_it_lands() {
    litmus("x@1", &["1: put x = 1 as d; wait d; a = x"]).allows("a=0").allows("a=1").forbids("x=0");
}

#[test]
fn a_get_sees_the_earlier_put() {
    litmus("x@1 y@2", &["1: put y = 1; get a = y"]).forbids("a=0");
}

#[test]
fn gets_read_in_any_order_and_land_in_order() {
    litmus("p@1 q@1 y@2", &["1: get p = y; get q = y", "2: y = 1"]).allows("p=1 q=0").allows("p=0 q=1");
    litmus("p@1 q@1 y@2=1", &["1: get p = y; get q = y", "1: b = q; a = p"]).forbids("b=1 a=0");
}

#[test]
fn puts_to_one_node_read_their_sources_in_order() {
    litmus("x@1 y@1 z@2 w@2", &["1: put z = x; put w = y", "1: y = 1; x = 1"]).forbids("z=1 w=0").allows("z=0 w=1");
}

#[test]
fn puts_to_one_node_land_in_order() {
    litmus("y@2 z@2", &["1: put y = 1; put z = 1", "2: b = z; a = y"]).forbids("b=1 a=0");
    litmus("y@2", &["1: put y = 1; put y = 2"]).forbids("y=1");
}

#[test]
fn a_fence_is_complete_when_gets_before_it_have_read() {
    litmus("x@1 y@2", &["1: get x = y; rfence 2 as f; wait f; put y = 1; a = x"]).forbids("x=1");
}

#[test]
fn a_fence_does_not_wait_for_puts_to_land() {
    let tell = "put y = 1; rfence 2 as f; wait f; put g = 1";
    litmus("y@2 g@3", &[&format!("1: {tell}"), "3: until g 1; get a = y"]).allows("a=0");
}

// Several threads.

#[test]
fn fig_4_top_waiting_for_puts_is_not_enough() {
    litmus("x@1 y@2", &["1: put y = 1 as d; wait d; a = x", "2: put x = 1 as d; wait d; b = y"]).allows("a=0 b=0");
}

#[test]
fn fig_4_bottom_a_get_flushes_the_put() {
    litmus(
        "x@1 p@1 u@1 y@2 q@2 v@2",
        &["1: put y = 1 as d; get p = v as d; wait d; a = x", "2: put x = 1 as d; get q = u as d; wait d; b = y"],
    )
    .forbids("a=0 b=0")
    .allows("a=1 b=0")
    .allows("a=0 b=1")
    .allows("a=1 b=1");
}

#[test]
fn fig_4x_a_put_before_does_not_flush() {
    litmus(
        "x@1 u@1 y@2 v@2",
        &["1: put v = 1; put y = 1 as d; wait d; a = x", "2: put u = 1; put x = 1 as d; wait d; b = y"],
    )
    .allows("a=0 b=0");
}

#[test]
fn fig_4y_a_remote_fence_does_not_flush() {
    litmus(
        "x@1 u@1 y@2 v@2",
        &[
            "1: put v = 1; rfence 2; put y = 1 as d; wait d; a = x",
            "2: put u = 1; rfence 1; put x = 1 as d; wait d; b = y",
        ],
    )
    .allows("a=0 b=0");
}

#[test]
fn fig_8a_store_buffering() {
    litmus("x@1 y@1", &["1: x = 1; a = y", "1: y = 1; b = x"]).allows("a=0 b=0");
    litmus("x@1 y@1", &["1: x = 1; mfence; a = y", "1: y = 1; mfence; b = x"]).forbids("a=0 b=0");
    litmus("x@1 y@1", &["1: x = 1; cas c = x 1 2; a = y", "1: y = 1; cas d = y 3 4; b = x"]).forbids("a=0 b=0");
}

#[test]
fn fig_8b_message_passing() {
    litmus("x@1 y@1", &["1: y = 1; x = 1", "1: a = x; b = y"]).forbids("a=1 b=0");
}

#[test]
fn fig_8c_nothing_orders_puts_to_different_nodes() {
    litmus("x@2 y@3 z@3", &["1: put z = 1; put x = 1", "2: until x 1; put y = x", "3: b = y; c = z"]).allows("b=1 c=0");
    litmus(
        "p@1 x@2 y@3 z@3 v@3",
        &["1: put z = 1; get p = v as d; wait d; put x = 1", "2: until x 1; put y = x", "3: b = y; c = z"],
    )
    .forbids("b=1 c=0");
}

#[test]
fn a_get_reads_after_the_writes_of_completed_puts_later_ones_included() {
    // The put is complete before w is written. So a get that sees w flushes it, although it was issued before the put.
    let first = "1: get a = w as e; put y = 1 as d; wait d; put g = 1; wait e; put h = 1";
    litmus("w@2 y@2 g@3 h@3", &[first, "3: until g 1; put w = 5; until h 1; get b = y"])
        .forbids("a=5 b=0")
        .allows("a=5 b=1")
        .allows("a=0 b=0");
}

#[test]
fn fig_12_a_flush_of_the_wrong_node_is_not_enough() {
    // The first thread flushes the node that it tells, not the one that it wrote to.
    litmus(
        "p@1 x@2 v@2 y@3 z@3",
        &["1: put z = 1; get p = v as d; wait d; put x = 1", "2: until x 1; put y = x", "3: until y 1; a = z"],
    )
    .allows("a=0");
    // One that flushes all nodes is.
    let first = "1: put z = 1; get p = v as d; get q = w as e; wait d; wait e; put x = 1";
    litmus("p@1 q@1 x@2 v@2 w@3 y@3 z@3", &[first, "2: until x 1; put y = x", "3: until y 1; a = z"])
        .allows("a=1")
        .forbids("a=0");
}

#[test]
fn fig_22_a_barrier_without_fence() {
    litmus("z@2 f@3", &["1: put z = 1; put f = 1", "3: until f 1; get a = z"]).allows("a=0");
    litmus("p@1 z@2 v@2 f@3", &["1: put z = 1; get p = v as d; wait d; put f = 1", "3: until f 1; get a = z"])
        .forbids("a=0");
}

// Shared variables, spelled out: x has the copies x1, x2, …; a broadcast is a put for each node, a global fence a get
// from each.

/// Store buffering over shared variables, with `middle` after the broadcast; `9` is replaced by the other node.
fn fig_5(middle: &str) -> Program {
    let thread = |own: &str, other: &str, mine: &str, theirs: &str, register: &str| {
        let middle = middle.replace('9', other).replace("own", own);
        format!("{own}: {mine}{own} = 1; put {mine}{other} = {mine}{own} as d; {middle}; {register} = {theirs}{own}")
    };
    let threads = [thread("1", "2", "x", "y", "a"), thread("2", "1", "y", "x", "b")];
    litmus("x1@1 y1@1 g1@1 x2@2 y2@2 g2@2", &threads.each_ref().map(String::as_str))
}

#[test]
fn fig_5_store_buffering_with_global_fences() {
    fig_5("get gown = g9 as e; wait e").forbids("a=0 b=0").allows("a=0 b=1").allows("a=1 b=0").allows("a=1 b=1");
}

#[test]
fn fig_5_prime_store_buffering_with_waits() {
    fig_5("wait d").allows("a=0 b=0").allows("a=0 b=1").allows("a=1 b=0").allows("a=1 b=1");
}

#[test]
fn fig_9a_broadcasts_to_one_node_keep_their_order() {
    litmus("x1@1 x2@2 z@2", &["1: put z = 1; x1 = 1; put x2 = x1", "2: a = x2; b = z"]).forbids("a=1 b=0");
}

#[test]
fn fig_9b_by_way_of_another_node_they_do_not() {
    litmus(
        "x1@1 x2@2 y2@2 y3@3 z@3",
        &["1: put z = 1; x1 = 1; put x2 = x1", "2: a = x2; y2 = a; put y3 = y2", "3: b = y3; c = z"],
    )
    .allows("b=1 c=0");
}

#[test]
fn fig_9c_a_broadcast_reads_later_for_some_nodes() {
    litmus(
        "x1@1 y1@1 x2@2 y2@2 x3@3",
        &["1: x1 = 1; put x2 = x1; put x3 = x1; a = y1; x1 = a+1", "2: b = x2; y2 = b; put y1 = y2", "3: c = x3"],
    )
    .allows("a=1 b=1 c=2");
}

// Read-modify-writes.

#[test]
fn remote_fetch_and_adds_are_atomic_among_themselves() {
    let two = ["1: rfaa a = x 1", "2: rfaa b = x 1"];
    litmus("x@2", &two).forbids("x=1").forbids("a=0 b=0").allows("a=0 b=1").allows("a=1 b=0");
}

#[test]
fn one_remote_compare_and_swap_wins() {
    let both = ["1: rcas a = x 0 1", "2: rcas b = x 0 2"];
    litmus("x@2", &both).forbids("a=0 b=0").allows("a=0 b=1 x=1").allows("a=2 b=0 x=2");
}

#[test]
fn a_failed_compare_writes_nothing() {
    litmus("x@2=5", &["1: rcas a = x 0 1"]).allows("a=5 x=5").forbids("x=1");
    // It holds no operation back, either: it has no second half.
    litmus("x@2=5", &["1: rcas a = x 0 1", "2: rfaa b = x 1"]).allows("a=5 b=5 x=6").allows("a=6 b=5 x=6");
}

#[test]
fn a_cpu_write_comes_between_the_halves_of_an_atomic() {
    litmus("x@2", &["1: rfaa a = x 1", "2: x = 10"]).allows("a=0 x=1").allows("a=0 x=10").allows("a=10 x=11");
}

#[test]
fn a_cpu_compare_and_swap_comes_between_the_halves_of_an_atomic() {
    let both = ["1: rcas a = x 0 1", "2: cas b = x 0 2"];
    litmus("x@2", &both).allows("a=0 b=0 x=1").forbids("a=0 b=0 x=2");
}

#[test]
fn a_put_comes_between_the_halves_of_an_atomic() {
    litmus("x@2", &["1: rfaa a = x 1", "3: put x = 10"]).allows("a=0 x=1").allows("a=0 x=10").allows("a=10 x=11");
}

#[test]
fn atomics_of_one_pair_execute_in_order() {
    litmus("x@2", &["1: rfaa a = x 1; rfaa b = x 1"]).allows("a=0 b=1 x=2").forbids("a=1").forbids("b=0");
    // Those to different nodes do not.
    litmus("x@2 y@3", &["1: rfaa a = x 1; rfaa b = y 1", "2: get c = y as d; wait d; e = x"]).allows("c=1 e=0");
    litmus("x@2 y@2", &["1: rfaa a = x 1; rfaa b = y 1", "2: c = y; e = x"]).forbids("c=1 e=0");
}

#[test]
fn a_put_overtakes_an_atomic() {
    litmus("x@2", &["1: rfaa a = x 1; put x = 10"]).allows("a=10 x=11").allows("a=0 x=1").allows("a=0 x=10");
    litmus("x@2", &["1: rfaa a = x 1 as d; wait d; put x = 10"]).forbids("a=10").forbids("x=1");
    litmus("x@2", &["1: rfaa a = x 1; rfence 2; put x = 10"]).forbids("a=10").forbids("x=1");
}

#[test]
fn a_get_overtakes_an_atomic() {
    litmus("x@2", &["1: rfaa a = x 1; get b = x"]).allows("b=0").allows("b=1");
    litmus("x@2", &["1: rfaa a = x 1; rfence 2; get b = x"]).forbids("b=0");
}

#[test]
fn an_atomic_follows_the_put_before_it() {
    litmus("x@2", &["1: put x = 10; rfaa a = x 1"]).forbids("a=0").forbids("x=10").allows("a=10 x=11");
}

#[test]
fn loopback_atomics_are_atomic_with_those_of_others() {
    litmus("x@2", &["1: rfaa a = x 1", "2: rfaa b = x 1 as d; wait d"]).forbids("x=1");
}

// Transfers of several words.

#[test]
fn a_put_is_seen_half_landed_in_either_order() {
    litmus("z@2[2]", &["1: put z = 1,1", "2: a = z.0; b = z.1"]).allows("a=1 b=0").allows("a=0 b=1");
    litmus("z@2[2]", &["1: put z = 1,1", "2: b = z.1; a = z.0"]).allows("a=1 b=0").allows("a=0 b=1");
    litmus("z@2[2] y@2", &["1: put z = 1,1; put y = 1", "2: until y 1; a = z.0; b = z.1"])
        .forbids("a=0")
        .forbids("b=0");
}

#[test]
fn a_put_reads_torn_cells() {
    litmus("x@1[2] z@2[2]", &["1: put z = x; x.0 = 1; x.1 = 1"]).allows("z.0=1 z.1=0").allows("z.0=0 z.1=1");
    litmus("x@1[2] z@2[2]", &["1: put z = x as d; wait d; x.0 = 1; x.1 = 1"]).forbids("z.0=1").forbids("z.1=1");
}

#[test]
fn a_get_is_torn() {
    litmus("z@2[2]", &["1: get a = z", "2: z.0 = 1; z.1 = 1"]).allows("a.0=0 a.1=1").allows("a.0=1 a.1=0");
    litmus("z@2[2]", &["1: get a = z; get b = z", "2: z.0 = 1; z.1 = 1"]).allows("a.0=1 b.0=0");
}

#[test]
fn a_get_lands_torn() {
    litmus("x@1[2] z@2[2]", &["1: put z = 1,1; get x = z", "1: a = x.0; b = x.1"]).allows("a=1 b=0").allows("a=0 b=1");
}

#[test]
fn a_put_leaves_the_bits_outside_its_mask() {
    litmus("z@2=12", &["1: put z = 3 mask 6"]).allows("z=10").forbids("z=3").forbids("z=12");
    // Only of the last word.
    litmus("z@2[2]=12", &["1: put z = 3,3 mask 1"]).allows("z.0=3 z.1=1");
}

// Steps that may be taken at once, and steps that would lose these outcomes if they were.

#[test]
fn the_start_of_a_put_is_not_quiet_while_a_get_reads() {
    litmus("z@2 g@3", &["1: get a = z; put z = 1; put g = 1", "3: until g 1; put z = 5"]).allows("a=5 z=1");
}

#[test]
fn the_start_of_a_get_into_cells_is_not_quiet() {
    // The get reads before v is written, and has not landed when the puts read v, then x.
    litmus("x@1 v@1 y@2=1 p@2 q@2", &["1: get x = y; put p = v; put q = x", "2: y = 2; put v = 1"])
        .allows("x=1 p=1 q=0");
}

#[test]
fn the_landing_of_a_get_in_cells_is_not_quiet() {
    litmus("x@1 y@2=1", &["1: get x = y; rfence 2 as f; wait f; a = x"]).allows("a=0").allows("a=1");
}

/// A step of SplitMix64, below `bound`.
fn random(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 16) as usize % bound
}

/// A thread of two to four statements; register names start with `prefix`. Registers are read only by the end.
fn random_thread(state: &mut u64, prefix: char, node: usize, nodes: usize) -> String {
    let mut text = format!("{node}: ");
    let mut has_operation = false;
    for number in 0..random(state, 3) + 2 {
        let local = ["x", "y"][random(state, 2)];
        let peer = 1 + (node - 1 + usize::from(random(state, 8) > 0)) % nodes;
        let remote = format!("{}{peer}", ["x", "y"][random(state, 2)]);
        let (register, value) = (format!("{prefix}{number}"), 1 + random(state, 3));
        let statement = match random(state, 12) {
            0 => format!("{local}{node} = {value}"),
            1 | 2 => format!("{register} = {local}{node}"),
            3 | 4 => format!("put {remote} = {local}{node} as d"),
            5 => format!("put {remote} = {value} as d"),
            6 => format!("get {local}{node} = {remote} as d"),
            7 => format!("get {register} = {remote} as d"),
            8 => format!("rfaa {register} = {remote} {value} as d"),
            9 => format!("rcas {register} = {remote} 0 {value} as d"),
            10 => format!("rfence {peer}"),
            _ if has_operation => "wait d".to_owned(),
            _ => "mfence".to_owned(),
        };
        has_operation |= statement.contains("as d");
        text += &statement;
        text += "; ";
    }
    text
}

#[test]
fn quiet_steps_lose_no_outcome() {
    // More with `FARFIELD_TEST_LONG`, which CI sets.
    let programs = if std::env::var_os("FARFIELD_TEST_LONG").is_some() { 300 } else { 100 };
    let mut outcomes = 0;
    for seed in 0..programs {
        let mut state = seed << 32;
        let nodes = 2 + random(&mut state, 2);
        let threads: Vec<String> = ['a', 'b']
            .into_iter()
            .enumerate()
            .map(|(index, prefix)| random_thread(&mut state, prefix, index + 1, nodes))
            .collect();
        let threads: Vec<&str> = threads.iter().map(String::as_str).collect();
        let locations = "x1@1 y1@1 x2@2 y2@2 x3@3 y3@3";
        outcomes += litmus(locations, &threads).all_outcomes().len();
    }
    // The programs are not trivial.
    assert!(outcomes > programs as usize * 3, "{outcomes}");
}
