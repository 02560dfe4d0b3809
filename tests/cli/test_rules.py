"""The 17 rules of the command-line contract, each with the tests that hold it, or why there is nothing to test yet."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent

RULES: dict[str, list[str]] = {
    "1 stdout is the result, stderr the talk": [
        "test_json_puts_exactly_one_document_on_stdout_whatever_happened",
        "test_yaml_puts_exactly_one_document_on_stdout_whatever_happened",
        "test_a_parse_error_has_the_asked_format_too",
        "test_a_stream_is_one_json_object_a_line",
        "test_talk_goes_to_stderr_and_findings_to_stdout",
    ],
    "2 formats and --output-file": [
        "test_json_is_short_for_output_json",
        "test_wide_shows_the_columns_that_table_hides",
        "test_tsv_of_a_list_has_a_header_and_escapes_tabs_and_leaves_null_empty",
        "test_output_file_of_a_private_document_has_mode_0600",
    ],
    "3 values, nulls and facts": [
        "test_numbers_stay_numbers_and_not_a_number_is_refused",
        "test_a_null_without_a_reason_is_found",
        "test_facts_are_merged_into_data_under_their_pointers",
        "test_a_document_fits_its_schema_and_every_null_has_a_reason",
    ],
    "4 colour": [
        "test_a_terminal_gets_colour_and_it_is_never_the_only_signal",
        "test_no_color_dumb_terminals_and_ci_get_none",
        "test_force_color_does_not_make_a_pipe_a_terminal",
    ],
    "5 progress": [
        "test_bars_are_for_terminals_outside_ci",
        "test_plain_progress_writes_a_stamped_line_at_each_state_change_and_each_30_s",
        "test_there_is_no_eta_before_two_samples_and_then_it_is_a_range",
        "test_a_signal_from_outside_ends_a_working_command_with_one_document",
        "test_a_signal_during_apply_puts_everything_back_and_is_6",
    ],
    "6 width": [
        "test_a_terminal_decides_the_width_and_a_pipe_follows_columns",
        "test_without_a_terminal_or_usable_columns_the_width_is_100",
        "test_a_table_never_cuts_a_value_and_fits_the_width_while_it_is_a_table",
        "test_columns_leave_by_priority_then_the_table_turns_vertical",
    ],
    "7 encoding": [
        "test_no_encoding_stops_the_program_and_json_stays_json",
        "test_ascii_leaves_only_ascii_frames",
        "test_padding_counts_cells_not_characters",
        "test_file_names_that_python_could_not_decode_still_print",
    ],
    "8 pipes": [
        "test_a_closed_pipe_is_quiet_and_141",
        "test_a_reader_that_takes_one_line_hears_nothing_more",
        "test_each_record_of_a_stream_is_flushed",
    ],
    "9 errors": [
        "test_an_error_says_what_why_if_known_next_and_its_code",
        "test_every_code_has_a_page_with_all_sections_and_one_command",
        "test_a_fault_of_ours_names_a_trace_file_and_prints_no_traceback",
        "test_debug_prints_the_traceback_instead",
    ],
    "10 privilege": [
        "test_looking_up_needs_no_privilege",
        "test_topo_works_unprivileged",
        "test_a_denied_write_is_4_names_the_file_and_writes_nothing",
    ],
    "11 no surprises": [
        "test_a_question_is_asked_on_a_terminal_only",
        "test_without_a_terminal_and_without_yes_the_code_is_2",
        "test_yes_answers_for_scripts",
        "test_a_command_that_changes_the_host_offers_yes_and_dry_run",
        "test_a_dry_run_checks_and_writes_neither_host_nor_state",
    ],
    "12 speed": [
        "test_help_and_completion_take_less_than_0_4_s",
        "test_help_loads_no_heavy_library",
        "test_help_of_a_command_loads_neither_torch_nor_numpy_nor_yaml",
    ],
    "13 configuration order": [
        "test_a_flag_beats_the_environment_and_the_environment_beats_the_default",
        "test_a_wrong_word_in_the_environment_names_the_variable",
    ],
    "14 root": [
        "test_a_command_that_changes_the_host_refuses_root_from_flag_and_environment",
        "test_a_snapshot_names_its_host_and_an_unread_boot_id_is_null_with_a_reason",
        "test_root_reads_a_snapshot_and_a_missing_one_is_refused",
        "test_the_header_says_live_or_snapshot_and_its_age",
    ],
    "15 verdicts": [
        "test_status_follows_from_the_diagnostics_alone",
        "test_findings_exit_zero_unless_fail_on_is_given",
        "test_a_failure_never_exits_zero",
        "test_verify_never_calls_an_unread_value_ok",
    ],
    "16 help": [
        "test_help_shows_three_examples_first_then_options_exit_codes_and_whether_the_host_changes",
        "test_the_examples_in_help_use_commands_and_options_that_exist",
    ],
    "17 completion and logs": [
        "test_completion_knows_commands_flags_words_and_codes",
        "test_completion_loads_nothing_heavy_and_no_command",
        "test_verbose_lets_more_log_lines_through",
        "test_text_log_lines_carry_the_id_and_stay_on_one_line",
    ],
}
NOT_YET = {
    "17 an old flag works two releases and warns": "no flag has been renamed yet",
}


def names() -> set[str]:
    found = set()
    for path in HERE.glob("test_*.py"):
        found |= {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
    return found


def test_there_are_seventeen_rules_in_order() -> None:
    assert [int(rule.split()[0]) for rule in RULES] == list(range(1, 18))
    assert all(reason for reason in NOT_YET.values())


@pytest.mark.parametrize("rule", RULES)
def test_the_tests_of_a_rule_exist(rule: str) -> None:
    assert RULES[rule]
    assert set(RULES[rule]) <= names()
