"""Index of the engine's acceptance cases: case -> its fact, and its tests by file and name.

The cases are numbered as in the list of acceptance cases that was drawn up from timely dataflow's own programs, tests
and book; 23 is not used. Three cases are no part of this engine: 51 (a source gated by a probe), 55 (spilling queues to
disk), and 60 (container builders).
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
ALL = set(range(1, 61)) - {23}
LEFT_OUT = {51, 55, 60}

CASES: dict[int, tuple[str, list[str]]] = {
    1: (
        "a stream shows its records in order",
        [
            "timely/dataflow/test_sources.py::test_to_stream_shows_its_records_in_order",
        ],
    ),
    2: (
        "hello, gated by a probe",
        [
            "cluster/test_hello.py::test_two_workers_in_one_process_take_turns",
            "cluster/test_hello.py::test_of_two_processes_one_prints_the_even_numbers_one_the_odd",
            "timely/dataflow/test_probe.py::test_each_number_comes_to_its_worker_before_the_next_is_sent",
        ],
    ),
    3: (
        "hello, not gated: drained on return",
        [
            "timely/dataflow/test_input_handle.py::test_an_input_nobody_waits_for_is_drained_on_return",
        ],
    ),
    4: (
        "primes after an exchange",
        [
            "cluster/test_engine.py::test_there_are_1229_primes_below_ten_thousand",
            "timely/dataflow/test_movement.py::test_there_are_1229_primes_below_ten_thousand",
        ],
    ),
    5: (
        "volume of an exchange",
        [
            "cluster/test_engine.py::test_what_every_worker_sends_in_every_round_arrives_by_value",
            "timely/dataflow/test_movement.py::test_what_every_worker_sends_in_every_round_arrives_by_value",
        ],
    ),
    6: (
        "a probe, round by round",
        [
            "timely/dataflow/test_probe.py::test_a_probe_follows_ten_rounds_and_the_end",
        ],
    ),
    7: (
        "a probe before the first step",
        [
            "timely/dataflow/test_probe.py::test_a_probe_says_least_before_anything_is_known",
        ],
    ),
    8: (
        "a barrier in a loop",
        [
            "apps/test_barrier.py::test_every_worker_does_each_round_once_in_order",
            "cluster/test_apps.py::test_barrier_does_every_round_on_every_worker",
            "timely/dataflow/test_movement.py::test_a_frontier_inside_a_cycle_moves_past_the_operators_own_capability",
        ],
    ),
    9: (
        "scopes without operators",
        [
            "timely/dataflow/test_scopes.py::test_records_pass_nested_scopes_without_operators_and_wake_them",
            "timely/dataflow/test_scopes.py::test_records_pass_nested_scopes_without_operators_in_two_processes",
            "timely/test_worker.py::test_workers_that_park_without_end_are_woken_by_records_and_progress",
        ],
    ),
    10: (
        "an empty batch is no end",
        [
            "timely/dataflow/test_generic.py::test_an_empty_batch_is_neither_sent_nor_an_end",
        ],
    ),
    11: (
        "the tracker on a ring",
        [
            "timely/progress/test_reachability.py::test_what_circulates_in_a_ring_is_implied_once_round_and_withdrawn_whole",
        ],
    ),
    12: (
        "acyclicity, port by port",
        [
            "timely/progress/test_propagation_order.py::test_a_chain_has_no_cycle_and_closing_it_makes_one",
            "timely/progress/test_propagation_order.py::test_a_cycle_is_judged_port_by_port",
        ],
    ),
    13: (
        "order of notifications",
        [
            "timely/dataflow/test_notificator.py::test_notifications_follow_the_partial_order_and_take_in_what_is_requested_meanwhile",
        ],
    ),
    14: (
        "MutableAntichain",
        [
            "timely/progress/test_antichain.py::test_frontier_changes_are_discrete_whatever_the_counts",
            "timely/progress/test_antichain.py::test_updates_that_cancel_do_not_pile_up",
        ],
    ),
    15: (
        "Collatz in a root loop",
        [
            "apps/test_collatz.py::test_the_numbers_to_9_take_up_to_19_steps",
            "cluster/test_apps.py::test_collatz_takes_the_steps_of_a_plain_loop",
            "timely/dataflow/test_movement.py::test_the_collatz_loop_ends_by_itself",
            "timely/dataflow/test_movement.py::test_the_collatz_loop_ends_whatever_the_order_of_delivery",
        ],
    ),
    16: (
        "Collatz, leaving the loop at 1",
        [
            "apps/test_collatz.py::test_the_numbers_to_9_take_up_to_19_steps",
            "cluster/test_apps.py::test_collatz_takes_the_steps_of_a_plain_loop",
            "timely/dataflow/test_scopes.py::test_records_leave_a_loop_while_others_still_go_round",
        ],
    ),
    17: (
        "mutual recursion",
        [
            "timely/dataflow/test_movement.py::test_two_loops_may_share_operators",
            "timely/dataflow/test_scopes.py::test_two_loop_variables_may_share_operators",
        ],
    ),
    18: (
        "pingpong",
        [
            "apps/test_pingpong.py::test_100_numbers_pass_the_exchange_1001_times_each",
            "cluster/test_apps.py::test_pingpong_passes_100_100_records",
            "timely/dataflow/test_movement.py::test_a_loop_may_pass_an_exchange",
        ],
    ),
    19: (
        "epochs that overlap in a loop",
        [
            "timely/dataflow/test_scopes.py::test_epochs_overlap_in_a_loop_and_are_over_outside_when_they_have_left_it",
            "timely/dataflow/test_scopes.py::test_epochs_overlap_in_a_loop_of_two_processes",
        ],
    ),
    20: (
        "breadth-first search",
        [
            "apps/test_bfs.py::test_978_nodes_are_reached_in_nine_levels",
            "cluster/test_apps.py::test_bfs_reaches_978_nodes_in_nine_levels",
            "timely/dataflow/test_scopes.py::test_breadth_first_search_goes_level_by_level",
            "timely/dataflow/test_scopes.py::test_breadth_first_search_goes_level_by_level_over_two_processes",
        ],
    ),
    21: (
        "union-find in two stages",
        [
            "apps/test_unionfind.py::test_1000_edges_make_838_merges",
            "cluster/test_apps.py::test_unionfind_makes_838_merges_on_worker_0",
        ],
    ),
    22: (
        "PageRank",
        [
            "apps/test_pagerank.py::test_ranks_settle_as_in_the_original_after_50_rounds",
            "cluster/test_apps.py::test_pagerank_settles_after_50_rounds",
        ],
    ),
    24: (
        "hash join",
        [
            "apps/test_hashjoin.py::test_two_tables_of_1000_rows_match_10127_times",
            "cluster/test_apps.py::test_hashjoin_finds_10127_matches",
            "timely/dataflow/test_generic.py::test_a_join_of_two_exchanged_streams_finds_every_match_once",
        ],
    ),
    25: (
        "word count",
        [
            "cluster/test_engine.py::test_each_count_of_a_word_that_all_workers_send_is_seen_once",
            "timely/dataflow/test_aggregation.py::test_state_machine_is_exact_whatever_the_delivery",
            "timely/dataflow/test_generic.py::test_each_count_of_a_word_that_all_workers_send_is_seen_once",
            "timely/dataflow/test_generic.py::test_counts_in_time_order_do_not_depend_on_delivery",
        ],
    ),
    26: (
        "word count with retractions",
        [
            "cluster/test_engine.py::test_retracted_lines_leave_the_counts_of_the_last_three",
            "timely/dataflow/test_aggregation.py::test_results_of_closed_times_are_exact_whatever_the_delivery",
            "timely/dataflow/test_generic.py::test_retracted_lines_leave_the_counts_of_the_last_three",
            "timely/dataflow/test_generic.py::test_the_last_counts_after_retractions_are_right_whatever_the_delivery",
        ],
    ),
    27: (
        "distinct",
        [
            "cluster/test_engine.py::test_distinct_gives_each_value_once_where_it_belongs",
            "timely/dataflow/test_generic.py::test_distinct_gives_each_value_once_where_it_belongs",
        ],
    ),
    28: (
        "a buffer behind two frontiers",
        [
            "timely/dataflow/test_generic.py::test_a_buffering_operator_waits_for_both_frontiers",
            "timely/dataflow/test_generic.py::test_the_buffering_operator_is_exact_whatever_the_delivery",
            "timely/dataflow/test_notificator.py::test_two_streams_merged_by_a_notificator_come_out_in_the_order_of_time",
            "timely/dataflow/test_notificator.py::test_the_merge_is_exact_whatever_the_delivery",
        ],
    ),
    29: (
        "the book's flat_map",
        [
            "timely/dataflow/test_linear.py::test_flat_map_of_the_book_gives_36_records",
        ],
    ),
    30: (
        "partition and concatenate",
        [
            "timely/dataflow/test_branching.py::test_partition_splits_by_number_and_concatenate_joins_again_without_moving_anything",
            "timely/dataflow/test_movement.py::test_concat_joins_streams_and_moves_nothing",
        ],
    ),
    31: (
        "delay and delay_batch",
        [
            "timely/dataflow/test_delays.py::test_delay_gives_each_record_its_own_time",
            "timely/dataflow/test_delays.py::test_delay_batch_gives_a_whole_time_another",
            "timely/dataflow/test_delays.py::test_a_delay_to_an_earlier_time_is_an_error_with_both_times",
            "timely/dataflow/test_generic.py::test_delaying_by_capability_moves_records_to_their_own_times",
            "timely/dataflow/test_generic.py::test_delaying_to_an_earlier_time_is_an_error_with_both_times",
        ],
    ),
    32: (
        "accumulate, count, aggregate, state_machine, reclock",
        [
            "timely/dataflow/test_aggregation.py::test_ten_numbers_add_up_to_45_and_are_ten",
            "timely/dataflow/test_aggregation.py::test_counts_and_sums_of_the_workers_shares_are_those_of_the_whole",
            "timely/dataflow/test_aggregation.py::test_aggregate_folds_each_key_wherever_its_values_come_from",
            "timely/dataflow/test_aggregation.py::test_aggregate_and_state_machine_find_their_keys_across_processes",
            "timely/dataflow/test_aggregation.py::test_state_machine_gives_running_totals_in_order",
            "timely/dataflow/test_delays.py::test_reclock_sends_records_at_the_next_tick",
        ],
    ),
    33: (
        "unordered input",
        [
            "timely/dataflow/test_sources.py::test_each_record_has_the_time_of_the_capability_it_was_given_with",
            "timely/dataflow/test_sources.py::test_the_frontier_stays_at_the_least_time_that_is_held",
        ],
    ),
    34: (
        "capture and replay in a process",
        [
            "timely/dataflow/capture/test_replay.py::test_what_is_captured_is_replayed_in_another_dataflow_of_the_process",
        ],
    ),
    35: (
        "capture over TCP, k to j",
        [
            "cluster/test_capture_apps.py::test_what_k_workers_send_is_replayed_by_j_workers",
            "cluster/test_capture_apps.py::test_two_processes_replay_what_three_processes_send",
            "cluster/test_capture_apps.py::test_a_time_is_counted_only_after_the_last_sender_has_ended",
        ],
    ),
    36: (
        "capture to a file, cut anywhere",
        [
            "timely/dataflow/capture/test_replay.py::test_of_a_file_cut_anywhere_all_complete_events_are_replayed_and_then_the_cut_is_named",
        ],
    ),
    37: (
        "one handle, two dataflows",
        [
            "cluster/test_engine.py::test_one_handle_feeds_a_later_dataflow_from_its_present_time_on",
            "timely/dataflow/test_input_handle.py::test_one_handle_feeds_two_dataflows_each_from_where_it_began",
            "timely/dataflow/test_input_handle.py::test_a_handle_advanced_before_it_is_attached_starts_the_stream_there",
        ],
    ),
    38: (
        "times that go backwards, wrong outputs",
        [
            "timely/dataflow/test_generic.py::test_delaying_to_an_earlier_time_is_an_error_with_both_times",
            "timely/dataflow/test_input_handle.py::test_time_only_moves_forward_and_the_error_names_both_times",
            "timely/dataflow/test_capability.py::test_capabilities_only_move_forward_and_the_error_names_both_times",
            "timely/dataflow/test_capability.py::test_a_capability_of_another_operator_is_refused_by_both_names",
            "timely/dataflow/test_capability.py::test_an_input_without_a_path_gives_no_capability",
        ],
    ),
    39: (
        "a dataflow built late",
        [
            "cluster/test_engine.py::test_records_for_a_dataflow_that_is_built_a_second_later_are_kept",
            "timely/test_worker.py::test_records_for_a_dataflow_not_built_yet_wait_for_it",
        ],
    ),
    40: (
        "many dataflows",
        [
            "timely/test_worker.py::test_fifty_dataflows_end_one_by_one_without_disturbing_the_others",
        ],
    ),
    41: (
        "drop_dataflow with data under way",
        [
            "timely/test_drop.py::test_a_dataflow_dropped_with_records_under_way_disturbs_no_other_and_is_freed",
            "timely/test_drop.py::test_threads_that_drop_while_they_send_all_end",
        ],
    ),
    42: (
        "idle steps do not cost by operators",
        [
            "timely/test_drop.py::test_idle_steps_cost_nothing_for_operators_that_have_nothing_to_do",
        ],
    ),
    43: (
        "what a step tells the others",
        [
            "timely/test_progcaster.py::test_what_a_step_produced_and_consumed_itself_is_never_told",
        ],
    ),
    44: (
        "quiet broadcasting",
        [
            "timely/test_quiet.py::test_quiet_runs_end_with_the_outputs_of_eager_ones_and_fewer_batches",
            "timely/test_quiet.py::test_while_an_input_is_held_quiet_workers_tell_less_and_answer_alike",
        ],
    ),
    45: (
        "a log that all workers read in the same order",
        [
            "test_synchronization.py::test_all_workers_read_the_same_sequence",
        ],
    ),
    46: (
        "parking beside an operating system's barrier",
        [
            "timely/test_worker.py::test_a_driver_that_waits_outside_each_round_loses_no_wake_up",
            "test_synchronization.py::test_a_barrier_mixes_with_one_of_the_operating_system",
        ],
    ),
    47: (
        "an exception in one worker",
        [
            "cluster/test_hello.py::test_an_exception_in_an_operator_stops_all_and_is_told_where_it_happened",
            "cluster/test_hello.py::test_an_exception_in_one_of_several_threads_stops_all_processes",
            "timely/test_runtime.py::test_an_exception_in_another_thread_stops_all_and_is_raised_as_it_is",
        ],
    ),
    48: (
        "a killed process",
        [
            "cluster/test_hello.py::test_a_killed_process_ends_the_others_with_its_name_and_address",
        ],
    ),
    49: (
        "clusters and graphs that do not fit",
        [
            "cluster/test_hello.py::test_unequal_numbers_of_workers_are_a_clear_error_on_both_sides",
            "cluster/test_hello.py::test_different_graphs_name_the_first_operator_that_differs",
            "timely/dataflow/test_graph.py::test_a_difference_names_the_first_operator_that_differs_on_both_workers",
            "timely/dataflow/test_movement.py::test_a_feedback_that_is_never_connected_is_named_with_its_line",
            "timely/dataflow/test_scopes.py::test_a_stream_of_an_inner_scope_used_outside_without_leave_is_refused_with_both_scopes",
            "timely/dataflow/test_scopes.py::test_a_stream_from_outside_used_inside_without_enter_is_refused_with_both_scopes",
            "timely/dataflow/test_scopes.py::test_entering_a_scope_that_is_no_child_names_both",
            "timely/dataflow/test_scopes.py::test_an_unconnected_loop_variable_is_named_with_its_scope_and_line",
            "timely/dataflow/test_scopes.py::test_a_cycle_that_does_not_advance_its_rounds_is_refused_operator_by_operator",
            "timely/dataflow/test_scopes.py::test_workers_that_nest_differently_are_told_apart",
            "timely/test_runtime.py::test_unequal_numbers_of_workers_are_refused_on_both_sides",
        ],
    ),
    50: (
        "flow control",
        [
            "apps/test_flow_controlled.py::test_at_most_one_times_work_waits_behind_the_gate",
            "apps/test_flow_controlled.py::test_without_the_gate_and_without_bounds_nearly_all_waits",
            "cluster/test_apps.py::test_flow_control_lets_one_times_work_through_at_once",
        ],
    ),
    52: (
        "many ports",
        [
            "timely/dataflow/test_scopes.py::test_an_operator_with_many_ports_is_as_large_as_its_paths",
            "timely/dataflow/test_scopes.py::test_a_scope_with_many_streams_is_as_large_as_they_are",
        ],
    ),
    53: (
        "a million events in a link",
        [
            "timely/dataflow/capture/test_capture.py::test_a_million_events_in_a_link_are_dropped_without_recursion",
        ],
    ),
    54: (
        "records that cannot travel",
        [
            "cluster/test_travel.py::test_objects_that_hold_a_lock_pass_from_operator_to_operator",
            "cluster/test_travel.py::test_objects_that_hold_a_lock_are_refused_between_processes_by_type_operator_and_remedy",
            "timely/dataflow/test_linear.py::test_records_that_cannot_be_encoded_stay_usable_within_a_process",
            "timely/test_runtime.py::test_a_value_that_cannot_travel_names_its_type_the_operator_and_the_remedy",
        ],
    ),
    56: (
        "the log is complete",
        [
            "timely/test_log.py::test_the_log_is_complete",
        ],
    ),
    57: (
        "activators",
        [
            "timely/dataflow/test_context.py::test_a_source_that_arms_its_timer_ticks_in_time_and_sleeps_between",
            "timely/dataflow/test_context.py::test_a_thread_wakes_a_parked_worker_within_milliseconds",
            "timely/test_worker.py::test_a_parked_worker_is_woken_by_an_activation_from_another_thread",
            "timely/test_worker.py::test_a_source_armed_again_by_a_timer_ticks_on_a_parked_worker",
        ],
    ),
    58: (
        "random graphs under the monitor",
        [
            "simulation/test_random_graphs.py::test_no_frontier_excludes_what_may_come_and_at_rest_all_are_exact",
        ],
    ),
    59: (
        "open loop",
        [
            "timely/test_open_loop.py::test_every_request_of_an_open_loop_is_retired",
        ],
    ),
}


def test_every_case_is_tested_or_left_out_on_purpose() -> None:
    assert set(CASES) | LEFT_OUT == ALL
    assert not set(CASES) & LEFT_OUT
    assert [case for case, (_, tests) in CASES.items() if not tests] == []


@cache
def functions(file: str) -> set[str]:
    """Return the names of the functions of a test module."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("case", CASES)
def test_the_tests_of_a_case_exist(case: int) -> None:
    places = [place.split("::") for place in CASES[case][1]]
    assert [f"{file}::{name}" for file, name in places if name not in functions(file)] == []
