//! The cases, by what they exercise.

mod atomic;
mod error;
mod life;
mod order;
mod rma;
mod send;

use anyhow::Result;

use crate::Fabric;

/// A named case.
pub struct Case {
    /// What would go wrong, or what holds.
    pub name: &'static str,
    /// The case itself, on a fabric of its own.
    pub run: fn(&Fabric) -> Result<()>,
}

macro_rules! cases {
    ($($module:ident :: $name:ident),* $(,)?) => {
        vec![$(Case { name: concat!(stringify!($module), "::", stringify!($name)), run: $module::$name }),*]
    };
}

/// Every case, in the order to read them.
pub fn all() -> Vec<Case> {
    cases![
        send::a_message_of_any_size_arrives_whole,
        send::an_empty_message_arrives,
        send::immediate_data_arrives_with_its_message,
        send::a_prefix_comes_before_the_buffer,
        send::a_message_to_oneself_arrives,
        send::two_endpoints_of_one_device_talk,
        send::a_receive_names_its_sender,
        send::three_hosts_talk_to_each_other,
        order::messages_arrive_in_the_order_they_were_posted,
        order::a_write_is_in_place_before_the_message_after_it,
        order::a_read_sees_the_write_before_it,
        order::both_directions_at_full_window_keep_every_byte,
        order::a_message_without_a_receive_waits_for_one,
        order::waiting_messages_of_two_senders_all_arrive,
        rma::a_write_places_its_bytes_and_nothing_else,
        rma::a_write_with_immediate_completes_a_receive,
        rma::a_read_of_any_size_returns_the_bytes,
        rma::many_reads_at_once_complete,
        atomic::fetch_add_returns_the_old_value,
        atomic::compare_swap_swaps_only_on_equality,
        atomic::adds_of_two_hosts_lose_nothing,
        error::a_message_longer_than_its_receive_fails_at_both_ends,
        error::a_wrong_key_is_refused,
        error::a_range_beyond_the_region_is_refused,
        error::an_offset_that_wraps_is_refused,
        error::a_right_not_given_is_refused,
        error::a_dropped_region_is_no_longer_reachable,
        error::a_buffer_of_a_dropped_region_is_invalid,
        error::an_unaligned_atomic_is_refused,
        error::immediate_data_on_a_read_is_invalid,
        error::a_full_queue_says_so_and_loses_nothing,
        error::a_small_completion_queue_never_overflows,
        error::unsignaled_work_completes_only_on_error,
        life::a_closed_endpoint_is_gone,
        life::a_closed_device_takes_its_peers_work_down,
        life::an_address_of_nobody_is_unreachable,
        life::a_connected_endpoint_hears_only_its_peer,
        life::a_connected_endpoint_in_error_flushes,
        life::a_sleeper_wakes_for_a_completion,
        life::a_descriptor_becomes_readable_for_a_completion,
        life::endpoints_open_and_close_without_end,
    ]
}
