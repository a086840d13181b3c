//! Rails come up whatever the control channel does.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a panic is how a test fails"
)]

use usb4_sim::{Faults, MS, Profile, World, seeds};

/// A control channel that loses, repeats and reorders.
const BAD_CONTROL: Faults = Faults {
    control_loss: 0.3,
    control_dup: 0.3,
    control_delay: 20 * MS,
    ..Faults::NONE
};

#[test]
fn rails_come_up_over_a_lossy_control_channel() {
    for seed in seeds(50) {
        for profile in Profile::ALL {
            let (world, a, b) = World::pair(seed, &profile, 1, BAD_CONTROL).unwrap();
            assert!(world.link_between(a, b).is_some() && world.link_between(b, a).is_some());
            assert_eq!(world.violations(), [""; 0], "seed {seed}");
        }
    }
}
