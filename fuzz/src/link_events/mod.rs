//! One link, looped back to itself, under a home, a cable and a peer that do what the input says.
//!
//! The link's own frames come back to it, late, twice or never, next to frames the input has made up. Whatever
//! comes, it touches only memory it has been lent, gives everything back exactly once, and lets go of everything
//! when it fails. If nothing was made up, it also has to finish all work once the cable behaves.

mod frames;
mod home;
mod host;

use home::Home;

use crate::input::Input;

/// Interprets the input as events.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut home = Home::new(input.byte());
    while !input.is_empty() {
        event(&mut home, &mut input);
    }
    home.finish();
}

fn event(home: &mut Home, input: &mut Input<'_>) {
    let choice = input.byte();
    let detail = input.byte();
    match choice % 20 {
        0 | 1 => home.post(detail, input),
        2 => home.open_flow(detail),
        3 => home.close_flow(detail),
        4 => home.post_receive(detail, input),
        5 => _ = home.stage(),
        6 => home.gathered(),
        7 => _ = home.post_frames(detail),
        8 => home.complete(detail),
        9 | 10 => home.deliver(detail, input),
        11 => home.receive(frames::invent(home.frame_facts(), detail, input)),
        12 => _ = home.take_plan(),
        13 => home.plan_done(),
        14 => home.pass(u64::from(detail) << 10),
        15 => home.pass(u64::from(detail) << 18),
        16 => home.service(),
        17 => home.change_rail(detail),
        18 => home.change_endpoint(detail),
        _ => home.exchange(1 + usize::from(detail % 4)),
    }
}

/// All operations over a cable that behaves; the same with losses, refusals, replays, and an end in the middle.
pub fn seeds() -> Vec<Vec<u8>> {
    let open = [2u8, 0];
    let receives = [4u8, 0, 0, 8, 4, 1, 0, 8, 4, 0, 0, 1];
    let post = |kind: u8, len: u16| {
        let [lo, hi] = len.to_le_bytes();
        vec![0, kind, 0, lo, hi, 7, 0x10]
    };
    let exchange = [19u8, 3];
    let work: Vec<u8> = (0..8)
        .flat_map(|kind| post(kind, 100 + 1000 * u16::from(kind)))
        .collect();
    let deliver = |what: u8, at: u8| [9u8, what, at];
    let invent = |events: &[u8]| [&[11u8][..], events].concat();
    // Work superseded while a lost frame of it waits: the home has to ask again although nothing happens.
    let superseded = [
        0, 2, 0, 0x5d, 4, 0, 1, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0x59, 1, 0, 0x4c, 4, 7, 0x10, 0, 2, 0, 0x34, 8,
        7, 0x10, 0, 3, 0, 0x1c, 12, 7, 0x10, 6, 0, 0xd4, 23, 7, 0x10, 0, 7, 0, 0x31, 0x31, 0x31, 0x31, 0x31,
        0x31, 0x31, 0xbc, 27, 0, 1, 19, 3,
    ];
    vec![
        superseded.to_vec(),
        [&[0u8][..], &open, &receives, &work, &exchange].concat(),
        [&[32u8][..], &open, &receives, &work, &exchange, &work, &exchange].concat(),
        [&[1u8][..], &open, &work, &exchange, &receives, &exchange].concat(),
        [
            &[2u8][..],
            &open,
            &receives,
            &work,
            &[16, 0],
            &deliver(1, 0),
            &deliver(2, 1),
            &exchange,
        ]
        .concat(),
        [
            &[4u8][..],
            &open,
            &work,
            &[17, 1],
            &exchange,
            &[17, 3],
            &exchange,
            &receives,
            &exchange,
        ]
        .concat(),
        [
            &[0u8][..],
            &open,
            &receives,
            &work,
            &[5, 0, 6, 0, 7, 1, 8, 0, 12, 0, 3, 0, 13, 0],
            &exchange,
        ]
        .concat(),
        [
            &[3u8][..],
            &open,
            &receives,
            &invent(&[1, 2, 0, 0, 1, 9, 0, 8, 0]),
            &exchange,
        ]
        .concat(),
        [
            &[0u8][..],
            &open,
            &open,
            &receives,
            &work,
            &[18, 1],
            &exchange,
            &[18, 0],
            &exchange,
        ]
        .concat(),
        // Not ready, limited, fenced; then ready, with one read at a time.
        [
            &[0u8][..],
            &[18, 0x10, 2, 0x10, 2, 0x04],
            &post(4, 900),
            &[0, 0, 4, 100, 0, 7, 0x10],
            &exchange,
            &[18, 0x30],
            &receives,
            &work,
            &exchange,
            &[2, 0x24],
            &exchange,
        ]
        .concat(),
    ]
}
