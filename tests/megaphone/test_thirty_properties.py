"""The thirty properties of live migration and rescaling, with their tests: property -> its fact, and tests.

The properties come from Megaphone (PVLDB 12(9)), from the rescaling of timely dataflow (Selvatici, 2019), from the
known errors in the code of both, and from reports by users of other systems that move state. One oracle serves all:
the same input on one worker without moves gives the same outputs at the same times (`simulation/test_oracle`,
`simulation/test_membership`). The ledger shows that each update is at the owner of its time. The oracle also notices
planted faults in the code (`simulation/test_planted_faults`).

One property is not tested, because megaflow has no such feature: several commands that are counted to make one
configuration (11: each is one numbered record). Checkpoints during moves (30) have a search of their own,
`simulation/test_cuts`.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]

PROPERTIES: dict[int, tuple[str, list[str]]] = {
    # Routing and ownership
    1: (
        "a record before a move that comes after the command is applied at the old owner, one at its time at the new",
        [
            "megaphone/test_router.py::test_a_record_before_a_move_that_comes_after_the_command_is_applied_at_the_old_owner_and_moves_with_the_state",
            "megaphone/test_moves_of_every_kind.py::test_a_record_before_the_move_is_applied_at_the_old_owner_and_one_at_its_time_at_the_new",
            "megaphone/test_router.py::test_a_bin_stays_while_a_record_before_its_move_is_under_way_to_its_owner",
        ],
    ),
    2: (
        "a record that is there before the state of its bin waits for all of it",
        [
            "megaphone/test_chunks.py::test_records_that_are_there_before_the_state_of_their_bin_wait_for_it",
            "megaphone/test_chunks.py::test_records_wait_for_the_last_chunk_of_their_bin",
            "megaphone/test_moves_of_every_kind.py::test_records_that_are_there_before_the_state_of_their_bin_wait_for_it",
        ],
    ),
    3: (
        "records that control has not passed wait, and go by a command that comes later",
        [
            "megaphone/test_router.py::test_records_that_control_has_not_passed_wait_and_go_by_the_command_that_comes_later",
            "megaphone/test_router.py::test_a_record_at_the_time_where_control_stands_waits_for_it_to_pass",
            "megaphone/test_moves_of_every_kind.py::test_records_that_control_has_not_passed_go_by_the_command_that_comes_later",
            "megaphone/test_distribute.py::test_a_record_waits_for_control_to_pass_its_time_and_for_nothing_else",
        ],
    ),
    4: (
        "a bin that is moved on, or home, before its first move is done visits each owner and leaves nothing behind",
        [
            "megaphone/test_chunks.py::test_a_bin_that_is_moved_on_before_its_first_move_is_done_visits_each_owner",
            "megaphone/test_chunks.py::test_a_bin_that_comes_home_brings_its_state_back_and_nothing_old_remains",
            "megaphone/test_chunks.py::test_a_key_that_the_new_owner_forgets_does_not_come_back_with_the_bin",
            "megaphone/test_moves_of_every_kind.py::test_a_bin_that_is_moved_on_before_its_first_move_is_done_visits_each_owner",
            "megaphone/test_stateful_timed.py::test_a_bin_that_comes_home_brings_its_timers_back_and_is_called_once_for_each",
        ],
    ),
    5: (
        "of several commands on a bin at one time the last wins, and it is shipped once",
        [
            "megaphone/test_router.py::test_of_two_moves_of_a_bin_at_one_time_the_last_wins_and_it_is_shipped_once",
            "megaphone/test_routing.py::test_the_last_command_on_a_bin_wins",
        ],
    ),
    6: (
        "bins swap, go round in a ring, or all change places at one time",
        [
            "megaphone/test_chunks.py::test_all_bins_change_places_at_one_time",
            "megaphone/test_moves_of_every_kind.py::test_all_bins_change_places_at_one_time",
        ],
    ),
    7: (
        "a command that moves nothing ships nothing and completes",
        [
            "megaphone/test_router.py::test_a_reconfiguration_that_moves_nothing_ships_nothing_and_completes",
            "megaphone/test_moves_of_every_kind.py::test_a_reconfiguration_that_moves_nothing_ships_nothing_and_completes",
            "megaphone/test_chunks.py::test_a_single_worker_obeys_commands_that_can_move_nothing",
            "control/coordinator/test_controller.py::test_a_reconfiguration_that_moves_nothing_is_done_without_asking_the_members",
        ],
    ),
    8: (
        "an empty bin moves and takes its first record at the new owner; so does a bin with timers alone",
        [
            "megaphone/test_chunks.py::test_an_empty_bin_moves_and_takes_its_first_record_at_the_new_owner",
            "megaphone/test_moves_of_every_kind.py::test_an_empty_bin_moves_and_takes_its_first_record_at_the_new_owner",
            "megaphone/test_stateful_timed.py::test_a_bin_with_timers_and_no_state_moves_and_none_is_called_before_it_is_in",
        ],
    ),
    9: (
        "a worker that does not exist, has not been told the table, or has left cannot be named",
        [
            "megaphone/test_routing.py::test_what_no_table_can_hold_is_refused_with_the_reason",
            "megaphone/test_routing.py::test_only_members_may_be_named_and_who_is_on_its_way_is_told_what_to_wait_for",
            "megaphone/test_control_stream.py::test_an_invalid_command_is_refused_on_the_worker_that_injects_it_and_reaches_no_router",
            "megaphone/test_control_stream.py::test_a_bootstrap_of_a_worker_that_is_counted_goes_no_further",
            "control/coordinator/test_controller.py::test_the_controller_says_what_the_transcript_says",
            "control/coordinator/test_controller.py::test_a_refused_reconfiguration_changes_nothing",
            "cluster/test_run.py::test_commands_that_cannot_be_change_nothing",
        ],
    ),
    10: (
        "a command for a time that control has passed is refused",
        [
            "megaphone/test_control_stream.py::test_a_command_for_a_time_that_control_has_passed_cannot_be_injected",
            "megaphone/test_routing.py::test_reconfigurations_out_of_order_are_a_bug",
            "control/coordinator/test_controller.py::test_a_command_has_its_own_epoch_and_leaves_it_at_once",
        ],
    ),
    # Commands and reconfigurations
    11: (
        "commands that come twice, not at all, or not in turn stop the job; those of one time may come in batches",
        [
            "megaphone/test_control_stream.py::test_a_command_that_comes_twice_or_not_in_turn_stops_the_job_and_moves_nothing",
            "megaphone/test_control_stream.py::test_commands_of_one_time_that_come_in_several_batches_are_one_reconfiguration",
            "megaphone/test_control_stream.py::test_commands_injected_on_two_workers_stop_the_job",
            "megaphone/test_router.py::test_a_bin_stays_while_a_command_may_still_come_for_the_time_of_its_move",
            "megaphone/test_router_bootstrap.py::test_a_command_that_is_missing_stops_the_job_on_a_newcomer_as_well",
        ],
    ),
    12: (
        "several reconfigurations may be pending: each time goes by its own table, and they are installed in order",
        [
            "megaphone/test_router.py::test_records_go_by_several_tables_that_wait_before_any_bin_has_moved",
            "megaphone/test_router.py::test_records_of_alternating_times_each_go_by_their_own_table",
            "megaphone/test_router.py::test_a_frontier_that_jumps_to_its_end_installs_all_that_waits_in_order",
            "megaphone/test_moves_of_every_kind.py::test_several_reconfigurations_wait_while_an_early_time_is_open_and_are_installed_in_order",
            "megaphone/test_routing.py::test_a_thousand_moves_that_wait_are_not_a_thousand_tables",
        ],
    ),
    13: (
        "while control stands still nothing at its time comes out, and one can see why; when it ends, all runs on",
        [
            "megaphone/test_control_stream.py::test_while_control_stands_still_nothing_at_its_time_or_later_comes_out_and_the_reason_can_be_read",
            "megaphone/test_control_stream.py::test_a_worker_that_leaves_its_control_input_open_holds_everybody_back",
            "megaphone/test_control_stream.py::test_control_that_closes_before_the_records_come_leaves_the_last_table_in_force",
            "cluster/test_explain.py::test_a_forgotten_capability_is_named_with_operator_line_worker_and_epoch",
        ],
    ),
    14: (
        "moves complete, and the stream ends, when only frontiers move",
        [
            "megaphone/test_chunks.py::test_bins_move_and_the_stream_ends_when_only_frontiers_move",
            "megaphone/test_moves_of_every_kind.py::test_bins_move_and_the_stream_ends_when_only_frontiers_move",
            "megaphone/test_control_stream.py::test_commands_after_the_last_record_are_carried_out",
            "timely/rescale/test_waiting.py::test_the_word_that_a_worker_may_end_is_heard_also_when_nothing_follows_it",
        ],
    ),
    # Timers
    15: (
        "a timer is due once, at the owner of its time, however often its bin has moved",
        [
            "megaphone/test_stateful_timed.py::test_a_timer_is_due_once_at_the_owner_of_its_time_however_often_its_bin_has_moved",
            "megaphone/test_stateful_timed.py::test_a_timer_for_the_time_of_a_move_is_due_at_the_new_owner_and_one_before_at_the_old",
            "megaphone/test_stateful_timed.py::test_a_bin_that_comes_home_brings_its_timers_back_and_is_called_once_for_each",
            "megaphone/test_stateful_timed.py::test_a_bin_larger_than_a_chunk_by_its_timers_travels_in_several_and_the_order_of_payloads_stays",
            "megaphone/test_timers.py::test_a_bin_that_goes_to_and_fro_leaves_nothing_behind",
            "cluster/test_timers.py::test_each_timer_is_due_once_at_its_time_while_all_bins_move",
        ],
    ),
    16: (
        "a timer is later than the fold that sets it, and holds its own time, not that of the fold",
        [
            "megaphone/test_stateful_timed.py::test_a_timer_that_is_not_later_stops_the_job_with_the_key_and_what_to_do",
            "megaphone/test_stateful_timed.py::test_a_timer_holds_the_outputs_at_its_own_time_and_not_at_that_of_the_fold_that_set_it",
            "megaphone/test_stateful_timed.py::test_a_worker_holds_one_capability_however_many_timers_and_times_wait",
            "megaphone/test_stateful_timed.py::test_what_was_held_for_the_timers_of_a_bin_is_let_go_when_the_bin_leaves",
            "megaphone/test_stateful_timed.py::test_a_fold_that_sets_a_timer_whenever_one_is_due_leaves_other_operators_their_turn",
            "megaphone/test_timers.py::test_a_timer_that_is_not_later_than_now_is_refused_with_key_time_and_what_to_do",
        ],
    ),
    17: (
        "windows that each record opens and closes by timers come to nothing while every bin moves all the time",
        [
            "megaphone/test_stateful_timed.py::test_windows_that_are_opened_and_closed_by_timers_come_to_nothing_however_bins_move",
        ],
    ),
    18: (
        "a backlog of several times comes out with each its own time",
        [
            "megaphone/test_stateful.py::test_a_backlog_comes_out_at_the_time_of_each_record_not_at_its_earliest",
            "megaphone/test_stateful_timed.py::test_a_backlog_of_times_is_applied_in_order_and_comes_out_with_each_its_own_time",
        ],
    ),
    # Several inputs, several operators
    19: (
        "both halves of a bin of an operator with two inputs move together, however far apart the inputs are",
        [
            "megaphone/test_stateful_timed.py::test_a_bin_with_the_state_of_one_input_alone_moves_once_for_both_however_far_apart_they_are",
            "megaphone/test_stateful_timed.py::test_both_inputs_of_a_key_and_time_come_together_and_payloads_in_the_left_one",
            "megaphone/test_stateful_timed.py::test_one_input_that_has_ended_does_not_keep_the_other_waiting",
        ],
    ),
    20: (
        "what one operator puts out before a move reaches the old owner of the next, with one control or several",
        [
            "megaphone/test_stateful.py::test_two_operators_with_one_control_move_at_one_time_and_what_is_before_goes_to_the_old_owners",
            "megaphone/test_stateful.py::test_two_operators_with_controls_of_their_own_move_each_at_its_time",
            "megaphone/test_moves_of_every_kind.py::test_what_one_operator_puts_out_before_a_move_reaches_the_old_owner_of_the_next",
        ],
    ),
    # Planner
    21: (
        "every plan, applied in order, moves exactly the difference; an optimized one in as few steps as there can be",
        [
            "control/client/test_planner.py::test_a_plan_moves_exactly_the_difference",
            "control/client/test_planner.py::test_an_optimized_plan_of_65536_bins_is_made_in_reasonable_time",
        ],
    ),
    22: (
        "balancing, growing and shrinking leave bins even, and move no more of them than they must",
        [
            "control/client/test_planner.py::test_a_balanced_table_is_even_and_moves_as_few_bins_as_possible",
            "control/client/test_planner.py::test_growing_and_shrinking_stays_even",
            "control/client/test_planner.py::test_growing_takes_bins_from_the_old_workers_alone",
            "control/client/test_planner.py::test_a_drained_worker_owns_nothing_and_no_other_bin_moves",
            "megaphone/test_chunks.py::test_all_bins_change_places_at_one_time",
        ],
    ),
    # Joining
    23: (
        "any member bootstraps a newcomer: not the first, of another process, a second thread, one that joined",
        [
            "timely/rescale/test_joining.py::test_joiners_may_join_through_anybody_one_after_the_other",
            "cluster/test_engine_rescaling.py::test_a_newcomer_may_join_through_one_that_has_just_joined",
            "megaphone/test_router_bootstrap.py::test_a_worker_that_was_told_can_tell_another_even_before_it_knows_itself",
            "simulation/test_membership.py::test_outputs_and_their_times_are_those_of_one_worker_however_the_membership_changes",
        ],
    ),
    24: (
        "two that join at once, or while something else changes, are served one after the other with ids of their own",
        [
            "timely/rescale/test_joining.py::test_two_that_ask_at_once_join_one_after_the_other",
            "timely/rescale/test_sequencer.py::test_the_coordinator_says_what_the_transcript_says",
            "cluster/test_engine_rescaling.py::test_two_that_join_at_the_same_time_are_served_one_after_the_other",
            "cluster/test_rescaling.py::test_several_processes_join_at_one_command",
        ],
    ),
    25: (
        "however snapshot, markers and batches overtake one another, no frontier is ahead of the truth",
        [
            "timely/rescale/test_catch_up.py::test_whatever_overtakes_what_the_sum_is_that_of_a_prefix_of_each_sender_and_the_rest_follows",
            "timely/rescale/test_joining.py::test_batches_that_the_snapshot_holds_and_that_come_late_are_not_counted_twice",
            "timely/rescale/test_joining.py::test_of_several_dataflows_those_complete_those_running_and_those_dropped_join_as_they_are",
            "timely/test_progcaster_joining.py::test_behind_its_gate_a_newcomers_release_waits_for_its_minting",
            "model/test_bootstrap_model.py::test_no_batch_is_lost_doubled_or_misordered_and_no_frontier_is_ahead_of_the_truth",
        ],
    ),
    26: (
        "a newcomer has the same tables as all others, whatever is pending when it is told",
        [
            "megaphone/test_router_bootstrap.py::test_reconfigurations_before_at_and_after_the_time_of_the_bootstrap_are_the_same_everywhere",
            "megaphone/test_router_bootstrap.py::test_commands_between_join_and_bootstrap_count_once_whichever_the_newcomer_hears",
            "megaphone/test_bootstrap.py::test_commands_below_its_bootstrap_are_in_the_answer_and_those_above_are_kept",
        ],
    ),
    27: (
        "bins that go to a newcomer at once are neither lost nor astray, and placement changes at a time",
        [
            "megaphone/test_router_bootstrap.py::test_data_that_waits_is_routed_by_the_table_of_its_time_as_soon_as_that_is_known",
            "megaphone/test_router_bootstrap.py::test_a_bin_may_come_and_go_again_before_the_newcomer_knows_the_table",
            "simulation/test_membership.py::test_a_worker_that_joins_at_a_chosen_record_applies_its_share_and_one_that_leaves_none_after",
            "megaphone/test_distribute.py::test_it_follows_the_workers_that_join_and_leave",
        ],
    ),
    28: (
        "a newcomer may die at any moment before it takes part; one that comes too late is told so",
        [
            "timely/rescale/test_joining.py::test_a_newcomer_may_die_at_any_moment_before_the_commit",
            "timely/rescale/test_joining.py::test_a_newcomer_that_comes_too_late_is_told_so",
            "timely/communication/test_tcp_newcomers.py::test_a_newcomer_that_is_lost_stays_out",
            "cluster/test_engine_rescaling.py::test_a_newcomer_that_is_killed_before_it_takes_part_stops_nobody",
            "cluster/test_engine_rescaling.py::test_who_asks_when_a_worker_has_taken_its_leave_is_too_late",
            "cluster/test_rescaling.py::test_a_joiner_that_is_killed_once_it_takes_part_stops_the_job",
        ],
    ),
    # Leaving, faults, scale
    29: (
        "a worker leaves when it owns no bin, timer or capability, and nothing of it or for it is lost",
        [
            "simulation/test_membership.py::test_the_far_timers_of_a_worker_that_leaves_are_due_elsewhere_once",
            "simulation/test_membership.py::test_a_worker_whose_bins_cannot_move_away_stays_and_nothing_is_lost",
            "megaphone/test_moves_of_every_kind.py::test_three_workers_become_two_and_three_again_and_nothing_is_lost",
            "timely/rescale/test_leaving.py::test_what_a_leaver_had_sent_and_what_was_on_its_way_to_it_is_not_lost",
            "timely/rescale/test_leaving.py::test_a_leaver_that_holds_a_capability_waits_until_its_time_is_over",
            "timely/rescale/test_leaving.py::test_the_last_process_stays",
            "timely/rescale/test_leaving.py::test_grow_shrink_and_grow_again",
            "cluster/test_engine_rescaling.py::test_the_server_of_an_earlier_bootstrap_leaves",
            "cluster/test_engine_rescaling.py::test_a_cluster_grows_shrinks_and_grows_on_the_same_address",
        ],
    ),
    30: (
        "bins larger than every buffer move in bounded chunks, within the memory of their state; a thousand seeds; a "
        "stopped worker breaks nothing",
        [
            "cluster/test_migration.py::test_a_bin_of_more_than_a_hundred_megabytes_moves",
            "cluster/test_migration.py::test_a_migration_needs_a_tenth_and_a_chunk_more_memory_than_the_state",
            "megaphone/test_bin_transfer.py::test_each_new_owner_has_one_parcel_under_way_and_gets_the_next_when_that_is_installed",
            "megaphone/test_chunks.py::test_a_bin_larger_than_a_chunk_travels_in_several_and_is_one_row_of_the_ledger",
            "megaphone/test_chunks.py::test_a_chunk_is_hardly_larger_than_it_should_be_however_large_the_states",
            "timely/communication/test_tcp_fabric.py::test_a_message_of_fifty_megabytes_arrives_and_urgent_ones_overtake_it",
            "simulation/test_oracle.py::test_outputs_and_their_times_equal_those_of_one_worker_without_moves",
            "simulation/test_membership.py::test_outputs_and_their_times_are_those_of_one_worker_however_the_membership_changes",
            "cluster/test_rescaling.py::test_a_stopped_member_stalls_the_job_and_breaks_nothing",
        ],
    ),
}


def test_every_property_is_tested() -> None:
    assert sorted(PROPERTIES) == list(range(1, 31))
    assert [number for number, (_, tests) in PROPERTIES.items() if not tests] == []


@cache
def functions(file: str) -> set[str]:
    """The names of the functions of a test module."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("number", PROPERTIES)
def test_the_tests_of_a_property_exist(number: int) -> None:
    places = [place.split("::") for place in PROPERTIES[number][1]]
    assert [f"{file}::{name}" for file, name in places if name not in functions(file)] == []
