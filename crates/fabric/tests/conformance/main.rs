//! The conformance suite: what every fabric promises, one function for each promise, run over each fabric.
//!
//! A case is generic over its [`harness::Harness`], a way to make a session of several nodes inside this process. Each
//! fabric lists the cases that it is excluded from, and why. A new fabric needs a harness, and nothing else here.

mod at_once;
mod atomics;
mod bounds;
mod control;
mod decorators;
mod dropping;
mod executors;
mod failures;
mod freeing;
mod harness;
mod order;
mod over_ucx;
mod rights;
mod simulated;
mod tearing;
mod waiting;
mod weakness;
mod window;

use harness::{Excluded, Harness, Nodes};

/// Instantiates every case for every harness.
macro_rules! suite {
    ($($module:ident: $($case:ident)+;)+) => {
        mod shm { $($(#[test] fn $case() { super::SHM.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        mod decorated { $($(#[test] fn $case() { super::DECORATED.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        mod weak { $($(#[test] fn $case() { super::WEAK.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        mod sim { $($(#[test] fn $case() { super::SIM.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        mod verbs { $($(#[test] fn $case() { super::VERBS.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        mod ucx { $($(#[test] fn $case() { super::UCX.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        mod ucx_all { $($(#[test] fn $case() { super::UCX_ALL.run(stringify!($module), stringify!($case), crate::$module::$case); })+)+ }
        const CASES: &[&str] = &[$($(stringify!($case)),+),+];
    };
}

suite! {
    order:
        a_get_sees_the_puts_before_it
        messages_pass
        messages_pass_with_long_data
        messages_pass_into_local_copies
        store_buffering_with_put_and_get
        store_buffering_with_a_local_store_and_get
        store_buffering_with_a_local_store_and_every_get
        store_buffering_with_a_put_and_a_get_together
        store_buffering_with_a_fence_that_wakes
        store_buffering_through_a_copy_and_a_global_fence
        store_buffering_with_atomics
        store_buffering_with_results_of_gets
        store_buffering_with_sources_of_puts
        a_get_is_complete_when_waited_for
        many_puts_land_in_order;
    weakness:
        a_later_change_is_not_sent_by_value_or_buffer
        a_later_change_is_not_sent_after_the_wait
        a_get_does_not_see_a_put_behind_a_fence
        a_fence_orders_a_get_before_a_put_of_its_result
        reachable_live_change
        reachable_store_buffering_of_puts
        reachable_store_buffering_without_global_fence
        reachable_get_overtaken_by_put
        reachable_put_of_a_result_not_there_yet
        reachable_own_put_not_visible
        reachable_reordering_across_nodes
        reachable_reordering_across_three_nodes
        reachable_reordering_across_groups;
    atomics:
        fetch_and_adds_add_up
        compare_and_swap_locks_exclude
        compare_and_swap_tells_and_fails_without_writing
        fetch_and_add_wraps
        words_begin_with_a_pattern_and_are_worked_on_by_all
        fetch_and_add_and_compare_and_swap_exclude_each_other;
    tearing:
        words_are_never_torn
        long_transfers_tear_between_words_only
        odd_lengths_write_nothing_beyond;
    bounds:
        places_outside_are_refused
        wrong_names_are_refused
        odd_places_are_refused
        a_new_group_and_grown_memory_are_reachable
        memory_is_zeroed_aligned_and_apart
        running_out_of_memory_is_an_error;
    freeing:
        late_pointers_are_refused
        memory_of_others_is_not_given_back
        memory_given_back_comes_back
        words_given_back_come_back
        late_puts_change_nothing_that_is_given_out_later
        late_gets_bring_nothing_of_reallocated_memory;
    rights:
        revoked_and_permitted_again
        rights_are_per_peer_and_per_group
        no_write_lands_after_a_revoke
        a_revoke_reaches_into_store_buffers
        a_right_can_be_used_when_it_is_said_to_be_there
        a_refusal_ends_with_the_next_right
        a_right_is_handed_from_writer_to_writer
        nothing_is_permitted_to_one_that_has_left;
    dropping:
        operations_dropped_at_every_poll
        operations_forgotten_at_every_poll
        a_buffer_does_not_change_in_hand
        a_dropped_put_sends_the_old_contents_of_its_buffer
        forgotten_gets_exhaust_the_pool
        forgotten_words_leave_the_buffers
        values_put_do_not_use_up_the_pool
        an_endpoint_dropped_with_work_in_flight;
    failures:
        refusals_are_known_at_once
        injected_failures_are_known_at_once
        a_failed_put_fails_all_puts_behind_it;
    window:
        a_window_bounds_completes_and_answers
        tasks_of_a_window_wait_for_each_other
        batches_land_in_order
        batches_report_their_errors
        batches_end_in_an_atomic
        a_quorum_is_awaited
        global_fences_cover_all_nodes
        global_fences_cover_gets_and_atomics
        global_fences_cover_further_groups
        global_fences_outlive_a_revoked_group
        unflushed_puts_are_known
        counts_are_exact
        round_trips_are_the_longest_chain
        interleaved_tasks_do_not_mix_their_counts
        many_gets_at_once;
    at_once:
        a_publication_is_two_puts
        publications_are_refused_as_two_puts
        a_put_and_a_get_together_are_two_operations
        a_put_and_a_get_together_are_refused
        operations_nearby_are_those_of_the_endpoint
        operations_nearby_are_refused_as_those_of_the_endpoint;
    waiting:
        a_wait_ends_at_its_deadline
        a_remote_wait_ends_at_its_deadline
        a_sleeper_is_woken_by_a_put
        a_sleeper_is_woken_by_a_local_store
        a_remote_word_is_waited_for;
    executors:
        another_executor_is_woken
        an_executor_within_block_on_goes_on;
    control:
        messages_arrive_whole_and_in_order
        messages_too_long_are_refused
        a_node_that_leaves_has_left
        endpoints_run_out_and_come_back;
    decorators:
        a_cut_fails_operations_and_heals
        one_operation_fails_on_command
        a_record_lists_the_posted_operations;
}

/// Shared memory is stronger than the model: an outcome that the model allows and x86 does not cannot be seen on it.
const STRONGER: &str = "operations complete at once and in order: the model's weak outcomes do not happen";

const STRONG: &[Excluded] = &[
    ("reachable_live_change", STRONGER),
    ("reachable_store_buffering_of_puts", "the outcome depends on the store buffer's mood, which no test can wait for"),
    ("reachable_store_buffering_without_global_fence", "as above"),
    ("reachable_get_overtaken_by_put", STRONGER),
    ("reachable_put_of_a_result_not_there_yet", STRONGER),
    ("reachable_own_put_not_visible", STRONGER),
    ("reachable_reordering_across_nodes", STRONGER),
    ("reachable_reordering_across_three_nodes", STRONGER),
    ("reachable_reordering_across_groups", STRONGER),
];

/// Processes of one host over shared memory.
static SHM: Harness =
    Harness { name: "shm", nodes: Nodes::OnShm(|fabric, _| fabric), effort_percent: 2000, excluded: STRONG };

/// Shared memory behind the decorators: the same operations through the dynamic interface.
static DECORATED: Harness = Harness {
    name: "record(fault(shm))",
    nodes: Nodes::OnShm(|fabric, _| {
        let faulty = farfield_fabric::fault::inject(fabric, farfield_fabric::fault::Faults::default());
        farfield_fabric::record::record(faulty, farfield_fabric::record::Record::default())
    }),
    effort_percent: 400,
    excluded: STRONG,
};

/// Shared memory made as weak as the model allows.
static WEAK: Harness = Harness {
    name: "weak(shm)",
    nodes: Nodes::OnShm(|fabric, seed| farfield_fabric::weak::weaken(fabric, seed).expect("a thread for the NIC")),
    effort_percent: 100,
    excluded: &[],
};

/// The model itself: its orders must hold over the simulator, and its allowed outcomes must turn up there.
static SIM: Harness = Harness {
    name: "sim",
    nodes: Nodes::Simulated,
    effort_percent: 200,
    excluded: &[("another_executor_is_woken", "nothing but `block_on` runs in a simulation")],
};

/// RDMA devices of this machine, node by node in turn; where there are none, nothing is run. See `ci/soft-roce-vm`.
static VERBS: Harness = Harness { name: "verbs", nodes: Nodes::OnVerbs, effort_percent: 1, excluded: AS_IT_COMES };

/// Nodes over TCP by UCX, where that is on this machine.
static UCX: Harness = Harness { name: "ucx", nodes: Nodes::OnUcx("tcp"), effort_percent: 2, excluded: AS_IT_COMES };

/// The same over whatever UCX finds, shared memory in the first place.
static UCX_ALL: Harness =
    Harness { name: "ucx(all)", nodes: Nodes::OnUcx("all"), effort_percent: 2, excluded: AS_IT_COMES };

/// How weak a device is is its own matter.
const AS_IT_COMES: &[Excluded] = &[
    ("reachable_live_change", DEVICE),
    ("reachable_store_buffering_of_puts", DEVICE),
    ("reachable_store_buffering_without_global_fence", DEVICE),
    ("reachable_get_overtaken_by_put", DEVICE),
    ("reachable_put_of_a_result_not_there_yet", DEVICE),
    ("reachable_own_put_not_visible", DEVICE),
    ("reachable_reordering_across_nodes", DEVICE),
    ("reachable_reordering_across_three_nodes", DEVICE),
    ("reachable_reordering_across_groups", DEVICE),
];
const DEVICE: &str = "what the model allows may happen or not: that is the device's matter";

/// An exclusion that names no case would hide a case that was renamed.
#[test]
fn exclusions_name_cases() {
    for harness in [&SHM, &DECORATED, &WEAK, &SIM, &VERBS, &UCX, &UCX_ALL] {
        for (case, _) in harness.excluded {
            assert!(CASES.contains(case), "{} excludes `{case}`, which is no case", harness.name);
        }
    }
}
